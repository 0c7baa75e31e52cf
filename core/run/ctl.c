/* ctl.c - a rank's end of the control socket to its agent. Floor 3 (run).
 *
 * The socket is one end of a local SOCK_SEQPACKET pair: a packet is one message of wire.c. The rank
 * says HELLO, then takes part in exchanges: one GATHER, then GATHERED packets until every member's
 * bytes are here. The first exchange, "start", tells every rank who the others are.
 *
 * I1  Every wait ends at its deadline, or when the agent is gone.
 * I2  An exchange that is not the one asked for (number, name, size) is MC_E_PEER: ranks that do
 *     not do the same in the same order are found, never mixed.
 * I3  Packets arrive in order of members; each member's bytes are written once.
 *
 * Memory: the ctl, with a table of who is where, constant once it is open. Threads: one;
 * mc_ctl_describe any. */
#include "ctl.h"
#include "wire.h"
#include "../base/arena.h"
#include "../base/clock.h"
#include "../base/hash.h"
#include "../base/sysio.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct who {
    int32_t pid;
    char host[60];
};
struct mc_ctl {
    int fd, rank, world;
    uint32_t seq;
    struct who *who; /* [world]; zeroed until the first exchange is over */
    unsigned char packet[MC_MSG_MAX];
};

uint64_t mc_ctl_build_id(void)
{
    struct mc_map map;
    if (mc_sys_map_ro("/proc/self/exe", &map, NULL) != MC_OK)
        return 0;
    uint64_t h = mc_hash64(map.data, (size_t)map.bytes);
    mc_sys_unmap(&map);
    return h;
}

/* Waits for `events`. MC_E_TIMEOUT at the deadline (I1). */
static mc_status wait_for(const struct mc_ctl *c, short events, const char *what,
                          int64_t deadline_ns, struct mc_err *err)
{
    for (;;) {
        int64_t left = deadline_ns - mc_clock_ns();
        if (left <= 0)
            return mc_err_set(err, MC_E_TIMEOUT,
                              "rank %d: the agent brought no answer for \"%s\" in time", c->rank,
                              what);
        struct pollfd p = {.fd = c->fd, .events = events};
        int64_t ms = left / 1000000 + 1;
        int n = poll(&p, 1, ms < 1000 ? (int)ms : 1000);
        if (n == 1)
            return MC_OK;
        if (n == -1 && errno != EINTR)
            return mc_err_sys(err, "rank %d: poll", c->rank);
    }
}

static mc_status tell(struct mc_ctl *c, const struct mc_msg *m, int64_t deadline_ns,
                      struct mc_err *err)
{
    size_t n = mc_wire_write(m, c->packet, sizeof c->packet);
    while (send(c->fd, c->packet, n, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)n) {
        if (errno == EAGAIN)
            MC_TRY(wait_for(c, POLLOUT, mc_msg_name(m->kind), deadline_ns, err));
        else if (errno != EINTR)
            return mc_err_set(err, MC_E_PEER, "rank %d: the agent is gone (%s)", c->rank,
                              strerror(errno));
    }
    return MC_OK;
}

static mc_status hear(struct mc_ctl *c, const char *what, int64_t deadline_ns, struct mc_msg *m,
                      struct mc_err *err)
{
    ssize_t n;
    for (;;) {
        n = recv(c->fd, c->packet, sizeof c->packet, MSG_DONTWAIT);
        if (n >= 0)
            break;
        if (errno == EAGAIN)
            MC_TRY(wait_for(c, POLLIN, what, deadline_ns, err));
        else if (errno != EINTR)
            return mc_err_set(err, MC_E_PEER, "rank %d: the agent is gone (%s)", c->rank,
                              strerror(errno));
    }
    if (n == 0)
        return mc_err_set(err, MC_E_PEER, "rank %d: the agent closed the control socket", c->rank);
    MC_TRY(mc_wire_read(c->packet, (size_t)n, m, err));
    if (m->kind == MC_MSG_REFUSED)
        return mc_err_set(err, MC_E_MACHINE, "rank %d was refused: %.*s", c->rank, (int)m->ntext,
                          m->text);
    return MC_OK;
}

mc_status mc_ctl_exchange(void *arg, const char *what, const void *mine, size_t n, void *all,
                          int64_t deadline_ns, struct mc_err *err)
{
    struct mc_ctl *c = arg;
    int64_t until = mc_clock_ns() + deadline_ns;
    int have = 0;
    if (n == 0 || n > MC_MSG_DATA_MAX)
        return mc_err_set(err, MC_E_BUG, "exchange \"%s\": %zu bytes a rank, 1 to %d go", what, n,
                          MC_MSG_DATA_MAX);
    struct mc_msg m = {.kind = MC_MSG_GATHER,
                       .rank = c->rank,
                       .seq = ++c->seq,
                       .v = {(int64_t)n},
                       .text = what,
                       .ntext = strlen(what),
                       .data = mine,
                       .ndata = n};
    MC_TRY(tell(c, &m, until, err));
    while (have < c->world) {
        MC_TRY(hear(c, what, until, &m, err));
        size_t members = m.ndata / n;
        if (m.kind != MC_MSG_GATHERED || m.seq != c->seq || m.v[0] != (int64_t)n ||
            m.v[1] != have || members == 0 || members * n != m.ndata ||
            members > (size_t)(c->world - have)) /* I2, I3 */
            return mc_err_set(err, MC_E_PEER,
                              "rank %d: \"%s\" (exchange %u) does not answer exchange %u, \"%s\"",
                              c->rank, mc_msg_name(m.kind), m.seq, c->seq, what);
        memcpy((char *)all + (size_t)have * n, m.data, m.ndata);
        have += (int)members;
    }
    return MC_OK;
}

const char *mc_ctl_describe(void *arg, int r)
{
    static _Thread_local char text[128];
    const struct mc_ctl *c = arg;
    if (r < 0 || r >= c->world || c->who[r].pid == 0)
        snprintf(text, sizeof text, "rank %d", r);
    else
        snprintf(text, sizeof text, "rank %d (pid %d on %.*s)", r, (int)c->who[r].pid,
                 (int)strnlen(c->who[r].host, sizeof c->who[r].host), c->who[r].host);
    return text;
}

mc_status mc_ctl_open(const struct mc_ctl_cfg *cfg, struct mc_ctl **ctl, struct mc_err *err)
{
    struct who me = {.pid = (int32_t)getpid()};
    mc_status st = MC_OK;
    struct mc_ctl *c = mc_alloc(sizeof *c, "control socket");
    if (!c)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the control socket");
    c->fd = cfg->fd;
    c->rank = cfg->rank;
    c->world = cfg->world;
    c->who = mc_alloc((size_t)cfg->world * sizeof *c->who, "ranks and their hosts");
    if (!c->who) {
        st = mc_err_set(err, MC_E_NOMEM, "no memory for a table of %d ranks", cfg->world);
        goto fail;
    }
    const struct mc_msg hello = {
        .kind = MC_MSG_HELLO,
        .rank = cfg->rank,
        .v = {cfg->world, (int64_t)cfg->recipe_hash, (int64_t)cfg->build, getpid()}};
    MC_TRY_GOTO(st, tell(c, &hello, mc_clock_ns() + cfg->deadline_ns, err), fail);
    if (gethostname(me.host, sizeof me.host - 1) == -1)
        snprintf(me.host, sizeof me.host, "unknown");
    MC_TRY_GOTO(st, mc_ctl_exchange(c, "start", &me, sizeof me, c->who, cfg->deadline_ns, err),
                fail);
    *ctl = c;
    return MC_OK;
fail:
    mc_ctl_close(c);
    return st;
}

void mc_ctl_close(struct mc_ctl *c)
{
    if (!c)
        return;
    close(c->fd);
    mc_free(c->who);
    mc_free(c);
}
