/* agent_run.c - the loop of one node: ranks, their sockets, signals, and the coordinator, which on
 * node 0 lives in this process. Floor 6 (agent).
 *
 * A rank is started as
 *     EXE rank RUN N [rank_args...] --page-fd F --ctl-fd C        of a run
 *     EXE COMMAND --rank N --page-fd F --ctl-fd C [rank_args...]  without one
 * RUN the run folder, N the rank's number in the world, F the descriptor of its progress page, C
 * that of its control socket. The descriptor of the run's lock is passed on too, unnamed: it only
 * has to stay open.
 *
 * I1  Ranks are forked from this, the main, thread: when it ends, by kill -9 too, the kernel kills
 *     them (spawn.c).
 * I2  Stop signals are blocked between the look at the count and ppoll, so that none is missed by
 *     the wait; but not while an event is written (mc_coord_note).
 * I3  A rank's end is seen by its pidfd, at once; where the system has none, by a poll every 20 ms.
 *     Each rank is reaped exactly once, by waitpid on its own pid.
 * I4  The page is read after the rank is dead: nobody writes to it any more.
 * I5  Nothing here waits for a rank: its socket is written without blocking, and what it does not
 *     take stays in the table until it does.
 *
 * Memory: one block of mc_alloc; a page a rank, unmapped at the end; one table of an exchange.
 * Threads: the main thread. */
#include "agent_int.h"
#include "../base/arena.h"
#include "../base/clock.h"
#include "../base/json.h"
#include "../base/log.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    MAX_RANK_ARGS = 64,
    MAX_WORDS = 10 + MAX_RANK_ARGS,
    FLIGHT_OF_FAILED = 64, /* events in an incident */
    FLIGHT_OF_KILLED = 16,
    TICK_MS = 250,
    SETTLE_TICK_MS = 20, /* while a cause is being settled */
    BLIND_POLL_MS = 20,
    PACKETS_A_TURN = 16,
    SIGNALS_TO_LEAVE = 4 /* one more than the coordinator takes to kill */
};
#define DEFAULT_GRACE_NS (INT64_C(600) * 1000000000)
#define DEFAULT_WAIT_NS  (INT64_C(120) * 1000000000)

struct rank_io {
    struct mc_page *page;
    int page_fd, ctl_fd; /* -1: none */
    struct mc_child child;
    int hello;
    uint32_t seq; /* the exchange that `sent` counts */
    int sent;     /* members of the table that the rank has been given */
};
struct runner {
    const struct mc_agent_run *cfg;
    struct mc_agent agent;
    struct mc_agent_result *res;
    int first, world;           /* this node has ranks first .. first + nranks - 1 */
    struct mc_coord_run *coord; /* NULL: on another node */
    struct mc_agent_net *net;   /* NULL: one node */
    struct mc_agent_table table;
    struct rank_io io[MC_AGENT_RANKS];
    int64_t ooms_before; /* -1: unknown */
    sigset_t while_waiting;
    int signals_seen, done;
    unsigned char packet[MC_MSG_MAX];
};

static void hear_coordinator(struct runner *r, const struct mc_msg *m);

static void to_coordinator(struct runner *r, const struct mc_msg *m)
{
    struct mc_err e = {0};
    if (!r->coord)
        mc_agent_net_to_coordinator(r->net, m);
    else if (mc_coord_hear(r->coord, 0, m, &e) != MC_OK)
        mc_log(MC_LOG_ERROR, "%s", e.msg);
}

/* From the coordinator of this process. */
static void to_node(void *arg, int node, const struct mc_msg *m)
{
    struct runner *r = arg;
    if (node <= 0)
        hear_coordinator(r, m);
    if (node != 0 && r->net)
        mc_agent_net_to_node(r->net, node, m);
}

/* ---- actions ---- */

static void feed(struct runner *r, const struct mc_agent_event *ev);

static void command_line(const struct runner *r, const char *number, const char *page,
                         const char *ctl, const char *argv[MAX_WORDS])
{
    const struct mc_agent_run *cfg = r->cfg;
    const char *const fds[4] = {"--page-fd", page, "--ctl-fd", ctl};
    int n = 0;
    argv[n++] = cfg->exe;
    argv[n++] = cfg->rd ? "rank" : cfg->command;
    argv[n++] = cfg->rd ? cfg->rd->path : "--rank";
    argv[n++] = number;
    for (int k = 0; k < 4 && !cfg->rd; k++) /* rank_args may hold a "--" */
        argv[n++] = fds[k];
    for (int k = 0; cfg->rank_args && cfg->rank_args[k]; k++) {
        MC_ASSERT(k < MAX_RANK_ARGS);
        argv[n++] = cfg->rank_args[k];
    }
    for (int k = 0; k < 4 && cfg->rd; k++)
        argv[n++] = fds[k];
    argv[n] = NULL;
}

static mc_status start_rank(struct runner *r, int i, struct mc_err *err)
{
    const struct mc_agent_run *cfg = r->cfg;
    const char *argv[MAX_WORDS];
    char number[16], page[16], ctl[16];
    int pair[2], lock = cfg->rd ? cfg->rd->lock_fd : -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == -1)
        return mc_err_sys(err, "cannot make a control socket");
    int keep[3] = {r->io[i].page_fd, pair[1], lock};
    snprintf(number, sizeof number, "%d", r->first + i);
    snprintf(page, sizeof page, "%d", r->io[i].page_fd);
    snprintf(ctl, sizeof ctl, "%d", pair[1]);
    command_line(r, number, page, ctl, argv);
    const struct mc_spawn s = {.argv = argv,
                               .keep_fds = keep,
                               .nkeep = lock >= 0 ? 3 : 2,
                               .threads = cfg->threads_per_rank};
    mc_status st = mc_spawn(&s, &r->io[i].child, err); /* I1 */
    close(pair[1]);
    if (st != MC_OK)
        close(pair[0]);
    else
        r->io[i].ctl_fd = pair[0];
    return st;
}

static void do_spawn(struct runner *r, int i)
{
    struct mc_err e = {0};
    mc_status st = start_rank(r, i, &e);
    const struct mc_agent_event ev = {.kind = st == MC_OK ? MC_AEV_SPAWNED : MC_AEV_SPAWN_FAILED,
                                      .rank = i};
    struct mc_msg m = {.kind = MC_MSG_SPAWNED, .rank = r->first + i};
    m.v[0] = r->io[i].child.pid;
    if (st != MC_OK) {
        m.kind = MC_MSG_SPAWN_FAILED;
        m.v[0] = mc_status_exit_code(st);
        m.text = e.msg;
        m.ntext = strlen(e.msg);
    }
    feed(r, &ev);
    to_coordinator(r, &m);
}

static void carry_out(struct runner *r, const struct mc_agent_action *list, int n)
{
    for (int i = 0; i < n; i++) {
        const struct mc_agent_action *a = &list[i];
        switch (a->kind) {
        case MC_AACT_SPAWN:
            do_spawn(r, a->rank);
            break;
        case MC_AACT_SIGNAL:
        case MC_AACT_KILL:
            if (r->io[a->rank].child.pid > 0) /* not reaped yet, so the pid is still its own */
                kill(r->io[a->rank].child.pid, a->sig);
            break;
        case MC_AACT_FINISH:
            r->done = 1;
            r->res->exit_code = a->exit_code;
            break;
        }
    }
}

static void feed(struct runner *r, const struct mc_agent_event *ev)
{
    struct mc_agent_action list[MC_AGENT_ACTIONS];
    int n = mc_agent_step(&r->agent, ev, mc_clock_ns(), list);
    carry_out(r, list, n);
}

/* ---- what the coordinator says ---- */

static void hear_end(struct runner *r, const struct mc_msg *m)
{
    struct mc_agent_result *res = r->res;
    res->result_valid = m->v[1] != 0;
    res->step = m->v[2];
    memcpy(&res->loss, &m->v[3], 8);
    memcpy(&res->weights_hash, &m->v[4], 8);
    snprintf(res->message, sizeof res->message, "%.*s", (int)(m->ntext < 1000 ? m->ntext : 1000),
             m->text);
    const struct mc_agent_event ev = {.kind = MC_AEV_END, .exit_code = (int)m->v[0]};
    feed(r, &ev);
}

static void give_to_rank(struct runner *r, int i);

static void hear_gathered(struct runner *r, const struct mc_msg *m)
{
    struct mc_agent_table *t = &r->table;
    struct mc_err e = {0};
    int world = r->world;
    if (t->seq != m->seq &&
        mc_agent_table_begin(t, m->seq, m->text, m->ntext, m->v[0], world, &e)) {
        mc_log(MC_LOG_ERROR, "%s", e.msg); /* the ranks' deadline ends it */
        return;
    }
    int64_t members = (int64_t)m->ndata / t->n;
    if (m->v[0] != t->n || m->v[1] != t->have || members * t->n != (int64_t)m->ndata ||
        members > world - t->have)
        return;
    memcpy(t->all + (int64_t)t->have * t->n, m->data, m->ndata);
    t->have += (int)members;
    for (int i = 0; i < r->cfg->nranks; i++)
        give_to_rank(r, i);
}

static void hear_coordinator(struct runner *r, const struct mc_msg *m)
{
    struct mc_agent_event ev = {.rank = m->rank < 0 ? -1 : m->rank - r->first};
    if (m->rank >= 0 && (ev.rank < 0 || ev.rank >= r->cfg->nranks))
        return; /* not of this node */
    switch (m->kind) {
    case MC_MSG_SPAWN:
        ev.kind = MC_AEV_SPAWN;
        break;
    case MC_MSG_SIGNAL:
        ev.kind = MC_AEV_SIGNAL;
        ev.sig = (int)m->v[0];
        break;
    case MC_MSG_KILL:
        ev.kind = MC_AEV_KILL;
        break;
    case MC_MSG_END:
        hear_end(r, m);
        return;
    case MC_MSG_GATHERED:
        hear_gathered(r, m);
        return;
    case MC_MSG_REFUSED:
        snprintf(r->res->message, sizeof r->res->message, "the coordinator refused this node: %.*s",
                 (int)(m->ntext < 900 ? m->ntext : 900), m->text);
        ev.kind = MC_AEV_END;
        ev.exit_code = mc_status_exit_code(MC_E_MACHINE);
        break;
    default: /* WELCOME */
        return;
    }
    feed(r, &ev);
}

static void lost_coordinator(void *arg, const char *why)
{
    const struct mc_agent_event ev = {.kind = MC_AEV_LOST};
    struct runner *r = arg;
    if (!r->res->message[0])
        snprintf(r->res->message, sizeof r->res->message, "the coordinator is gone: %.900s", why);
    feed(r, &ev);
}

static void hear_from_net(void *arg, const struct mc_msg *m)
{
    hear_coordinator(arg, m);
}

/* ---- control sockets ---- */

/* 0: the socket takes no more now. */
static int send_packet(struct runner *r, int i, const struct mc_msg *m)
{
    size_t n = mc_wire_write(m, r->packet, sizeof r->packet);
    struct rank_io *io = &r->io[i];
    ssize_t k;
    do
        k = send(io->ctl_fd, r->packet, n, MSG_DONTWAIT | MSG_NOSIGNAL); /* I5 */
    while (k == -1 && errno == EINTR);
    if (k == -1 && errno == EAGAIN)
        return 0;
    if (k == -1) { /* it is dying; its end comes by the pidfd */
        close(io->ctl_fd);
        io->ctl_fd = -1;
    }
    return 1;
}

static int has_more(const struct runner *r, int i)
{
    const struct rank_io *io = &r->io[i];
    return io->hello && io->ctl_fd != -1 && r->table.seq != 0 &&
           (io->seq != r->table.seq || io->sent < r->table.have);
}

static void give_to_rank(struct runner *r, int i)
{
    const struct mc_agent_table *t = &r->table;
    struct rank_io *io = &r->io[i];
    while (has_more(r, i)) {
        if (io->seq != t->seq) {
            io->seq = t->seq;
            io->sent = 0;
        }
        int64_t k = MC_MSG_DATA_MAX / t->n;
        if (k > t->have - io->sent)
            k = t->have - io->sent;
        if (k == 0)
            return;
        const struct mc_msg m = {.kind = MC_MSG_GATHERED,
                                 .rank = -1,
                                 .seq = t->seq,
                                 .v = {t->n, io->sent},
                                 .text = t->what,
                                 .ntext = strlen(t->what),
                                 .data = t->all + (int64_t)io->sent * t->n,
                                 .ndata = (size_t)(k * t->n)};
        if (!send_packet(r, i, &m))
            return;
        io->sent += (int)k;
    }
}

static void refuse(struct runner *r, int i, const char *why)
{
    const struct mc_msg m = {
        .kind = MC_MSG_REFUSED, .rank = r->first + i, .text = why, .ntext = strlen(why)};
    (void)send_packet(r, i, &m);
}

static void hear_hello(struct runner *r, int i, const struct mc_msg *m)
{
    const struct mc_agent_run *cfg = r->cfg;
    char why[300] = "";
    if (m->rank != r->first + i || m->v[0] != r->world)
        snprintf(why, sizeof why,
                 "it takes itself for rank %d of %lld, the agent for rank %d of %d", m->rank,
                 (long long)m->v[0], i, cfg->nranks);
    else if ((uint64_t)m->v[1] != cfg->recipe_hash)
        snprintf(why, sizeof why,
                 "it read recipe %016llx, the agent started %016llx: resolved.json or "
                 "schedule.txt was changed",
                 (unsigned long long)m->v[1], (unsigned long long)cfg->recipe_hash);
    else if ((uint64_t)m->v[2] != cfg->build)
        snprintf(why, sizeof why,
                 "it runs build %016llx, the agent %016llx: the program was replaced during the "
                 "start; start again",
                 (unsigned long long)m->v[2], (unsigned long long)cfg->build);
    if (why[0]) {
        refuse(r, i, why);
        return;
    }
    r->io[i].hello = 1;
    const struct mc_msg hello = {.kind = MC_MSG_RANK_HELLO, .rank = r->first + i};
    to_coordinator(r, &hello);
}

static void hear_rank(struct runner *r, int i)
{
    struct rank_io *io = &r->io[i];
    for (int turn = 0; turn < PACKETS_A_TURN && io->ctl_fd != -1; turn++) {
        unsigned char packet[MC_MSG_MAX];
        struct mc_msg m;
        struct mc_err e = {0};
        ssize_t n = recv(io->ctl_fd, packet, sizeof packet, MSG_DONTWAIT);
        if (n == -1 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) { /* closed: its end comes by the pidfd */
            close(io->ctl_fd);
            io->ctl_fd = -1;
        } else if (mc_wire_read(packet, (size_t)n, &m, &e) != MC_OK) {
            refuse(r, i, e.msg);
        } else if (m.kind == MC_MSG_HELLO && !io->hello) {
            hear_hello(r, i, &m);
        } else if (m.kind == MC_MSG_GATHER && io->hello) {
            m.rank = r->first + i;
            to_coordinator(r, &m);
        } else {
            refuse(r, i, "a message that is not a rank's to say");
        }
    }
}

/* ---- events ---- */

static void look_at_signals(struct runner *r)
{
    while (!r->done && r->signals_seen < mc_signals_count()) {
        struct mc_msg m = {.kind = MC_MSG_SIGNAL, .rank = -1};
        r->signals_seen++;
        m.v[0] = r->signals_seen == 1 ? mc_signals_pending() : mc_signals_last();
        to_coordinator(r, &m);
        if (!r->coord && r->signals_seen >= SIGNALS_TO_LEAVE)
            lost_coordinator(r, "it did not act on the stop signals");
    }
}

static void rank_ended(struct runner *r, int i, int wait_status)
{
    const struct mc_page *p = r->io[i].page; /* I4 */
    const struct mc_agent_event ev = {.kind = MC_AEV_EXITED, .rank = i};
    struct mc_agent_exit x = {.wait_status = wait_status,
                              .result_valid = atomic_load(&p->result_valid) == 1,
                              .exit_code = p->exit_code,
                              .late = r->agent.late[i],
                              .status = p->status,
                              .segment_steps = p->segment_steps,
                              .step = atomic_load(&p->step),
                              .result_step = p->result_step,
                              .phase = (enum mc_phase)atomic_load(&p->phase),
                              .loss = p->loss,
                              .weights_hash = p->weights_hash};
    struct mc_json flight;
    struct mc_msg m = {.kind = MC_MSG_EXITED, .rank = r->first + i, .text = p->message};
    x.oom = r->ooms_before >= 0 && mc_agent_oom_kills() > r->ooms_before;
    mc_json_init_grow(&flight);
    mc_flight_json(&p->flight,
                   r->agent.phase == MC_AGENT_KILLING ? FLIGHT_OF_KILLED : FLIGHT_OF_FAILED,
                   &flight, NULL);
    mc_agent_exit_pack(&x, m.v);
    m.ntext = strnlen(p->message, sizeof p->message);
    if (!flight.failed && flight.len <= MC_MSG_DATA_MAX) {
        m.data = flight.buf;
        m.ndata = flight.len;
    }
    feed(r, &ev);
    to_coordinator(r, &m);
    mc_json_fini(&flight);
}

static void look_at_ranks(struct runner *r)
{
    for (int i = 0; i < r->cfg->nranks && !r->done; i++) {
        struct rank_io *io = &r->io[i];
        int st;
        if (!r->agent.up[i])
            continue;
        if (io->ctl_fd != -1)
            hear_rank(r, i);
        give_to_rank(r, i);
        if (atomic_load(&io->page->result_valid) == 1 && r->agent.leave_by_ns[i] == 0)
            feed(r, &(struct mc_agent_event){.kind = MC_AEV_SAID, .rank = i});
        if (waitpid(io->child.pid, &st, WNOHANG) != io->child.pid) /* I3 */
            continue;
        if (io->child.pidfd != -1)
            close(io->child.pidfd);
        io->child.pidfd = -1;
        rank_ended(r, i, st);
    }
}

static void wait_for_something(struct runner *r)
{
    static struct pollfd fds[2 * MC_AGENT_RANKS + MC_AGENT_NET_FDS];
    nfds_t n = 0;
    int ms = r->coord && r->coord->coord.cause.weight != MC_CAUSE_NONE ? SETTLE_TICK_MS : TICK_MS;
    for (int i = 0; i < r->cfg->nranks; i++) {
        const struct rank_io *io = &r->io[i];
        if (!r->agent.up[i])
            continue;
        if (io->child.pidfd == -1) /* I3 */
            ms = BLIND_POLL_MS;
        else
            fds[n++] = (struct pollfd){.fd = io->child.pidfd, .events = POLLIN};
        if (io->ctl_fd != -1)
            fds[n++] = (struct pollfd){.fd = io->ctl_fd,
                                       .events = (short)(POLLIN | (has_more(r, i) ? POLLOUT : 0))};
    }
    if (r->net)
        n += (nfds_t)mc_agent_net_fds(r->net, fds + n);
    const struct timespec t = {.tv_sec = 0, .tv_nsec = ms * 1000000L};
    (void)ppoll(fds, n, &t, &r->while_waiting); /* I2; EINTR, time-out: the caller looks anyway */
}

static void loop(struct runner *r)
{
    const struct mc_agent_event tick = {.kind = MC_AEV_TICK};
    const struct mc_coord_event start = {.kind = MC_CEV_START}, beat = {.kind = MC_CEV_TICK};
    look_at_signals(r); /* what came before the first rank */
    if (r->coord)
        mc_coord_event(r->coord, &start);
    while (!r->done) {
        wait_for_something(r);
        look_at_signals(r);
        look_at_ranks(r);
        if (!r->done && r->net)
            mc_agent_net_turn(r->net);
        if (!r->done && r->coord)
            mc_coord_event(r->coord, &beat);
        if (!r->done)
            feed(r, &tick);
    }
}

/* ---- life ---- */

static mc_status open_pages(struct runner *r, struct mc_err *err)
{
    for (int i = 0; i < r->cfg->nranks; i++)
        r->io[i].page_fd = r->io[i].ctl_fd = -1;
    for (int i = 0; i < r->cfg->nranks; i++)
        MC_TRY(mc_page_create(&r->io[i].page_fd, &r->io[i].page, err));
    return MC_OK;
}

static void close_all(struct runner *r)
{
    for (int i = 0; i < r->cfg->nranks; i++) {
        struct rank_io *io = &r->io[i];
        if (io->ctl_fd != -1)
            close(io->ctl_fd);
        if (!io->page)
            continue;
        mc_page_detach(io->page);
        close(io->page_fd);
    }
    mc_agent_net_close(r->net);
    mc_free(r->table.all);
    mc_coord_destroy(r->coord);
}

static mc_status open_coordinator(struct runner *r, int nodes, int64_t wait_ns, struct mc_err *err)
{
    const struct mc_agent_run *cfg = r->cfg;
    char host[64] = "unknown";
    const struct mc_coord_cfg c = {.nodes = nodes,
                                   .world = r->world,
                                   .grace_ns = cfg->grace_ns > 0 ? cfg->grace_ns : DEFAULT_GRACE_NS,
                                   .wait_ns = wait_ns,
                                   .rd = cfg->rd,
                                   .to_node = to_node,
                                   .arg = r};
    MC_TRY(mc_coord_create(&c, &r->coord, err));
    (void)gethostname(host, sizeof host - 1);
    mc_coord_join(r->coord, 0, r->first, cfg->nranks, host);
    return MC_OK;
}

/* Where this node stands among the others, and the way to them. */
static mc_status open_world(struct runner *r, struct mc_err *err)
{
    const struct mc_agent_run *cfg = r->cfg;
    const struct mc_agent_nodes *o = cfg->nodes;
    int64_t wait_ns = cfg->wait_ns > 0 ? cfg->wait_ns : DEFAULT_WAIT_NS;
    r->first = o ? o->first : 0;
    r->world = o ? o->world : cfg->nranks;
    /* longer than the coordinator's own waits, which say what was missing */
    mc_agent_init(&r->agent, cfg->nranks, o && o->node > 0 ? 2 * wait_ns : 0);
    r->agent.leave_ns = wait_ns;
    if (!o || o->node == 0)
        MC_TRY(open_coordinator(r, o ? o->nodes : 1, wait_ns, err));
    if (!o)
        return MC_OK;
    const struct mc_agent_net_ops ops = {
        .arg = r, .coord = r->coord, .hear = hear_from_net, .lost = lost_coordinator};
    return mc_agent_net_open(cfg, wait_ns, &ops, &r->net, err);
}

static void tell_launch(const struct runner *r)
{
    char fields[96];
    if (!r->cfg->rd)
        return;
    snprintf(fields, sizeof fields, "\"segment\":%d,\"ranks\":%d,\"threads\":%d",
             r->cfg->rd->segment, r->world, r->cfg->threads_per_rank);
    mc_coord_note(r->coord, "launch", fields);
    if (!r->net)
        return;
    snprintf(fields, sizeof fields, "\"port\":%d,\"nodes\":%d", mc_agent_net_port(r->net),
             r->cfg->nodes->nodes);
    mc_coord_note(r->coord, "listening", fields);
}

mc_status mc_agent_run(const struct mc_agent_run *cfg, struct mc_agent_result *res,
                       struct mc_err *err)
{
    sigset_t stop, before;
    mc_status st = MC_OK;
    memset(res, 0, sizeof *res);
    if (cfg->nranks < 1 || cfg->nranks > MC_AGENT_RANKS)
        return mc_err_set(err, MC_E_USAGE, "ranks on one machine: 1 to %d, not %d", MC_AGENT_RANKS,
                          cfg->nranks);
    struct runner *r = mc_alloc(sizeof *r, "agent");
    if (!r)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the agent");
    r->cfg = cfg;
    r->res = res;
    mc_signals_install();
    mc_signals_second_kills(0);
    MC_TRY_GOTO(st, open_pages(r, err), out);
    MC_TRY_GOTO(st, open_world(r, err), out);
    r->ooms_before = mc_agent_oom_kills();
    mc_signals_set(&stop); /* I2 */
    pthread_sigmask(SIG_BLOCK, &stop, &before);
    r->while_waiting = before;
    if (r->coord)
        tell_launch(r);
    loop(r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
out:
    close_all(r);
    mc_free(r);
    return st;
}
