/* link.c - an authenticated connection between an agent and the coordinator. Floor 3 (run).
 *
 *   client -> server   "MCLINK1\n" nonce_c[32]
 *   server -> client   "MCLINK1\n" nonce_s[32] proof_s[32]
 *   client -> server   proof_c[32]
 *   then, in both directions, frames:   n[4, little-endian]  sealed[n]
 *
 *   proof_x  = HMAC-SHA512/256(key, x nonce_c nonce_s), x = "s" or "c"
 *   key_x    = BLAKE2b-256 keyed with the run's key of (x nonce_c nonce_s), x = "S" (what the
 * server sends) or "C" sealed   = ChaCha20-Poly1305 (IETF) of one message of wire.c under key_x;
 * nonce: the number of the frame in its direction, from 0; additional data: n
 *
 * I1  Nobody's message is looked at before the sender has proven the key, and a proof is of no use
 *     on another connection: both nonces are in it.
 * I2  A frame that is repeated, left out, moved or changed does not open: its number is its nonce.
 *     A key is used for one direction of one connection.
 * I3  Whatever a peer sends, memory is bounded: one frame of at most MAX_FRAME bytes is read ahead.
 *     What is queued for a peer is bounded by MAX_QUEUE.
 * I4  Nothing blocks, but the attempts of mc_link_connect.
 *
 * Memory: one block a link and its output queue. Threads: one. */
#include "link.h"
#include "../base/arena.h"
#include "../base/clock.h"
#include "../base/sysio.h"
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char magic[8] = {'M', 'C', 'L', 'I', 'N', 'K', '1', '\n'};
enum {
    NONCE = 32,
    PROOF = crypto_auth_BYTES,
    TAG = crypto_aead_chacha20poly1305_ietf_ABYTES,
    MAX_FRAME = MC_MSG_MAX + TAG,
    CLIENT_HELLO = 8 + NONCE,
    SERVER_HELLO = 8 + NONCE + PROOF,
    RETRY_MS = 100
};
#define MAX_QUEUE ((size_t)1 << 30)

enum state { WANTS_HELLO, WANTS_PROOF, PROVEN, DEAD };
struct mc_link {
    int fd, server, eof;
    enum state state;
    unsigned char key[MC_LINK_KEY], nonces[2 * NONCE]; /* client's, server's */
    unsigned char key_in[32], key_out[32];
    uint64_t frames_in, frames_out;
    char peer[80];
    unsigned char in[4 + MAX_FRAME], plain[MC_MSG_MAX];
    size_t nin;
    unsigned char *out;
    size_t nout, cap, sent;
};

/* ---- the handshake ---- */

static void make_proof(const struct mc_link *l, char who, unsigned char proof[PROOF])
{
    unsigned char text[1 + 2 * NONCE];
    text[0] = (unsigned char)who;
    memcpy(text + 1, l->nonces, 2 * NONCE);
    crypto_auth(proof, text, sizeof text, l->key);
}

static void make_keys(struct mc_link *l)
{
    unsigned char text[1 + 2 * NONCE];
    memcpy(text + 1, l->nonces, 2 * NONCE);
    text[0] = l->server ? 'C' : 'S';
    crypto_generichash(l->key_in, 32, text, sizeof text, l->key, MC_LINK_KEY);
    text[0] = l->server ? 'S' : 'C';
    crypto_generichash(l->key_out, 32, text, sizeof text, l->key, MC_LINK_KEY);
    sodium_memzero(l->key, sizeof l->key);
    l->state = PROVEN;
}

static mc_status queue(struct mc_link *l, const void *p, size_t n, struct mc_err *err)
{
    if (l->sent == l->nout)
        l->sent = l->nout = 0;
    if (l->nout + n > MAX_QUEUE) /* I3 */
        return mc_err_set(err, MC_E_PEER, "%s does not read: %zu bytes wait for it", l->peer,
                          l->nout - l->sent);
    if (l->nout + n > l->cap) {
        size_t cap = (l->nout + n) * 2;
        unsigned char *q = mc_grow(l->out, l->cap, cap, "output of a link");
        if (!q)
            return mc_err_set(err, MC_E_NOMEM, "no memory for %zu bytes to %s", n, l->peer);
        l->out = q;
        l->cap = cap;
    }
    memcpy(l->out + l->nout, p, n);
    l->nout += n;
    return MC_OK;
}

static void eat(struct mc_link *l, size_t n)
{
    memmove(l->in, l->in + n, l->nin - n);
    l->nin -= n;
}

static mc_status no_peer(struct mc_link *l, struct mc_err *err)
{
    l->state = DEAD;
    return mc_err_set(err, MC_E_MACHINE, "%s does not speak as a coordinator of mascon does",
                      l->peer);
}

static mc_status server_turn(struct mc_link *l, struct mc_err *err)
{
    unsigned char proof[PROOF];
    if (l->state == WANTS_HELLO && l->nin >= CLIENT_HELLO) {
        if (memcmp(l->in, magic, sizeof magic) != 0)
            return no_peer(l, err);
        memcpy(l->nonces, l->in + 8, NONCE);
        eat(l, CLIENT_HELLO);
        randombytes_buf(l->nonces + NONCE, NONCE);
        make_proof(l, 's', proof);
        MC_TRY(queue(l, magic, sizeof magic, err));
        MC_TRY(queue(l, l->nonces + NONCE, NONCE, err));
        MC_TRY(queue(l, proof, PROOF, err));
        l->state = WANTS_PROOF;
    }
    if (l->state == WANTS_PROOF && l->nin >= PROOF) {
        make_proof(l, 'c', proof);
        if (sodium_memcmp(proof, l->in, PROOF) != 0) {
            l->state = DEAD;
            return mc_err_set(err, MC_E_PEER, "%s does not hold this run's key", l->peer);
        }
        eat(l, PROOF);
        make_keys(l);
    }
    return MC_OK;
}

static mc_status client_turn(struct mc_link *l, struct mc_err *err)
{
    unsigned char proof[PROOF];
    if (l->nin >= sizeof magic && memcmp(l->in, magic, sizeof magic) != 0)
        return no_peer(l, err);
    if (l->nin < SERVER_HELLO)
        return MC_OK;
    memcpy(l->nonces + NONCE, l->in + 8, NONCE);
    make_proof(l, 's', proof);
    if (sodium_memcmp(proof, l->in + 8 + NONCE, PROOF) != 0) {
        l->state = DEAD;
        return mc_err_set(err, MC_E_MACHINE,
                          "the coordinator at %s holds another key than this agent: it is another "
                          "run's, or the key file is",
                          l->peer);
    }
    eat(l, SERVER_HELLO);
    make_proof(l, 'c', proof);
    MC_TRY(queue(l, proof, PROOF, err));
    make_keys(l);
    return MC_OK;
}

/* ---- frames ---- */

static void frame_nonce(uint64_t number, unsigned char nonce[12])
{
    memset(nonce, 0, 12);
    for (int i = 0; i < 8; i++)
        nonce[4 + i] = (unsigned char)(number >> (8 * i));
}

static void put_length(unsigned char p[4], size_t n)
{
    for (int i = 0; i < 4; i++)
        p[i] = (unsigned char)(n >> (8 * i));
}

mc_status mc_link_send(struct mc_link *l, const struct mc_msg *m, struct mc_err *err)
{
    unsigned char sealed[4 + MAX_FRAME],
        packet[MC_MSG_MAX]; /* l->plain may hold a message in use */
    unsigned char nonce[12];
    unsigned long long k;
    if (l->state != PROVEN)
        return mc_err_set(err, MC_E_PEER, "the link to %s is not open", l->peer);
    size_t n = mc_wire_write(m, packet, sizeof packet);
    frame_nonce(l->frames_out++, nonce); /* I2 */
    put_length(sealed, n + TAG);
    crypto_aead_chacha20poly1305_ietf_encrypt(sealed + 4, &k, packet, n, sealed, 4, NULL, nonce,
                                              l->key_out);
    return queue(l, sealed, 4 + n + TAG, err);
}

/* Bytes of the frame that l->in begins with; 0: not known yet, or longer than any (*bad). */
static size_t frame_length(const struct mc_link *l, int *bad)
{
    size_t n = 0;
    if (l->nin < 4)
        return 0;
    for (int i = 0; i < 4; i++)
        n |= (size_t)l->in[i] << (8 * i);
    *bad = n < TAG || n > MAX_FRAME;
    return *bad ? 0 : n;
}

int mc_link_next(struct mc_link *l, struct mc_msg *m, struct mc_err *err)
{
    unsigned char nonce[12];
    unsigned long long k;
    int bad = 0;
    size_t n = l->state == PROVEN ? frame_length(l, &bad) : 0;
    if (bad)
        mc_err_set(err, MC_E_PEER, "%s sent a frame of impossible length", l->peer);
    if (n == 0 || l->nin < 4 + n)
        return 0;
    frame_nonce(l->frames_in++, nonce); /* I2 */
    if (crypto_aead_chacha20poly1305_ietf_decrypt(l->plain, &k, NULL, l->in + 4, n, l->in, 4, nonce,
                                                  l->key_in) != 0) {
        l->state = DEAD;
        mc_err_set(err, MC_E_PEER, "%s sent a frame that does not open: changed, repeated or lost",
                   l->peer);
        return 0;
    }
    eat(l, 4 + n);
    return mc_wire_read(l->plain, (size_t)k, m, err) == MC_OK;
}

/* ---- bytes ---- */

static mc_status flush(struct mc_link *l, struct mc_err *err)
{
    while (l->sent < l->nout) {
        ssize_t k = send(l->fd, l->out + l->sent, l->nout - l->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k == -1 && errno == EINTR)
            continue;
        if (k == -1 && errno == EAGAIN)
            return MC_OK;
        if (k == -1) {
            l->state = DEAD;
            return mc_err_set(err, MC_E_PEER, "the connection to %s broke: %s", l->peer,
                              strerror(errno));
        }
        l->sent += (size_t)k;
    }
    return MC_OK;
}

mc_status mc_link_turn(struct mc_link *l, struct mc_err *err)
{
    if (l->state == DEAD)
        return mc_err_set(err, MC_E_PEER, "the connection to %s is closed", l->peer);
    MC_TRY(flush(l, err));
    while (l->nin < sizeof l->in) {
        ssize_t k = recv(l->fd, l->in + l->nin, sizeof l->in - l->nin, MSG_DONTWAIT);
        if (k == -1 && errno == EINTR)
            continue;
        if (k == -1 && errno == EAGAIN)
            break;
        if (k <= 0) {
            if (l->state == PROVEN && l->nin > 0 && !l->eof) {
                l->eof = 1; /* first what came whole; the next turn ends it */
                break;
            }
            l->state = DEAD;
            return mc_err_set(err, MC_E_PEER, "%s closed the connection%s%s", l->peer,
                              k < 0 ? ": " : "", k < 0 ? strerror(errno) : "");
        }
        l->nin += (size_t)k;
    }
    if (l->state != PROVEN)
        MC_TRY(l->server ? server_turn(l, err) : client_turn(l, err));
    return flush(l, err);
}

int mc_link_fd(const struct mc_link *l)
{
    return l->fd;
}

int mc_link_is_proven(const struct mc_link *l)
{
    return l->state == PROVEN;
}

int mc_link_has_output(const struct mc_link *l)
{
    return l->sent < l->nout;
}

const char *mc_link_peer(const struct mc_link *l)
{
    return l->peer;
}

/* ---- who has a port ---- */

/* The inode of the listening socket on `port`, 0 when there is none. */
static unsigned long inode_of(const char *table, int port)
{
    char *text, *save = NULL;
    size_t n;
    unsigned long found = 0;
    if (mc_sys_read_file(table, (size_t)8 << 20, &text, &n, NULL) != MC_OK)
        return 0;
    for (char *line = strtok_r(text, "\n", &save); line && !found;
         line = strtok_r(NULL, "\n", &save)) {
        unsigned at = 0, st = 0;
        unsigned long inode = 0;
        if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*s %x %*s %*s %*s %*s %*s %lu", &at, &st,
                   &inode) == 3 &&
            (int)at == port && st == 0x0a /* LISTEN */)
            found = inode;
    }
    mc_free(text);
    return found;
}

static int has_socket(const char *pid, unsigned long inode)
{
    char path[300], want[40], link[64], **fd;
    int n, found = 0;
    snprintf(path, sizeof path, "/proc/%.20s/fd", pid);
    snprintf(want, sizeof want, "socket:[%lu]", inode);
    if (mc_sys_list(path, &fd, &n, NULL) != MC_OK)
        return 0;
    for (int i = 0; i < n && !found; i++) {
        snprintf(path, sizeof path, "/proc/%.20s/fd/%.20s", pid, fd[i]);
        ssize_t k = readlink(path, link, sizeof link - 1);
        found = k > 0 && (size_t)k == strlen(want) && strncmp(link, want, (size_t)k) == 0;
    }
    mc_sys_list_free(fd, n);
    return found;
}

/* ", by pid 12 (mascon)", or "" when it cannot be seen. */
static void port_owner(int port, char dst[120])
{
    char **name, path[64], *comm;
    int n;
    size_t len;
    unsigned long inode = inode_of("/proc/net/tcp", port);
    if (!inode)
        inode = inode_of("/proc/net/tcp6", port);
    dst[0] = '\0';
    if (!inode || mc_sys_list("/proc", &name, &n, NULL) != MC_OK)
        return;
    for (int i = 0; i < n && !dst[0]; i++) {
        if (name[i][0] < '1' || name[i][0] > '9' || !has_socket(name[i], inode))
            continue;
        snprintf(path, sizeof path, "/proc/%.20s/comm", name[i]);
        if (mc_sys_read_file(path, 4096, &comm, &len, NULL) != MC_OK)
            continue;
        snprintf(dst, 120, ", by pid %.20s (%.*s)", name[i], (int)strcspn(comm, "\n"), comm);
        mc_free(comm);
    }
    mc_sys_list_free(name, n);
}

/* ---- life ---- */

static mc_status make(int fd, int server, const unsigned char key[MC_LINK_KEY], struct mc_link **l,
                      struct mc_err *err)
{
    int one = 1;
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char host[64] = "?", port[8] = "?";
    struct mc_link *x = sodium_init() >= 0 ? mc_alloc(sizeof *x, "link") : NULL;
    if (!x) {
        close(fd);
        return mc_err_set(err, MC_E_NOMEM, "no memory for a connection");
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    if (getpeername(fd, (struct sockaddr *)&a, &n) == 0)
        (void)getnameinfo((struct sockaddr *)&a, n, host, sizeof host, port, sizeof port,
                          NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(x->peer, sizeof x->peer, "%s:%s", host, port);
    x->fd = fd;
    x->server = server;
    memcpy(x->key, key, MC_LINK_KEY);
    *l = x;
    return MC_OK;
}

void mc_link_close(struct mc_link *l)
{
    if (!l)
        return;
    close(l->fd);
    sodium_memzero(l->key, sizeof l->key);
    sodium_memzero(l->key_in, sizeof l->key_in);
    sodium_memzero(l->key_out, sizeof l->key_out);
    mc_free(l->out);
    mc_free(l);
}

mc_status mc_link_listen(int port, int *fd, int *bound, struct mc_err *err)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t n = sizeof a;
    int one = 1, s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s == -1)
        return mc_err_sys(err, "cannot make a socket to listen on");
    a.sin_addr.s_addr = htonl(INADDR_ANY);
    (void)setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(s, (struct sockaddr *)&a, sizeof a) == -1 || listen(s, 1024) == -1) {
        char who[120];
        int e = errno;
        close(s);
        if (e != EADDRINUSE)
            return mc_err_set(err, MC_E_MACHINE, "cannot listen on port %d: %s", port, strerror(e));
        port_owner(port, who);
        return mc_err_set(err, MC_E_MACHINE,
                          "port %d is in use%s: another run's coordinator may be there; take "
                          "another port, or none, and the system chooses one",
                          port, who);
    }
    if (getsockname(s, (struct sockaddr *)&a, &n) == -1) {
        close(s);
        return mc_err_sys(err, "getsockname");
    }
    *fd = s;
    *bound = ntohs(a.sin_port);
    return MC_OK;
}

mc_status mc_link_accept(int listen_fd, const unsigned char key[MC_LINK_KEY], struct mc_link **l,
                         struct mc_err *err)
{
    *l = NULL;
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd == -1) /* nobody, or gone again */
        return MC_OK;
    return make(fd, 1, key, l, err);
}

/* One attempt; -1: not now. */
static int try_connect(const struct addrinfo *list, int ms)
{
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        int e = 0, fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        socklen_t n = sizeof e;
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (fd == -1)
            continue;
        if (connect(fd, a->ai_addr, a->ai_addrlen) == 0 ||
            (errno == EINPROGRESS && poll(&p, 1, ms) == 1 &&
             getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &n) == 0 && e == 0))
            return fd;
        close(fd);
    }
    return -1;
}

/* The handshake, until `until`. */
static mc_status prove(struct mc_link *l, int64_t until, int (*stop)(void), struct mc_err *err)
{
    randombytes_buf(l->nonces, NONCE);
    MC_TRY(queue(l, magic, sizeof magic, err));
    MC_TRY(queue(l, l->nonces, NONCE, err));
    while (l->state != PROVEN) {
        MC_TRY(mc_link_turn(l, err));
        if (l->state == PROVEN)
            break;
        if (stop && stop())
            return mc_err_set(err, MC_E_STOPPED, "stopped while it waited for the coordinator");
        if (mc_clock_ns() >= until)
            return mc_err_set(err, MC_E_TIMEOUT, "%s took the connection and said nothing",
                              l->peer);
        struct pollfd p = {.fd = l->fd, .events = POLLIN};
        (void)poll(&p, 1, RETRY_MS);
    }
    return MC_OK;
}

mc_status mc_link_connect(const char *host, int port, const unsigned char key[MC_LINK_KEY],
                          int64_t span_ns, int (*stop)(void), struct mc_link **out,
                          struct mc_err *err)
{
    int64_t until = mc_clock_ns() + span_ns;
    const struct addrinfo want = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    struct mc_link *l = NULL;
    char service[8];
    int fd, e;
    snprintf(service, sizeof service, "%d", port);
    if ((e = getaddrinfo(host, service, &want, &list)) != 0)
        return mc_err_set(err, MC_E_MACHINE, "no address for the coordinator's host %.100s: %s",
                          host, gai_strerror(e));
    while ((fd = try_connect(list, 1000)) == -1 && mc_clock_ns() < until && !(stop && stop()))
        (void)poll(NULL, 0, RETRY_MS);
    freeaddrinfo(list);
    if (fd == -1 && stop && stop())
        return mc_err_set(err, MC_E_STOPPED, "stopped while it looked for the coordinator");
    if (fd == -1)
        return mc_err_set(err, MC_E_TIMEOUT,
                          "no coordinator took a connection at %.100s:%d within %g s", host, port,
                          (double)span_ns / 1e9);
    MC_TRY(make(fd, 0, key, &l, err));
    mc_status st = prove(l, until, stop, err);
    if (st != MC_OK) {
        mc_link_close(l);
        return mc_err_trail(err, st, __FILE__, __LINE__);
    }
    *out = l;
    return MC_OK;
}
