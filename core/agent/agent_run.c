/* agent_run.c - the loop that feeds agent_step.c on one host. Floor 6 (agent).
 *
 * A rank is started as
 *     EXE rank RUN N [rank_args...] --page-fd F
 * RUN the run folder, N the rank's number from 0, F the descriptor of its progress page. The
 * descriptor of the run's lock is passed on too, unnamed: it only has to stay open.
 *
 * I1  Ranks are forked from this, the main, thread: when it ends, by kill -9 too, the kernel kills
 *     them (spawn.c).
 * I2  Stop signals are blocked between the look at the count and ppoll, so that none is missed by
 *     the wait; but not while an event is written: two of them are told apart by the time between
 *     their deliveries (spawn.c), which must not be that of a slow disk.
 * I3  A rank's end is seen by its pidfd, at once; where the system has none, by a poll every 20 ms.
 *     Each rank is reaped exactly once, by waitpid on its own pid.
 * I4  The page is read after the rank is dead: nobody writes to it any more.
 * I5  What cannot be written to the run folder (a full disk) is logged, unless the folder is gone,
 *     and does not change what happens to the ranks.
 *
 * Memory: one block of mc_alloc; a page a rank, unmapped at the end. Threads: the main thread. */
#include "agent.h"
#include "../base/arena.h"
#include "../base/clock.h"
#include "../base/log.h"
#include "../base/sysio.h"
#include "../run/spawn.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_RANK_ARGS = 64, FLIGHT_IN_INCIDENT = 64, TICK_MS = 250, BLIND_POLL_MS = 20 };
#define DEFAULT_GRACE_NS (INT64_C(600) * 1000000000)

struct runner {
    const struct mc_agent_run *cfg;
    struct mc_agent agent;
    struct mc_agent_result *res;
    struct mc_page *page[MC_AGENT_RANKS];
    int page_fd[MC_AGENT_RANKS];
    struct mc_child child[MC_AGENT_RANKS]; /* pid 0: not there */
    int wait_status[MC_AGENT_RANKS];
    int64_t ooms_before; /* -1: unknown */
    sigset_t while_waiting;
    int signals_seen, done;
    char node[256], spawn_error[1400];
};

/* ---- what the system says about out-of-memory kills ---- */

/* The number behind `key` and one blank, at the start of a line; -1 when the file has none. */
static int64_t counter_in(const char *path, const char *key)
{
    char *text;
    size_t n, nk = strlen(key);
    int64_t v = -1;
    if (mc_sys_read_file(path, (size_t)1 << 20, &text, &n, NULL) != MC_OK)
        return -1;
    for (char *line = text; line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
        if (strncmp(line, key, nk) == 0 && line[nk] == ' ')
            v = strtoll(line + nk + 1, NULL, 10);
    mc_free(text);
    return v;
}

/* Kills of the out-of-memory killer so far: in this process's cgroup (version 2, else 1), else,
 * where there is no such file (a root cgroup), on the whole host. */
static int64_t oom_kills(void)
{
    char *text, path[1400];
    size_t n;
    int64_t v = -1;
    if (mc_sys_read_file("/proc/self/cgroup", 65536, &text, &n, NULL) == MC_OK) {
        for (char *save = NULL, *line = strtok_r(text, "\n", &save); line && v < 0;
             line = strtok_r(NULL, "\n", &save)) {
            char *at = strstr(line, ":memory:");
            if (strncmp(line, "0::", 3) == 0) {
                snprintf(path, sizeof path, "/sys/fs/cgroup%.1000s/memory.events", line + 3);
                v = counter_in(path, "oom_kill");
            } else if (at) {
                snprintf(path, sizeof path, "/sys/fs/cgroup/memory%.1000s/memory.oom_control",
                         at + 8);
                v = counter_in(path, "oom_kill");
            }
        }
        mc_free(text);
    }
    return v >= 0 ? v : counter_in("/proc/vmstat", "oom_kill");
}

/* ---- words ---- */

static void describe_end(const struct runner *r, int rank, const char *cls, char *dst, size_t cap)
{
    int st = r->wait_status[rank];
    const struct mc_page *p = r->page[rank];
    char how[120], where[96];
    snprintf(where, sizeof where, "in phase %s of step %lld",
             mc_phase_name((enum mc_phase)atomic_load(&p->phase)),
             (long long)atomic_load(&p->step));
    if (WIFSIGNALED(st))
        snprintf(how, sizeof how, "was killed by signal %d (%s)", WTERMSIG(st),
                 strsignal(WTERMSIG(st)));
    else if (WIFEXITED(st) && atomic_load(&p->result_valid))
        snprintf(how, sizeof how, "ended with exit code %d", WEXITSTATUS(st));
    else
        snprintf(how, sizeof how, "ended with exit code %d and left no result", WEXITSTATUS(st));
    snprintf(dst, cap, "rank %d (pid %d) %s %s%s", rank, (int)r->child[rank].pid, how, where,
             strcmp(cls, "oom") == 0 ? "; the kernel's out-of-memory killer was at work: use a "
                                       "smaller microbatch or a machine with more memory"
                                     : "");
}

static void describe(const struct runner *r, const struct mc_agent_action *a, const char *cls,
                     char *dst, size_t cap)
{
    const struct mc_page *p = a->rank >= 0 ? r->page[a->rank] : NULL;
    if (strcmp(cls, "spawn") == 0)
        snprintf(dst, cap, "%s", r->spawn_error);
    else if (strcmp(cls, "stop_timeout") == 0)
        snprintf(dst, cap,
                 "rank %d (pid %d) had not ended %lld s after it was asked to; it was in phase %s "
                 "of step %lld and was killed",
                 a->rank, (int)r->child[a->rank].pid, (long long)(r->agent.grace_ns / 1000000000),
                 mc_phase_name((enum mc_phase)atomic_load(&p->phase)),
                 (long long)atomic_load(&p->step));
    else if (strcmp(cls, "killed_by_user") == 0)
        snprintf(dst, cap, "killed at the %d. stop signal, before the ranks had ended",
                 r->agent.signals);
    else if (p->message[0])
        snprintf(dst, cap, "%.*s", (int)strnlen(p->message, sizeof p->message), p->message);
    else
        describe_end(r, a->rank, cls, dst, cap);
}

static void event(const struct runner *r, const char *kind, const char *fields)
{
    struct mc_err e = {0};
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, &r->while_waiting, &blocked);    /* I2 */
    if (mc_rundir_event(r->cfg->rd, kind, fields, &e) != MC_OK && /* I5 */
        mc_rundir_held(r->cfg->rd, NULL) == MC_OK)
        mc_log(MC_LOG_ERROR, "%s", e.msg);
    pthread_sigmask(SIG_SETMASK, &blocked, NULL);
}

/* ---- actions ---- */

static void carry_out(struct runner *r, const struct mc_agent_action *list, int n);

static void feed(struct runner *r, const struct mc_agent_event *ev)
{
    struct mc_agent_action list[MC_AGENT_ACTIONS];
    int n = mc_agent_step(&r->agent, ev, mc_clock_ns(), list);
    carry_out(r, list, n);
}

static mc_status start_rank(struct runner *r, int rank, struct mc_err *err)
{
    const struct mc_agent_run *cfg = r->cfg;
    const char *argv[8 + MAX_RANK_ARGS];
    char number[16], fd[16];
    int n = 0, keep[2] = {r->page_fd[rank], cfg->rd->lock_fd};
    snprintf(number, sizeof number, "%d", rank);
    snprintf(fd, sizeof fd, "%d", r->page_fd[rank]);
    argv[n++] = cfg->exe;
    argv[n++] = "rank";
    argv[n++] = cfg->rd->path;
    argv[n++] = number;
    for (int i = 0; cfg->rank_args && cfg->rank_args[i]; i++) {
        if (i == MAX_RANK_ARGS)
            return mc_err_set(err, MC_E_USAGE, "more than %d arguments for a rank", MAX_RANK_ARGS);
        argv[n++] = cfg->rank_args[i];
    }
    argv[n++] = "--page-fd";
    argv[n++] = fd;
    argv[n] = NULL;
    const struct mc_spawn s = {.argv = argv,
                               .keep_fds = keep,
                               .nkeep = cfg->rd->lock_fd >= 0 ? 2 : 1,
                               .threads = cfg->threads_per_rank};
    return mc_spawn(&s, &r->child[rank], err); /* I1 */
}

static void do_spawn(struct runner *r, int rank)
{
    struct mc_err e = {0};
    struct mc_agent_event ev = {.kind = MC_AEV_SPAWNED, .rank = rank};
    mc_status st = start_rank(r, rank, &e);
    if (st != MC_OK) {
        ev.kind = MC_AEV_SPAWN_FAILED;
        ev.exit_code = mc_status_exit_code(st);
        if (!r->spawn_error[0])
            snprintf(r->spawn_error, sizeof r->spawn_error, "%s", e.msg);
    }
    feed(r, &ev);
}

static void do_incident(struct runner *r, const struct mc_agent_action *a)
{
    struct mc_err e = {0};
    struct mc_json flight;
    const char *cls = a->cls;
    char text[1400], fields[64];
    const struct mc_page *p = a->rank >= 0 ? r->page[a->rank] : NULL;
    int number = 0;
    if (a->rank >= 0 && strcmp(cls, "rank_death") == 0 && WIFSIGNALED(r->wait_status[a->rank]) &&
        WTERMSIG(r->wait_status[a->rank]) == SIGKILL && r->ooms_before >= 0 &&
        oom_kills() > r->ooms_before)
        cls = "oom";
    describe(r, a, cls, text, sizeof text);
    mc_json_init_grow(&flight);
    if (p)
        mc_flight_json(&p->flight, FLIGHT_IN_INCIDENT, &flight, NULL); /* I4 */
    const struct mc_incident in = {.cls = cls,
                                   .rank = a->rank,
                                   .pid = a->rank >= 0 ? (int)r->child[a->rank].pid : (int)getpid(),
                                   .node = r->node,
                                   .message = text,
                                   .step = p ? atomic_load(&p->step) : -1,
                                   .flight = p && !flight.failed ? flight.buf : NULL};
    if (mc_rundir_incident(r->cfg->rd, &in, &number, &e) != MC_OK && /* I5 */
        mc_rundir_held(r->cfg->rd, NULL) == MC_OK)
        mc_log(MC_LOG_ERROR, "%s", e.msg);
    mc_json_fini(&flight);
    snprintf(fields, sizeof fields, "\"number\":%d,\"class\":\"%s\",\"rank\":%d", number, cls,
             a->rank);
    event(r, "incident", fields);
    snprintf(r->res->message, sizeof r->res->message, "%.1000s", text);
}

static void do_finish(struct runner *r, int exit_code)
{
    const struct mc_page *p = r->page[0]; /* I4 */
    struct mc_agent_result *res = r->res;
    char fields[96];
    r->done = 1;
    res->exit_code = exit_code;
    res->step = atomic_load(&p->step);
    res->result_valid = atomic_load(&p->result_valid) == 1;
    if (res->result_valid) {
        res->step = p->result_step;
        res->loss = p->loss;
        res->weights_hash = p->weights_hash;
        if (!res->message[0])
            snprintf(res->message, sizeof res->message, "%.*s",
                     (int)strnlen(p->message, sizeof p->message), p->message);
    }
    snprintf(fields, sizeof fields, "\"exit\":%d,\"step\":%lld", exit_code, (long long)res->step);
    event(r, "end", fields);
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
            if (r->child[a->rank].pid > 0) /* not reaped yet, so the pid is still its own */
                kill(r->child[a->rank].pid, a->sig);
            break;
        case MC_AACT_INCIDENT:
            do_incident(r, a);
            break;
        case MC_AACT_FINISH:
            do_finish(r, a->exit_code);
            break;
        }
    }
}

/* ---- events ---- */

static void look_at_signals(struct runner *r)
{
    char fields[64];
    while (!r->done && r->signals_seen < mc_signals_count()) {
        struct mc_agent_event ev = {.kind = MC_AEV_SIGNAL};
        r->signals_seen++;
        ev.sig = r->signals_seen == 1 ? mc_signals_pending() : mc_signals_last();
        snprintf(fields, sizeof fields, "\"signal\":\"%s\",\"count\":%d", sigabbrev_np(ev.sig),
                 r->signals_seen);
        feed(r, &ev); /* forwarded first: writing may be slow */
        event(r, "signal", fields);
    }
}

static void look_at_ranks(struct runner *r)
{
    for (int i = 0; i < r->cfg->nranks && !r->done; i++) {
        struct mc_child *c = &r->child[i];
        int st;
        if (!r->agent.up[i] || waitpid(c->pid, &st, WNOHANG) != c->pid) /* I3 */
            continue;
        const struct mc_page *p = r->page[i]; /* I4 */
        struct mc_agent_event ev = {.kind = MC_AEV_EXITED,
                                    .rank = i,
                                    .wait_status = st,
                                    .result_valid = atomic_load(&p->result_valid) == 1,
                                    .exit_code = p->exit_code,
                                    .has_message = p->message[0] != 0,
                                    .segment_steps = p->segment_steps};
        r->wait_status[i] = st;
        if (c->pidfd != -1)
            close(c->pidfd);
        c->pidfd = -1;
        feed(r, &ev);
    }
}

static void wait_for_something(struct runner *r)
{
    struct pollfd fds[MC_AGENT_RANKS];
    nfds_t n = 0;
    int ms = TICK_MS;
    for (int i = 0; i < r->cfg->nranks; i++) {
        if (!r->agent.up[i])
            continue;
        if (r->child[i].pidfd == -1) /* I3 */
            ms = BLIND_POLL_MS;
        else
            fds[n++] = (struct pollfd){.fd = r->child[i].pidfd, .events = POLLIN};
    }
    const struct timespec t = {.tv_sec = 0, .tv_nsec = ms * 1000000L};
    (void)ppoll(fds, n, &t, &r->while_waiting); /* I2; EINTR, time-out: the caller looks anyway */
}

static void loop(struct runner *r)
{
    const struct mc_agent_event start = {.kind = MC_AEV_START}, tick = {.kind = MC_AEV_TICK};
    look_at_signals(r); /* what came before the first rank */
    feed(r, &start);
    while (!r->done) {
        wait_for_something(r);
        look_at_signals(r);
        look_at_ranks(r);
        if (!r->done)
            feed(r, &tick);
    }
}

static void close_pages(struct runner *r)
{
    for (int i = 0; i < r->cfg->nranks; i++) {
        if (!r->page[i])
            continue;
        mc_page_detach(r->page[i]);
        close(r->page_fd[i]);
    }
}

mc_status mc_agent_run(const struct mc_agent_run *cfg, struct mc_agent_result *res,
                       struct mc_err *err)
{
    char fields[96];
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
    if (gethostname(r->node, sizeof r->node - 1) == -1)
        snprintf(r->node, sizeof r->node, "unknown");
    mc_agent_init(&r->agent, cfg->nranks, cfg->grace_ns > 0 ? cfg->grace_ns : DEFAULT_GRACE_NS);
    for (int i = 0; i < cfg->nranks; i++)
        MC_TRY_GOTO(st, mc_page_create(&r->page_fd[i], &r->page[i], err), out);
    r->ooms_before = oom_kills();
    mc_signals_install();
    mc_signals_second_kills(0);
    mc_signals_set(&stop); /* I2 */
    pthread_sigmask(SIG_BLOCK, &stop, &before);
    r->while_waiting = before;
    snprintf(fields, sizeof fields, "\"segment\":%d,\"ranks\":%d,\"threads\":%d", cfg->rd->segment,
             cfg->nranks, cfg->threads_per_rank);
    event(r, "launch", fields);
    loop(r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
out:
    close_pages(r);
    mc_free(r);
    return st;
}
