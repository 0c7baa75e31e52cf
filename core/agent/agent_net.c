/* agent_net.c - the links between agents and the coordinator. Floor 6 (agent).
 *
 * Node 0 listens; an agent that connects proves the key (run/link.c) and says HELLO with what must
 * be the same on all of a run: number of nodes, world, run id, recipe hash, build. Then it has
 * joined, and its messages are the coordinator's to hear.
 *
 * I1  Who does not fit is told why in one REFUSED and dropped; the coordinator waits on for those
 *     that do. Two runs can never join, whatever port they meet on.
 * I2  A connection that has not joined in HELLO_NS is dropped; at most WAITING of them are held, so
 *     that nobody without the key keeps agents out for long.
 * I3  A node joins once, with ranks that no other node has; a link that breaks is the node's end.
 *
 * Memory: one link a node. Threads: the agent's main thread. */
#include "agent_int.h"
#include "../base/arena.h"
#include "../base/clock.h"
#include "../base/json.h"
#include "../base/log.h"
#include "../run/link.h"
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { WAITING = 64, VERSION = 1, TOLD = 100 /* refusals in events.jsonl */ };
#define HELLO_NS (INT64_C(10) * 1000000000)
#define DRAIN_NS (INT64_C(2) * 1000000000)

struct conn {
    struct mc_link *l;
    int node; /* -1: has not joined */
    int refused;
    int64_t since_ns;
};
struct mc_agent_net {
    const struct mc_agent_run *cfg;
    struct mc_agent_net_ops ops;
    int listen_fd, port; /* node 0 */
    struct conn conn[MC_COORD_NODES + WAITING];
    int nconn, told;
    struct mc_link *up; /* node > 0; NULL once it is lost */
};

/* ---- node 0 ---- */

static void tell_refusal(struct mc_agent_net *n, const char *peer, const char *why)
{
    char text[900];
    struct mc_json j;
    mc_log(MC_LOG_WARN, "%s may not join: %s", peer, why);
    if (n->told++ >= TOLD)
        return;
    mc_json_init_fixed(&j, text, sizeof text - 1);
    mc_json_open(&j, NULL, '{');
    mc_json_str(&j, "peer", peer);
    mc_json_str(&j, "message", why);
    mc_json_close(&j, '}');
    if (j.failed)
        return;
    text[j.len - 1] = '\0'; /* members without braces */
    mc_coord_note(n->ops.coord, "refused", text + 1);
}

/* Why this HELLO does not fit; 0: it does. */
static int mismatch(const struct mc_agent_net *n, const struct mc_msg *m, char why[400])
{
    const struct mc_agent_run *cfg = n->cfg;
    const struct mc_agent_nodes *own = cfg->nodes;
    const struct mc_coord *c = &n->ops.coord->coord;
    int64_t node = m->v[0], first = m->v[2], count = m->v[3];
    why[0] = '\0';
    if (m->seq != VERSION)
        return snprintf(why, 400, "it speaks version %u of the protocol, the coordinator %d",
                        m->seq, VERSION);
    if (m->ndata != strlen(own->run_id) || memcmp(m->data, own->run_id, m->ndata) != 0)
        return snprintf(why, 400, "it belongs to run \"%.*s\", the coordinator to run \"%.100s\"",
                        (int)(m->ndata < 100 ? m->ndata : 100), (const char *)m->data, own->run_id);
    if ((uint64_t)m->v[5] != cfg->recipe_hash)
        return snprintf(why, 400, "its recipe is %016llx, the coordinator's %016llx",
                        (unsigned long long)m->v[5], (unsigned long long)cfg->recipe_hash);
    if ((uint64_t)m->v[6] != cfg->build)
        return snprintf(why, 400, "its program is build %016llx, the coordinator's %016llx",
                        (unsigned long long)m->v[6], (unsigned long long)cfg->build);
    if (m->v[1] != own->nodes || m->v[4] != own->world)
        return snprintf(why, 400, "it counts %lld nodes and %lld ranks, the coordinator %d and %d",
                        (long long)m->v[1], (long long)m->v[4], own->nodes, own->world);
    if (node < 1 || node >= own->nodes || first < 0 || count < 1 || count > MC_AGENT_RANKS ||
        first > own->world - count)
        return snprintf(why, 400, "node %lld with ranks %lld to %lld is not of this run",
                        (long long)node, (long long)first, (long long)(first + count - 1));
    for (int k = 0; k < own->nodes; k++) /* I3 */
        if (c->node_joined[k] && (k == node || (first < c->node_first[k] + c->node_count[k] &&
                                                c->node_first[k] < first + count)))
            return snprintf(why, 400, "node %d has joined already, with ranks %d to %d", k,
                            c->node_first[k], c->node_first[k] + c->node_count[k] - 1);
    if (c->phase != MC_COORD_IDLE && c->phase != MC_COORD_JOINING)
        return snprintf(why, 400, "the run has started without it");
    return 0;
}

static void hear_agent_hello(struct mc_agent_net *n, struct conn *c, const struct mc_msg *m)
{
    char why[400], host[64];
    if (m->kind != MC_MSG_HELLO)
        snprintf(why, sizeof why, "it says \"%s\" before hello", mc_msg_name(m->kind));
    else if (!mismatch(n, m, why)) {
        const struct mc_msg welcome = {.kind = MC_MSG_WELCOME, .rank = -1};
        c->node = (int)m->v[0];
        snprintf(host, sizeof host, "%.*s", (int)(m->ntext < 60 ? m->ntext : 60), m->text);
        (void)mc_link_send(c->l, &welcome, NULL);
        mc_coord_join(n->ops.coord, c->node, (int)m->v[2], (int)m->v[3], host);
        return;
    }
    const struct mc_msg no = {
        .kind = MC_MSG_REFUSED, .rank = -1, .text = why, .ntext = strlen(why)}; /* I1 */
    (void)mc_link_send(c->l, &no, NULL);
    c->refused = 1;
    tell_refusal(n, mc_link_peer(c->l), why);
}

static void drop(struct mc_agent_net *n, int i)
{
    struct conn c = n->conn[i];
    n->conn[i] = n->conn[--n->nconn];
    mc_link_close(c.l);
    if (c.node < 0 || n->ops.coord->coord.phase == MC_COORD_DONE)
        return;
    const struct mc_coord_event ev = {.kind = MC_CEV_LOST, .node = c.node}; /* I3 */
    mc_coord_event(n->ops.coord, &ev);
}

/* 0: it is to be dropped. */
static int turn_conn(struct mc_agent_net *n, struct conn *c)
{
    struct mc_err e = {0}, gone = {0};
    struct mc_msg m;
    mc_status st = mc_link_turn(c->l, &gone);
    while (!c->refused && mc_link_next(c->l, &m, &e)) {
        if (c->node < 0)
            hear_agent_hello(n, c, &m);
        else if (mc_coord_hear(n->ops.coord, c->node, &m, &e) != MC_OK)
            break;
    }
    if (e.code == MC_OK && st == MC_OK)
        return c->node >= 0 || mc_clock_ns() - c->since_ns < HELLO_NS; /* I2 */
    if (c->node >= 0)
        mc_log(MC_LOG_WARN, "node %d: %s", c->node, e.code != MC_OK ? e.msg : gone.msg);
    else if (!c->refused)
        tell_refusal(n, mc_link_peer(c->l), e.code != MC_OK ? e.msg : gone.msg);
    return 0;
}

static void accept_all(struct mc_agent_net *n)
{
    struct mc_err e = {0};
    int waiting = 0;
    for (int i = 0; i < n->nconn; i++)
        waiting += n->conn[i].node < 0;
    while (waiting++ < WAITING) { /* I2 */
        struct mc_link *l;
        if (mc_link_accept(n->listen_fd, n->cfg->nodes->key, &l, &e) != MC_OK)
            mc_log(MC_LOG_ERROR, "%s", e.msg);
        if (!l)
            return;
        n->conn[n->nconn++] = (struct conn){.l = l, .node = -1, .since_ns = mc_clock_ns()};
    }
}

void mc_agent_net_to_node(struct mc_agent_net *n, int node, const struct mc_msg *m)
{
    for (int i = 0; i < n->nconn; i++) {
        struct mc_err e = {0};
        if (n->conn[i].node < 0 || (node >= 0 && n->conn[i].node != node))
            continue;
        if (mc_link_send(n->conn[i].l, m, &e) != MC_OK)
            mc_log(MC_LOG_WARN, "node %d: %s", n->conn[i].node, e.msg); /* its turn drops it */
    }
}

/* ---- node > 0 ---- */

static void lose(struct mc_agent_net *n, const char *why)
{
    mc_link_close(n->up);
    n->up = NULL;
    n->ops.lost(n->ops.arg, why);
}

static void turn_up(struct mc_agent_net *n)
{
    struct mc_err e = {0}, gone = {0};
    struct mc_msg m;
    mc_status st = mc_link_turn(n->up, &gone);
    while (n->up && mc_link_next(n->up, &m, &e)) /* hearing may lose it */
        n->ops.hear(n->ops.arg, &m);
    if (n->up && (e.code != MC_OK || st != MC_OK))
        lose(n, e.code != MC_OK ? e.msg : gone.msg);
}

void mc_agent_net_to_coordinator(struct mc_agent_net *n, const struct mc_msg *m)
{
    struct mc_err e = {0};
    if (n->up && mc_link_send(n->up, m, &e) != MC_OK)
        lose(n, e.msg);
}

static int stopped(void)
{
    return mc_signals_pending() != 0;
}

static mc_status say_hello(struct mc_agent_net *n, int64_t wait_ns, struct mc_err *err)
{
    const struct mc_agent_run *cfg = n->cfg;
    const struct mc_agent_nodes *o = cfg->nodes;
    char host[64] = "unknown";
    (void)gethostname(host, sizeof host - 1);
    MC_TRY(mc_link_connect(o->coordinator, o->port, o->key, wait_ns, stopped, &n->up, err));
    const struct mc_msg hello = {.kind = MC_MSG_HELLO,
                                 .rank = -1,
                                 .seq = VERSION,
                                 .v = {o->node, o->nodes, o->first, cfg->nranks, o->world,
                                       (int64_t)cfg->recipe_hash, (int64_t)cfg->build},
                                 .text = host,
                                 .ntext = strlen(host),
                                 .data = o->run_id,
                                 .ndata = strlen(o->run_id)};
    return mc_link_send(n->up, &hello, err);
}

/* ---- both ---- */

int mc_agent_net_port(const struct mc_agent_net *n)
{
    return n->port;
}

static struct pollfd watch(const struct mc_link *l)
{
    return (struct pollfd){.fd = mc_link_fd(l),
                           .events = (short)(POLLIN | (mc_link_has_output(l) ? POLLOUT : 0))};
}

int mc_agent_net_fds(const struct mc_agent_net *n, struct pollfd *fds)
{
    int k = 0;
    if (n->up)
        fds[k++] = watch(n->up);
    if (n->listen_fd != -1)
        fds[k++] = (struct pollfd){.fd = n->listen_fd, .events = POLLIN};
    for (int i = 0; i < n->nconn; i++)
        fds[k++] = watch(n->conn[i].l);
    return k;
}

void mc_agent_net_turn(struct mc_agent_net *n)
{
    if (n->up)
        turn_up(n);
    if (n->listen_fd == -1)
        return;
    accept_all(n);
    for (int i = n->nconn - 1; i >= 0; i--)
        if (!turn_conn(n, &n->conn[i]))
            drop(n, i);
}

static int has_output(const struct mc_agent_net *n)
{
    int any = n->up && mc_link_has_output(n->up);
    for (int i = 0; i < n->nconn; i++)
        any |= mc_link_has_output(n->conn[i].l);
    return any;
}

void mc_agent_net_close(struct mc_agent_net *n)
{
    if (!n)
        return;
    for (int64_t until = mc_clock_ns() + DRAIN_NS; has_output(n) && mc_clock_ns() < until;) {
        for (int i = n->nconn - 1; i >= 0; i--)
            if (mc_link_turn(n->conn[i].l, NULL) != MC_OK)
                drop(n, i);
        if (n->up && mc_link_turn(n->up, NULL) != MC_OK)
            break;
        if (has_output(n))
            (void)poll(NULL, 0, 10);
    }
    for (int i = 0; i < n->nconn; i++)
        mc_link_close(n->conn[i].l);
    mc_link_close(n->up);
    if (n->listen_fd != -1)
        close(n->listen_fd);
    mc_free(n);
}

mc_status mc_agent_net_open(const struct mc_agent_run *cfg, int64_t wait_ns,
                            const struct mc_agent_net_ops *ops, struct mc_agent_net **out,
                            struct mc_err *err)
{
    struct mc_agent_net *n = mc_alloc(sizeof *n, "links of the agents");
    if (!n)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the links of the agents");
    n->cfg = cfg;
    n->ops = *ops;
    n->listen_fd = -1;
    mc_status st = cfg->nodes->node == 0
                       ? mc_link_listen(cfg->nodes->port, &n->listen_fd, &n->port, err)
                       : say_hello(n, wait_ns, err);
    if (st != MC_OK) {
        mc_agent_net_close(n);
        return mc_err_trail(err, st, __FILE__, __LINE__);
    }
    *out = n;
    return MC_OK;
}
