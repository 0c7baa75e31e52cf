/* test_link.c - messages through a link with somebody in between who changes, repeats, drops or
 * swaps frames, or plays an old conversation again; and the bytes of messages.
 * links: mc_run */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../core/base/rng.h"
#include "../../core/run/link.h"

enum { MESSAGES = 6, BEFORE = 40 + 32 /* bytes of the client's handshake */ };
enum trick { PASS, FLIP, REPEAT, DROP, SWAP, LENGTH, NTRICKS };
static const unsigned char key[MC_LINK_KEY] = {1, 2, 3};

static struct mc_msg message(int i, char *room)
{
    memset(room, 'a' + i, 5000);
    return (struct mc_msg){.kind = MC_MSG_GATHER,
                           .rank = i - 2,
                           .seq = (uint32_t)i,
                           .v = {-1, i, INT64_MIN, INT64_MAX},
                           .text = room,
                           .ntext = (size_t)(10 * i),
                           .data = room,
                           .ndata = (size_t)(1000 * i)};
}

static void check_message(const struct mc_msg *m, int i)
{
    char room[5000];
    struct mc_msg w = message(i, room);
    assert_int_equal(m->kind, w.kind);
    assert_int_equal(m->rank, w.rank);
    assert_int_equal(m->seq, w.seq);
    assert_memory_equal(m->v, w.v, sizeof w.v);
    assert_int_equal(m->ntext, w.ntext);
    assert_int_equal(m->ndata, w.ndata);
    assert_memory_equal(m->text, room, w.ntext);
    assert_memory_equal(m->data, room, w.ndata);
}

/* The agent's side, in a process of its own: connects, sends everything, waits for the end. */
static pid_t client(int port, const unsigned char *k)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    struct mc_link *l;
    struct mc_err e = {0};
    char room[5000];
    alarm(20);
    mc_status st = mc_link_connect("127.0.0.1", port, k, INT64_C(5000000000), NULL, &l, &e);
    if (st != MC_OK)
        _exit(st);
    for (int i = 0; i < MESSAGES; i++) {
        struct mc_msg m = message(i, room);
        if (mc_link_send(l, &m, &e) != MC_OK)
            _exit(100);
    }
    while (mc_link_turn(l, &e) == MC_OK)
        usleep(1000);
    _exit(0);
}

static int dial(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int s = socket(AF_INET, SOCK_STREAM, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(s, (struct sockaddr *)&a, sizeof a), 0);
    return s;
}

static int take(int listen_fd)
{
    struct pollfd p = {.fd = listen_fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 5000), 1);
    int s = accept(listen_fd, NULL, NULL);
    assert_true(s >= 0);
    return s;
}

static size_t length_at(const unsigned char *p)
{
    return 4 + ((size_t)p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24);
}

/* Everything the client will send in frames; plays a trick on frame 2. Returns the new length. */
static size_t play(enum trick t, const unsigned char *in, size_t n, unsigned char *out)
{
    size_t at[MESSAGES + 1] = {0}, k = 0;
    int order[8] = {0, 1, 2, 3, 4, 5}, norder = MESSAGES;
    for (int i = 0; i < MESSAGES; i++)
        at[i + 1] = at[i] + length_at(in + at[i]);
    assert_int_equal(at[MESSAGES], n);
    if (t == REPEAT)
        order[2] = 1;
    if (t == DROP)
        memmove(order + 2, order + 3, sizeof *order * (size_t)(--norder - 2));
    if (t == SWAP)
        order[2] = 3, order[3] = 2;
    for (int i = 0; i < norder; i++) {
        int f = order[i];
        memcpy(out + k, in + at[f], at[f + 1] - at[f]);
        if (i == 2 && t == FLIP)
            out[k + 40] ^= 1;
        if (i == 2 && t == LENGTH)
            out[k + 3] = 0x7f;
        k += at[f + 1] - at[f];
    }
    return k;
}

static void shuttle(int from, int to)
{
    unsigned char b[65536];
    struct pollfd p = {.fd = from, .events = POLLIN};
    ssize_t n = poll(&p, 1, 1) == 1 ? read(from, b, sizeof b) : 0;
    if (n > 0)
        assert_int_equal(write(to, b, (size_t)n), n);
}

static unsigned char g_said[1 << 17]; /* what the client said, handshake and frames */
static size_t g_nsaid;

/* One conversation with somebody in between. Returns how many messages the server could read. */
static int converse(enum trick t, char why[1400])
{
    int ls, lr, ps, pr, got = 0;
    unsigned char out[1 << 17];
    struct mc_link *l = NULL;
    struct mc_err e = {0};
    struct mc_msg m;
    assert_int_equal(mc_link_listen(0, &ls, &ps, NULL), MC_OK);
    assert_int_equal(mc_link_listen(0, &lr, &pr, NULL), MC_OK);
    pid_t pid = client(pr, key);
    int c = take(lr), s = dial(ps);
    for (int i = 0; i < 5000 && !l; i++, usleep(1000))
        assert_int_equal(mc_link_accept(ls, key, &l, NULL), MC_OK);
    g_nsaid = 0;
    size_t passed = 0, want = BEFORE, frames = 0;
    char room[5000];
    for (int i = 0; i < MESSAGES; i++)
        frames += 4 + 16 + MC_MSG_HEAD + message(i, room).ntext + message(i, room).ndata;
    why[0] = '\0';
    for (int turn = 0; turn < 20000; turn++) {
        struct pollfd p = {.fd = c, .events = POLLIN};
        if (poll(&p, 1, 1) == 1) {
            ssize_t n = read(c, g_said + g_nsaid, sizeof g_said - g_nsaid);
            assert_true(n >= 0);
            g_nsaid += (size_t)n;
        }
        if (passed < want) { /* the handshake, as it is */
            size_t n = (g_nsaid < want ? g_nsaid : want) - passed;
            assert_int_equal(write(s, g_said + passed, n), (ssize_t)n);
            passed += n;
        } else if (passed == want && g_nsaid == want + frames) {
            size_t n = play(t, g_said + BEFORE, frames, out);
            assert_int_equal(write(s, out, n), (ssize_t)n);
            passed++;
        }
        shuttle(s, c);
        mc_status st = mc_link_turn(l, &e);
        while (mc_link_next(l, &m, &e))
            check_message(&m, got++);
        if (st != MC_OK || e.code != MC_OK || got == MESSAGES)
            break;
    }
    snprintf(why, 1400, "%s", e.msg);
    mc_link_close(l);
    close(s);
    close(c);
    close(ls);
    close(lr);
    waitpid(pid, NULL, 0);
    return got;
}

static void messages_pass_whole_or_not_at_all(void **state)
{
    (void)state;
    char why[1400];
    for (int t = PASS; t < NTRICKS; t++) {
        int got = converse((enum trick)t, why);
        if (got != (t == PASS ? MESSAGES : 2))
            fail_msg("trick %d: %d messages came through (%s)", t, got, why);
        if (t != PASS && !strstr(why, t == LENGTH ? "impossible length" : "does not open"))
            fail_msg("trick %d: %s", t, why);
    }
}

/* The whole of an old conversation proves nothing: the server's nonce is another. */
static void an_old_conversation_is_refused(void **state)
{
    (void)state;
    char why[1400];
    int ls, port;
    struct mc_link *l = NULL;
    struct mc_err e = {0};
    struct mc_msg m;
    assert_int_equal(converse(PASS, why), MESSAGES);
    assert_int_equal(mc_link_listen(0, &ls, &port, NULL), MC_OK);
    int s = dial(port);
    assert_int_equal(write(s, g_said, g_nsaid), (ssize_t)g_nsaid);
    for (int i = 0; i < 5000 && !l; i++, usleep(1000))
        assert_int_equal(mc_link_accept(ls, key, &l, NULL), MC_OK);
    mc_status st = MC_OK;
    for (int i = 0; i < 5000 && st == MC_OK; i++, usleep(1000))
        st = mc_link_turn(l, &e);
    assert_int_equal(st, MC_E_PEER);
    assert_non_null(strstr(e.msg, "does not hold this run's key"));
    assert_false(mc_link_next(l, &m, &e));
    mc_link_close(l);
    close(s);
    close(ls);
}

static void strangers_are_told_from_coordinators(void **state)
{
    (void)state;
    int ls, port, st;
    static const unsigned char other[MC_LINK_KEY] = {9};
    struct mc_link *l = NULL;
    assert_int_equal(mc_link_listen(0, &ls, &port, NULL), MC_OK);
    pid_t pid = client(port, other); /* another key */
    for (int i = 0; i < 5000 && !l; i++, usleep(1000))
        assert_int_equal(mc_link_accept(ls, key, &l, NULL), MC_OK);
    for (int i = 0; i < 5000 && mc_link_turn(l, NULL) == MC_OK; i++)
        usleep(1000);
    assert_false(mc_link_is_proven(l));
    mc_link_close(l);
    waitpid(pid, &st, 0);
    assert_int_equal(WEXITSTATUS(st), MC_E_MACHINE);
    pid = client(port, key); /* a server of something else */
    int c = take(ls);
    static const char http[] = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nServer: x\r\n\r\n"
                               "                                                        ";
    assert_int_equal(write(c, http, sizeof http), (ssize_t)sizeof http);
    waitpid(pid, &st, 0);
    assert_int_equal(WEXITSTATUS(st), MC_E_MACHINE);
    close(c);
    close(ls);
}

/* Every prefix of a message, and every message with a byte changed at random, is refused or read
 * within its bounds (the sanitizer's build sees the rest). */
static void torn_messages_are_refused(void **state)
{
    (void)state;
    static unsigned char buf[MC_MSG_MAX];
    char room[5000];
    struct mc_msg m = message(3, room), got;
    size_t n = mc_wire_write(&m, buf, sizeof buf);
    assert_int_equal(mc_wire_read(buf, n, &got, NULL), MC_OK);
    check_message(&got, 3);
    for (size_t k = 0; k < n; k++)
        assert_int_equal(mc_wire_read(buf, k, &got, NULL), MC_E_PEER);
    for (uint64_t i = 0; i < 20000; i++) {
        size_t at = (size_t)(mc_rng_u64(3, i, 0) % MC_MSG_HEAD);
        unsigned char was = buf[at];
        buf[at] = (unsigned char)mc_rng_u64(3, i, 1);
        if (mc_wire_read(buf, n, &got, NULL) == MC_OK)
            assert_int_equal(got.ntext + got.ndata + MC_MSG_HEAD, n);
        buf[at] = was;
    }
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_pass_whole_or_not_at_all),
        cmocka_unit_test(an_old_conversation_is_refused),
        cmocka_unit_test(strangers_are_told_from_coordinators),
        cmocka_unit_test(torn_messages_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
