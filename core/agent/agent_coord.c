/* agent_coord.c - drives the coordinator of coord_step.c. Floor 6 (agent).
 *
 * It turns messages of agents into events, carries the actions out as messages to agents, keeps
 * what ranks said and how they ended, and finds the words for it.
 *
 * I1  A node speaks for its own ranks only; all else drops it.
 * I2  The members of an exchange give the same name and the same number of bytes, or the one that
 *     differs is the cause.
 * I3  What cannot be written to the run folder (a full disk) is logged, unless the folder is gone,
 *     and does not change what happens to the ranks.
 * I4  An exchange leaves as a star: nodes x world x n bytes from here.
 * I5  Stop signals are let through while an event is written: two of them are told apart by the
 *     time between their deliveries (spawn.c), which must not be that of a slow disk.
 *
 * Memory: a record a rank, with its flight recorder's last events as text; one table of an
 * exchange. Threads: the agent's main thread. */
#include "agent_int.h"
#include "../base/arena.h"
#include "../base/clock.h"
#include "../base/json.h"
#include "../base/log.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct mc_coord_rank {
    int node, pid, exited;
    struct mc_agent_exit end;
    char message[1024];
    char *flight; /* JSON array, or NULL */
};
enum { NAMED_MISSING = 6 };

mc_status mc_agent_table_begin(struct mc_agent_table *t, uint32_t seq, const char *what,
                               size_t nwhat, int64_t n, int world, struct mc_err *err)
{
    if (n < 1 || n > MC_MSG_DATA_MAX)
        return mc_err_set(err, MC_E_PEER, "an exchange of %lld bytes a rank", (long long)n);
    size_t need = (size_t)n * (size_t)world;
    if (need > t->cap) {
        unsigned char *p = mc_grow(t->all, t->cap, need, "exchange among ranks");
        if (!p)
            return mc_err_set(err, MC_E_NOMEM, "no memory for an exchange of %zu bytes", need);
        t->all = p;
        t->cap = need;
    }
    t->seq = seq;
    t->n = n;
    t->have = 0;
    snprintf(t->what, sizeof t->what, "%.*s", (int)(nwhat < 31 ? nwhat : 31), what);
    return MC_OK;
}

void mc_coord_note(const struct mc_coord_run *c, const char *kind, const char *fields)
{
    struct mc_err e = {0};
    sigset_t stop, before;
    if (!c->rd)
        return;
    mc_signals_set(&stop);
    pthread_sigmask(SIG_UNBLOCK, &stop, &before);            /* I5 */
    if (mc_rundir_event(c->rd, kind, fields, &e) != MC_OK && /* I3 */
        mc_rundir_held(c->rd, NULL) == MC_OK)
        mc_log(MC_LOG_ERROR, "%s", e.msg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---- words ---- */

/* "rank 3 (pid 12 on node7)" and, with where, ", in phase step of step 7" */
static int name_rank(const struct mc_coord_run *c, int rank, int where, char *dst, size_t cap)
{
    const struct mc_coord_rank *r = &c->rank[rank];
    int n = snprintf(dst, cap, "rank %d (pid %d on %s", rank, r->pid,
                     r->node >= 0 ? c->host[r->node] : "a node that did not come");
    if (n > 0 && (size_t)n < cap && where && r->exited)
        n += snprintf(dst + n, cap - (size_t)n, ", in phase %s of step %lld",
                      mc_phase_name(r->end.phase), (long long)r->end.step);
    if (n > 0 && (size_t)n < cap)
        n += snprintf(dst + n, cap - (size_t)n, ")");
    return n;
}

static void describe_end(const struct mc_coord_run *c, int rank, const char *cls, char *dst,
                         size_t cap)
{
    const struct mc_coord_rank *r = &c->rank[rank];
    int st = r->end.wait_status;
    char how[120];
    if (WIFSIGNALED(st))
        snprintf(how, sizeof how, "was killed by signal %d (%s)", WTERMSIG(st),
                 strsignal(WTERMSIG(st)));
    else if (r->end.result_valid)
        snprintf(how, sizeof how, "ended with exit code %d", WEXITSTATUS(st));
    else
        snprintf(how, sizeof how, "ended with exit code %d and left no result", WEXITSTATUS(st));
    snprintf(dst, cap, "rank %d (pid %d on %s) %s in phase %s of step %lld%s", rank, r->pid,
             c->host[r->node], how, mc_phase_name(r->end.phase), (long long)r->end.step,
             strcmp(cls, "oom") == 0 ? "; the kernel's out-of-memory killer was at work: use a "
                                       "smaller microbatch or a machine with more memory"
                                     : "");
}

/* Who was waited for, and for what. */
static void describe_missing(const struct mc_coord_run *c, char *dst, size_t cap)
{
    const struct mc_coord *k = &c->coord;
    int missing = 0, total = k->wait == MC_WAIT_NODES ? k->nodes : k->world;
    size_t n = 0;
    dst[0] = '\0';
    for (int i = 0; i < total; i++) {
        char one[200];
        if (k->wait == MC_WAIT_NODES ? !mc_coord_misses_node(k, i) : !mc_coord_misses_rank(k, i))
            continue;
        if (k->wait == MC_WAIT_NODES)
            snprintf(one, sizeof one, "node %d", i);
        else
            name_rank(c, i, 1, one, sizeof one);
        if (missing++ < NAMED_MISSING && n < cap)
            n += (size_t)snprintf(dst + n, cap - n, "%s%s", missing > 1 ? ", " : "", one);
    }
    if (missing > NAMED_MISSING && n < cap)
        n += (size_t)snprintf(dst + n, cap - n, " and %d more", missing - NAMED_MISSING);
    double s = (double)k->wait_ns / 1e9;
    if (n >= cap)
        return;
    if (k->wait == MC_WAIT_NODES)
        snprintf(dst + n, cap - n, ": %d of %d agents did not come within %g s", missing, total, s);
    else if (k->wait == MC_WAIT_HELLO)
        snprintf(dst + n, cap - n, ": %d of %d ranks did not say hello within %g s of their start",
                 missing, total, s);
    else
        snprintf(dst + n, cap - n, ": %d of %d ranks did not take part in \"%s\" within %g s",
                 missing, total, c->table.what, s);
}

/* witness: whose words name a laggard; -1 else. */
static void describe(const struct mc_coord_run *c, const char *cls, int witness, char *dst,
                     size_t cap)
{
    const struct mc_coord_cause *k = &c->coord.cause;
    const struct mc_coord_rank *r = k->rank >= 0 ? &c->rank[k->rank] : NULL;
    char who[400];
    if (strcmp(cls, "rendezvous") == 0) {
        describe_missing(c, dst, cap);
    } else if (witness >= 0) {
        name_rank(c, k->rank, 1, who, sizeof who);
        snprintf(dst, cap, "%s came to a standstill and was killed; rank %d says: %.800s", who,
                 witness, c->rank[witness].message);
    } else if (strcmp(cls, "stop_timeout") == 0) {
        name_rank(c, k->rank, 1, who, sizeof who);
        snprintf(dst, cap, "%s had not ended %lld s after it was asked to and was killed", who,
                 (long long)(c->coord.stop_ns / 1000000000));
    } else if (strcmp(cls, "exit_timeout") == 0) {
        name_rank(c, k->rank, 1, who, sizeof who);
        snprintf(dst, cap,
                 "%s had done its work (exit code %d) and did not end within %g s: it was killed; "
                 "what is committed is safe",
                 who, r->end.exit_code, (double)c->coord.wait_ns / 1e9);
    } else if (strcmp(cls, "killed_by_user") == 0) {
        snprintf(dst, cap, "killed at the %d. stop signal, before the ranks had ended",
                 c->coord.signals);
    } else if (strcmp(cls, "node_lost") == 0) {
        snprintf(dst, cap, "the connection to the agent of node %d (%s, ranks %d-%d) broke",
                 k->node, c->host[k->node], k->rank, k->rank + c->coord.node_count[k->node] - 1);
    } else if (r && r->message[0]) {
        snprintf(dst, cap, "%s", r->message);
    } else if (r) {
        describe_end(c, k->rank, cls, dst, cap);
    } else {
        snprintf(dst, cap, "%s", cls);
    }
}

/* ---- the incident ---- */

static void others(const struct mc_coord_run *c, struct mc_json *j)
{
    mc_json_open(j, NULL, '[');
    for (int i = 0; i < c->coord.world; i++) {
        const struct mc_coord_rank *r = &c->rank[i];
        char how[40] = "not known";
        if (i == c->coord.cause.rank || r->pid == 0)
            continue;
        if (r->exited && WIFSIGNALED(r->end.wait_status))
            snprintf(how, sizeof how, "signal %d", WTERMSIG(r->end.wait_status));
        else if (r->exited)
            snprintf(how, sizeof how, "exit code %d", WEXITSTATUS(r->end.wait_status));
        mc_json_open(j, NULL, '{');
        mc_json_i64(j, "rank", i);
        mc_json_i64(j, "pid", r->pid);
        mc_json_str(j, "node", r->node >= 0 ? c->host[r->node] : NULL);
        mc_json_str(j, "ended", how);
        mc_json_str(j, "message", r->message);
        mc_json_str(j, "phase", mc_phase_name(r->end.phase));
        mc_json_i64(j, "step", r->end.step);
        mc_json_raw(j, "flight", r->flight ? r->flight : "[]");
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
}

/* Ranks that waited in vain have said so and left. Who said nothing is the one they waited for; -1:
 * cannot be told. The cause becomes that rank, in the words of the one that noticed it. */
static int name_laggard(struct mc_coord_run *c)
{
    struct mc_coord_cause *k = &c->coord.cause;
    int witness = k->rank;
    if (strcmp(k->cls, "timeout") != 0)
        return -1;
    for (int r = 0; r < c->coord.world; r++) {
        if (c->rank[r].end.result_valid)
            continue;
        k->cls = "laggard";
        k->rank = r;
        return witness;
    }
    return -1;
}

static void do_incident(struct mc_coord_run *c)
{
    const int witness = name_laggard(c);
    const struct mc_coord_cause *k = &c->coord.cause;
    const struct mc_coord_rank *r = k->rank >= 0 ? &c->rank[k->rank] : NULL;
    const char *cls = k->cls;
    struct mc_err e = {0};
    struct mc_json rest;
    char text[1400], fields[96];
    int number = 0, node = r ? r->node : k->node;
    int64_t step = r ? r->end.step : -1;
    if (r && strcmp(cls, "rank_death") == 0 && WIFSIGNALED(r->end.wait_status) &&
        WTERMSIG(r->end.wait_status) == 9 /* SIGKILL */ && r->end.oom)
        cls = "oom";
    describe(c, cls, witness, text, sizeof text);
    for (int i = 0; i < c->coord.world && !r; i++)
        step = c->rank[i].end.step > step ? c->rank[i].end.step : step;
    mc_json_init_grow(&rest);
    if (c->coord.world > 1)
        others(c, &rest);
    const struct mc_incident in = {.cls = cls,
                                   .rank = k->rank,
                                   .pid = r ? r->pid : (int)getpid(),
                                   .node = node >= 0 ? c->host[node] : c->host[0],
                                   .message = text,
                                   .step = step,
                                   .flight = r ? r->flight : NULL,
                                   .others = rest.len > 0 && !rest.failed ? rest.buf : NULL};
    if (c->rd && mc_rundir_incident(c->rd, &in, &number, &e) != MC_OK && /* I3 */
        mc_rundir_held(c->rd, NULL) == MC_OK)
        mc_log(MC_LOG_ERROR, "%s", e.msg);
    mc_json_fini(&rest);
    snprintf(fields, sizeof fields, "\"number\":%d,\"class\":\"%s\",\"rank\":%d", number, cls,
             k->rank);
    mc_coord_note(c, "incident", fields);
    snprintf(c->message, sizeof c->message, "%.1000s", text);
}

/* ---- actions ---- */

static void send_plain(struct mc_coord_run *c, enum mc_msg_kind kind, int rank, int64_t v)
{
    const struct mc_msg m = {.kind = kind, .rank = rank, .v = {v}};
    c->to_node(c->arg, rank >= 0 ? c->rank[rank].node : -1, &m);
}

static void hand_out(struct mc_coord_run *c, uint32_t seq)
{
    const struct mc_agent_table *t = &c->table;
    int64_t chunk = MC_MSG_DATA_MAX / t->n;
    for (int64_t i = 0; i < c->coord.world; i += chunk) {
        int64_t k = c->coord.world - i < chunk ? c->coord.world - i : chunk;
        const struct mc_msg m = {.kind = MC_MSG_GATHERED,
                                 .rank = -1,
                                 .seq = seq,
                                 .v = {t->n, i},
                                 .text = t->what,
                                 .ntext = strlen(t->what),
                                 .data = t->all + i * t->n,
                                 .ndata = (size_t)(k * t->n)};
        c->to_node(c->arg, -1, &m); /* I4 */
    }
}

static void do_finish(struct mc_coord_run *c, int exit_code)
{
    const struct mc_coord_rank *zero = &c->rank[0];
    struct mc_msg m = {.kind = MC_MSG_END, .rank = -1, .v = {exit_code}};
    char fields[96];
    if (!c->message[0] && zero->end.result_valid)
        snprintf(c->message, sizeof c->message, "%s", zero->message);
    m.v[1] = zero->end.result_valid;
    m.v[2] = zero->end.result_valid ? zero->end.result_step : zero->end.step;
    memcpy(&m.v[3], &zero->end.loss, 8);
    memcpy(&m.v[4], &zero->end.weights_hash, 8);
    m.text = c->message;
    m.ntext = strlen(c->message);
    snprintf(fields, sizeof fields, "\"exit\":%d,\"step\":%lld", exit_code, (long long)m.v[2]);
    mc_coord_note(c, "end", fields);
    c->to_node(c->arg, -1, &m);
}

void mc_coord_event(struct mc_coord_run *c, const struct mc_coord_event *ev)
{
    struct mc_coord_action list[MC_COORD_ACTIONS];
    int n = mc_coord_step(&c->coord, ev, mc_clock_ns(), list);
    for (int i = 0; i < n; i++) {
        const struct mc_coord_action *a = &list[i];
        switch (a->kind) {
        case MC_CACT_SPAWN:
            send_plain(c, MC_MSG_SPAWN, -1, 0);
            break;
        case MC_CACT_SIGNAL:
            send_plain(c, MC_MSG_SIGNAL, a->rank, a->sig);
            break;
        case MC_CACT_KILL:
            send_plain(c, MC_MSG_KILL, a->rank, 0);
            break;
        case MC_CACT_GATHERED:
            hand_out(c, a->seq);
            break;
        case MC_CACT_INCIDENT:
            do_incident(c);
            break;
        case MC_CACT_FINISH:
            do_finish(c, a->exit_code);
            break;
        }
    }
}

/* ---- messages ---- */

static void keep_text(char dst[1024], const struct mc_msg *m)
{
    size_t n = m->ntext < 1023 ? m->ntext : 1023;
    memcpy(dst, m->text, n);
    dst[n] = '\0';
}

static void hear_exited(struct mc_coord_run *c, const struct mc_msg *m)
{
    struct mc_coord_rank *r = &c->rank[m->rank];
    if (r->exited)
        return;
    mc_agent_exit_unpack(m->v, &r->end);
    if ((unsigned)r->end.phase > MC_PHASE_EXIT)
        r->end.phase = MC_PHASE_START;
    r->exited = 1;
    if (!r->message[0]) /* else what broke the protocol, which the rank does not know */
        keep_text(r->message, m);
    json_t *flight = json_loadb(m->data, m->ndata, 0, NULL); /* a peer's bytes */
    if (json_is_array(flight) && !r->flight && (r->flight = mc_alloc(m->ndata + 1, "flight")))
        memcpy(r->flight, m->data, m->ndata);
    json_decref(flight);
    const struct mc_coord_event ev = {.kind = MC_CEV_EXITED,
                                      .rank = m->rank,
                                      .wait_status = r->end.wait_status,
                                      .result_valid = r->end.result_valid,
                                      .exit_code = r->end.exit_code,
                                      .has_message = r->message[0] != 0,
                                      .status = r->end.status,
                                      .late = r->end.late};
    mc_coord_event(c, &ev);
}

static mc_status hear_gather(struct mc_coord_run *c, const struct mc_msg *m, struct mc_err *err)
{
    struct mc_agent_table *t = &c->table;
    struct mc_coord_event ev = {.kind = MC_CEV_GATHER, .rank = m->rank, .seq = m->seq};
    if (m->v[0] != (int64_t)m->ndata)
        return mc_err_set(err, MC_E_PEER, "a part of an exchange says %lld bytes and has %zu",
                          (long long)m->v[0], m->ndata);
    if (m->seq == c->coord.seq) {
        if (t->seq != m->seq)
            MC_TRY(
                mc_agent_table_begin(t, m->seq, m->text, m->ntext, m->v[0], c->coord.world, err));
        size_t shown = strlen(t->what);
        if (t->n != m->v[0] || strncmp(t->what, m->text, shown < m->ntext ? shown : m->ntext)) {
            snprintf(c->rank[m->rank].message, 1024,
                     "rank %d takes part in exchange \"%.*s\" with %lld bytes, the others in "
                     "\"%s\" with %lld: ranks must be of one build",
                     m->rank, (int)(m->ntext < 31 ? m->ntext : 31), m->text, (long long)m->v[0],
                     t->what, (long long)t->n); /* I2 */
            ev.kind = MC_CEV_PROTOCOL;
        } else {
            memcpy(t->all + (int64_t)m->rank * t->n, m->data, m->ndata);
        }
    }
    mc_coord_event(c, &ev);
    return MC_OK;
}

static void hear_signal(struct mc_coord_run *c, int node, const struct mc_msg *m)
{
    const struct mc_coord_event ev = {.kind = MC_CEV_SIGNAL, .node = node, .sig = (int)m->v[0]};
    char fields[96];
    const char *name = sigabbrev_np(ev.sig);
    mc_coord_event(c, &ev); /* forwarded first: writing may be slow */
    snprintf(fields, sizeof fields, "\"signal\":\"%s\",\"count\":%d,\"node\":%d", name ? name : "?",
             c->coord.node_signals[node], node);
    mc_coord_note(c, "signal", fields);
}

mc_status mc_coord_hear(struct mc_coord_run *c, int node, const struct mc_msg *m,
                        struct mc_err *err)
{
    struct mc_coord_event ev = {.rank = m->rank, .node = node};
    int first = c->coord.node_first[node], count = c->coord.node_count[node];
    if (m->kind == MC_MSG_SIGNAL) {
        if (m->v[0] >= 1 && m->v[0] < 65 && c->coord.phase != MC_COORD_DONE)
            hear_signal(c, node, m);
        return MC_OK;
    }
    if (m->rank < first || m->rank >= first + count) /* I1 */
        return mc_err_set(err, MC_E_PEER, "node %d speaks for rank %d, it has %d-%d", node, m->rank,
                          first, first + count - 1);
    switch (m->kind) {
    case MC_MSG_SPAWNED:
        c->rank[m->rank].pid = (int)m->v[0];
        ev.kind = MC_CEV_SPAWNED;
        break;
    case MC_MSG_SPAWN_FAILED:
        keep_text(c->rank[m->rank].message, m);
        ev.kind = MC_CEV_SPAWN_FAILED;
        ev.exit_code = (int)m->v[0];
        break;
    case MC_MSG_RANK_HELLO:
        ev.kind = MC_CEV_HELLO;
        break;
    case MC_MSG_GATHER:
        return hear_gather(c, m, err);
    case MC_MSG_EXITED:
        hear_exited(c, m);
        return MC_OK;
    default:
        return mc_err_set(err, MC_E_PEER, "node %d sent \"%s\", which is not an agent's to say",
                          node, mc_msg_name(m->kind));
    }
    mc_coord_event(c, &ev);
    return MC_OK;
}

void mc_coord_join(struct mc_coord_run *c, int node, int first, int count, const char *host)
{
    const struct mc_coord_event ev = {
        .kind = MC_CEV_JOINED, .node = node, .first = first, .count = count};
    snprintf(c->host[node], sizeof c->host[node], "%.60s", host);
    for (int r = first; r < first + count; r++)
        c->rank[r].node = node;
    mc_coord_event(c, &ev);
}

/* ---- life ---- */

mc_status mc_coord_create(const struct mc_coord_cfg *cfg, struct mc_coord_run **out,
                          struct mc_err *err)
{
    struct mc_coord_run *c = mc_alloc(sizeof *c, "coordinator");
    if (c) {
        c->rank = mc_alloc((size_t)cfg->world * sizeof *c->rank, "coordinator's ranks");
        c->host = mc_alloc((size_t)cfg->nodes * sizeof *c->host, "coordinator's nodes");
    }
    if (!c || !c->rank || !c->host) {
        mc_coord_destroy(c);
        return mc_err_set(err, MC_E_NOMEM, "no memory for a coordinator of %d ranks", cfg->world);
    }
    mc_coord_init(&c->coord, cfg->nodes, cfg->world, cfg->grace_ns, cfg->wait_ns);
    c->rd = cfg->rd;
    c->to_node = cfg->to_node;
    c->arg = cfg->arg;
    for (int r = 0; r < cfg->world; r++)
        c->rank[r].node = -1;
    *out = c;
    return MC_OK;
}

void mc_coord_destroy(struct mc_coord_run *c)
{
    if (!c)
        return;
    for (int r = 0; c->rank && r < c->coord.world; r++)
        mc_free(c->rank[r].flight);
    mc_free(c->table.all);
    mc_free(c->rank);
    mc_free(c->host);
    mc_free(c);
}
