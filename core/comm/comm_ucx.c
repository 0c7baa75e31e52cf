/* comm_ucx.c - the net on UCX: context, worker, endpoints, progress. Floor 2 (comm).
 *
 * UCX picks the way to each peer by itself (shared memory within a node, TCP, InfiniBand). We use
 * its tag matching: one worker a rank, one endpoint a peer that shares a group with us.
 *
 *   bits of a tag   63..48    47..35        34..19            18..4        3..0
 *   collectives     group     sender's      call's number     slice        1: a part, 2: a sum
 *   send, recv      id        member no.    ----- the user's tag -----     3
 *
 * The numbers wrap: what is under way at once is far less than a turn, and messages of one tag from
 * one sender match in order. A group's id is a hash of its name: members need not talk to agree on
 * it, and groups of one rank are checked to differ when they are made.
 *
 * I1  All of UCX, the groups and their requests are touched with the net's lock held only, by
 *     whatever thread. Callbacks of UCX run inside its progress, so they hold it.
 * I2  Who waits makes the progress himself, and sleeps on the worker's descriptor, armed: what
 *     comes wakes the thread that wants it. Other waiters sleep on a condition; when the sleeper's
 *     call has ended, one of them takes his place. Nobody spins: what cannot be armed is tried
 *     again at most RETRIES times, then every ms.
 * I3  Calls that are open while nobody waits are moved by the progress thread: `watched` is set,
 *     the worker armed, when the lock is left in that state. With no call open it looks every
 *     IDLE_MS, for what UCX has to say to peers; messages that come early wake nobody.
 * I4  What UCX still holds of a failed call keeps its memory until the net is closed: such groups,
 *     when destroyed, go to `graves`.
 * I5  A peer of this host is watched through its pidfd, since shared memory does not tell that its
 *     other end is gone: whatever ends it, all its peers know at once. What it sent before is taken
 *     first. Other hosts' ranks are watched by UCX (connections, keepalive).
 * I6  Settings that we need are set in UCX's configuration, not in the environment, and only where
 *     the user's UCX_* says nothing.
 *
 * Memory: handles; the addresses of the world. Threads: any; close from one that nobody races. */
#include "comm_int.h"
#include "../base/arena.h"
#include "../base/clock.h"
#include "../base/hash.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <ucp/api/ucp.h>
#include <ucs/config/global_opts.h>

enum {
    ADDRESS_MAX = 2024, /* of a worker; more than a node with eight network cards has */
    CLOSE_MS = 1000,
    BURST = 64,   /* steps of progress before others may have the lock */
    RETRIES = 16, /* I2 */
    IDLE_MS = 20  /* I3 */
};

struct peer {
    struct mc_comm_net *net;
    int rank;
    ucp_ep_h ep; /* NULL: no group needs it */
    int left;    /* the endpoint broke, or the process is gone */
    int pidfd;   /* -1: another host's, or the system has none */
};
struct address { /* what ranks exchange */
    uint32_t bytes, version;
    uint64_t host; /* equal: pid means the same process */
    int64_t pid;
    char data[ADDRESS_MAX];
};
struct mc_comm_net {
    struct mc_comm_net_cfg cfg;
    pthread_mutex_t lock;
    pthread_cond_t cond; /* a request that is waited for has ended, or the sleeper has left */
    int waiting;         /* threads on it */
    int sleeper;         /* a waiter sleeps on `poll`; the lock is free meanwhile */
    int watched;         /* the progress thread is woken by `poll` */
    int armed;           /* nothing has come since the worker was armed */
    int open;            /* calls */
    _Atomic int wanted;  /* threads that want the lock; who makes progress lets them in */
    struct {             /* a receive that ended within the call that posts it */
        int ended;
        ucs_status_t status;
        int64_t bytes;
    } at_once;
    int posting, stop, has_thread;
    pthread_t thread;
    ucp_context_h context;
    ucp_worker_h worker;
    int poll;          /* an epoll of the worker's descriptor (key: world) and pidfds (key: rank) */
    int duty;          /* the progress thread's: an epoll of `poll` while watched, and of `bell` */
    int bell;          /* an eventfd: stop */
    struct peer *peer; /* [world] */
    struct address *address;          /* [world] */
    struct mc_group *groups, *graves; /* I4 */
};

void mc_ucx_lock(struct mc_comm_net *net)
{
    atomic_fetch_add(&net->wanted, 1);
    pthread_mutex_lock(&net->lock);
    atomic_fetch_sub(&net->wanted, 1);
}

void mc_ucx_unlock(struct mc_comm_net *net)
{
    pthread_mutex_unlock(&net->lock);
}

int mc_ucx_world(const struct mc_comm_net *net)
{
    return net->cfg.world;
}

const char *mc_ucx_describe(const struct mc_group *g, int member)
{
    const struct mc_comm_peers *p = g->net->cfg.peers;
    return p->describe(p->arg, g->ranks[member]);
}

/* ---- slices ---- */

static uint64_t tag_of(const struct mc_lane *l, int sender, uint64_t slice)
{
    const struct mc_comm_req *r = l->req;
    uint64_t t = r->group->id << 48 | (uint64_t)sender << 35;
    if (r->tag >= 0)
        return t | (uint64_t)r->tag << 4 | 3;
    t |= (r->round & 0xffff) << 19 | (slice & 0x7fff) << 4;
    return t | (l->set == MC_SEND_PART || l->set == MC_RECV_PART ? 1 : 2);
}

/* The index of a handle; a lane has few. */
static int slot_of(const struct mc_lane *l, const void *request)
{
    int slot = 0;
    while (slot < MC_LANE_WINDOW && l->op[slot] != request)
        slot++;
    MC_ASSERT(slot < MC_LANE_WINDOW);
    return slot;
}

/* NULL, or what went wrong. A message of another length is not UCX's fault: the group tells. */
static const char *why(ucs_status_t status)
{
    return status == UCS_OK || status == UCS_ERR_MESSAGE_TRUNCATED ? NULL
                                                                   : ucs_status_string(status);
}

static void on_sent(void *request, ucs_status_t status, void *lane)
{
    struct mc_lane *l = lane;
    int slot = slot_of(l, request);
    l->op[slot] = NULL;
    ucp_request_free(request);
    mc_group_slice(l, slot, l->expect[slot], why(status));
}

static void on_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                        void *lane)
{
    struct mc_lane *l = lane;
    struct mc_comm_net *net = l->req->group->net;
    int64_t came = status == UCS_OK ? (int64_t)info->length : -1;
    if (net->posting) {
        net->at_once.ended = 1;
        net->at_once.status = status;
        net->at_once.bytes = came;
        return;
    }
    int slot = slot_of(l, request);
    l->op[slot] = NULL;
    ucp_request_free(request);
    mc_group_slice(l, slot, came, why(status));
}

/* UCX tells the length of what had come before it was asked for to the callback only, so that is
 * asked for always; it may then run within the call. */
static ucs_status_ptr_t receive(struct mc_lane *l, char *ptr, int64_t bytes, uint64_t slice)
{
    struct mc_comm_net *net = l->req->group->net;
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                       UCP_OP_ATTR_FIELD_USER_DATA |
                                                       UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
                                       .cb.recv = on_received,
                                       .user_data = l};
    net->at_once.ended = 0;
    net->posting = 1;
    ucs_status_ptr_t q = ucp_tag_recv_nbx(net->worker, ptr, (size_t)bytes,
                                          tag_of(l, l->peer, slice), UINT64_MAX, &param);
    net->posting = 0;
    if (!UCS_PTR_IS_PTR(q) || !net->at_once.ended)
        return q;
    ucp_request_free(q);
    return UCS_STATUS_PTR(net->at_once.status);
}

static ucs_status_ptr_t transmit(struct mc_lane *l, char *ptr, int64_t bytes, uint64_t slice)
{
    const struct mc_group *g = l->req->group;
    const ucp_request_param_t param = {.op_attr_mask =
                                           UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                       .cb.send = on_sent,
                                       .user_data = l};
    g->net->at_once.bytes = bytes;
    return ucp_tag_send_nbx(g->net->peer[g->ranks[l->peer]].ep, ptr, (size_t)bytes,
                            tag_of(l, g->base.cfg.me, slice), &param);
}

int mc_ucx_post(struct mc_lane *l, int slot, char *ptr, int64_t bytes, uint64_t slice)
{
    struct mc_group *g = l->req->group;
    int sends = l->set == MC_SEND_PART || l->set == MC_SEND_SUM;
    if (sends && mc_ucx_left(g, l->peer)) {
        mc_group_slice(l, slot, -1, "its endpoint is closed");
        return -1;
    }
    ucs_status_ptr_t q = (sends ? transmit : receive)(l, ptr, bytes, slice);
    if (UCS_PTR_IS_PTR(q)) {
        g->net->armed = 0; /* it may wait for room at the peer's, which no event announces */
        l->op[slot] = q;
        return 0;
    }
    ucs_status_t st = UCS_PTR_STATUS(q);
    if (st == UCS_OK && g->net->at_once.bytes == bytes)
        return 1;
    mc_group_slice(l, slot, st == UCS_OK ? g->net->at_once.bytes : -1, why(st));
    return -1;
}

void mc_ucx_cancel(struct mc_lane *l)
{
    if (l->set != MC_RECV_PART && l->set != MC_RECV_SUM)
        return; /* UCX cannot take back a send */
    for (int slot = 0; slot < MC_LANE_WINDOW; slot++)
        if (l->op[slot])
            ucp_request_cancel(l->req->group->net->worker, l->op[slot]);
}

static void add(_Atomic int64_t *counter, int64_t n)
{
    if (counter && n > 0)
        atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

void mc_ucx_counted(struct mc_comm_net *net, int64_t calls, int64_t bytes)
{
    add(net->cfg.collective_seq, calls);
    add(net->cfg.bytes_moved, bytes);
}

void mc_ucx_wake(struct mc_comm_net *net)
{
    if (net->waiting > 0)
        pthread_cond_broadcast(&net->cond);
    if (net->sleeper)
        ucp_worker_signal(net->worker);
}

void mc_ucx_opened(struct mc_comm_net *net, int calls)
{
    net->open += calls;
}

/* ---- progress ---- */

static int progress(struct mc_comm_net *net)
{
    int n = 0;
    while (n < BURST && ucp_worker_progress(net->worker))
        n++;
    if (n > 0)
        net->armed = 0;
    return n;
}

/* 1: whatever comes from now on is announced. */
static int arm(struct mc_comm_net *net)
{
    if (!net->armed)
        net->armed = ucp_worker_arm(net->worker) == UCS_OK;
    return net->armed;
}

static void set_watch(struct mc_comm_net *net, int on)
{
    struct epoll_event ev = {.events = on ? EPOLLIN | EPOLLONESHOT : 0, .data.fd = net->poll};
    if (net->watched == on)
        return;
    epoll_ctl(net->duty, EPOLL_CTL_MOD, net->poll, &ev);
    net->watched = on;
}

/* What remains when the lock is left is the sleeper's, the next waiter's, or the progress thread's
 * (I3). */
static void settle(struct mc_comm_net *net)
{
    for (int i = 0; i < RETRIES && net->open > 0; i++)
        if (progress(net) < BURST && arm(net))
            break;
    int orphans = net->open > 0 && !net->sleeper;
    if (orphans && net->waiting > 0)
        pthread_cond_broadcast(&net->cond);
    set_watch(net, orphans && net->waiting == 0);
}

void mc_ucx_settle(struct mc_comm_net *net)
{
    settle(net);
    if (net->open > 0 && !net->armed)
        ucp_worker_signal(net->worker); /* whoever sleeps goes on trying */
}

/* ---- peers that go ---- */

static void tell_groups(struct mc_comm_net *net, int rank, const char *why)
{
    for (struct mc_group *g = net->groups; g; g = g->sibling)
        for (int m = 0; m < g->base.cfg.size; m++)
            if (g->ranks[m] == rank)
                mc_group_peer_left(g, m, why);
}

/* The processes whose pidfd is among the events (I5); how many. All are marked before any is told:
 * who ended because another one died is not named alone. */
static int mark_gone(struct mc_comm_net *net, const struct epoll_event *ev, int n)
{
    int gone = 0;
    for (int i = 0; i < n; i++)
        if (ev[i].data.u32 != (uint32_t)net->cfg.world) {
            net->peer[ev[i].data.u32].left = 1;
            gone++;
        }
    return gone;
}

static void on_left(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct peer *p = arg;
    (void)ep;
    p->left = 1;
    tell_groups(p->net, p->rank, ucs_status_string(status));
}

/* A process that is killed loses its memory some ms before its pidfd tells, and who noticed by the
 * former may have left already: so look twice. */
void mc_ucx_look(struct mc_comm_net *net)
{
    const struct timespec grace = {.tv_nsec = 20000000};
    struct epoll_event ev[16];
    mark_gone(net, ev, epoll_wait(net->poll, ev, 16, 0));
    nanosleep(&grace, NULL);
    mark_gone(net, ev, epoll_wait(net->poll, ev, 16, 0));
}

int mc_ucx_left(const struct mc_group *g, int member)
{
    return g->net->peer[g->ranks[member]].left;
}

/* What woke the progress thread: processes that have ended are told to the groups. */
static void look_at(struct mc_comm_net *net, const struct epoll_event *ev, int n)
{
    if (mark_gone(net, ev, n) == 0)
        return;
    net->armed = 0;
    for (int i = 0; i < RETRIES && progress(net) == BURST; i++) /* what they sent before */
        ;
    for (int i = 0; i < n; i++)
        if (ev[i].data.u32 != (uint32_t)net->cfg.world) {
            struct peer *p = &net->peer[ev[i].data.u32];
            epoll_ctl(net->poll, EPOLL_CTL_DEL, p->pidfd, NULL);
            tell_groups(net, p->rank, "its process has ended");
        }
}

/* Pids of one boot and one pid namespace mean the same; 0: cannot be told. */
static uint64_t host_id(void)
{
    char text[64] = {0};
    struct stat st;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd == -1 ? -1 : read(fd, text, sizeof text - 1);
    if (fd != -1)
        close(fd);
    if (n <= 0 || stat("/proc/self/ns/pid", &st) == -1)
        return 0;
    return mc_hash64_seed(text, (size_t)n, (uint64_t)st.st_ino);
}

static void watch(struct mc_comm_net *net, struct peer *p)
{
    const struct address *a = &net->address[p->rank];
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = (uint32_t)p->rank};
    if (a->host == 0 || a->host != net->address[net->cfg.me].host)
        return;
    p->pidfd = (int)syscall(SYS_pidfd_open, (pid_t)a->pid, 0);
    if (p->pidfd != -1)
        epoll_ctl(net->poll, EPOLL_CTL_ADD, p->pidfd, &ev);
    else if (errno == ESRCH)
        p->left = 1;
}

/* Sleeps till something comes or the time is over; the lock is free meanwhile. */
static void doze(struct mc_comm_net *net, int64_t ns)
{
    struct epoll_event ev[16];
    int64_t ms = (ns + 999999) / 1000000;
    set_watch(net, 0);
    net->sleeper = 1;
    pthread_mutex_unlock(&net->lock);
    int n = epoll_wait(net->poll, ev, 16, ms > 60000 ? 60000 : (int)ms);
    mc_ucx_lock(net);
    net->sleeper = 0;
    net->armed = 0; /* a descriptor that was not read stays ready: arming reads it */
    look_at(net, ev, n);
}

static void let_others_in(struct mc_comm_net *net)
{
    if (atomic_load(&net->wanted) == 0)
        return;
    pthread_mutex_unlock(&net->lock);
    sched_yield(); /* whoever wants the lock gets it before we want it again */
    pthread_mutex_lock(&net->lock);
}

int mc_ucx_await(struct mc_comm_net *net, const struct mc_comm_req *r, int64_t until_ns)
{
    int tries = 0;
    while (r->state == MC_REQ_OPEN) {
        if (net->sleeper) {
            struct timespec t = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
            net->waiting++;
            int late = pthread_cond_timedwait(&net->cond, &net->lock, &t) == ETIMEDOUT;
            net->waiting--;
            if (late)
                return r->state != MC_REQ_OPEN;
            continue;
        }
        int n = progress(net);
        int64_t left = until_ns - mc_clock_ns();
        if (r->state != MC_REQ_OPEN || left <= 0)
            break;
        if (n == BURST) {
            let_others_in(net);
        } else if (arm(net)) {
            doze(net, left);
            tries = 0;
        } else if (++tries > RETRIES) {
            doze(net, 1000000);
        }
    }
    return r->state != MC_REQ_OPEN;
}

static void *progress_main(void *arg)
{
    struct mc_comm_net *net = arg;
    int wait_ms = IDLE_MS;
    pthread_mutex_lock(&net->lock);
    while (!net->stop) {
        struct epoll_event ev[16];
        pthread_mutex_unlock(&net->lock);
        int woken = epoll_wait(net->duty, ev, 2, wait_ms);
        mc_ucx_lock(net);
        if (woken > 0)
            net->watched = 0; /* it was for once */
        wait_ms = IDLE_MS;
        if (net->sleeper)
            continue;
        net->armed = 0;
        int n = progress(net);
        look_at(net, ev, epoll_wait(net->poll, ev, 16, 0));
        if (n == BURST) {
            let_others_in(net);
            wait_ms = 0;
        } else if (net->open > 0) {
            settle(net);
            if (!net->armed) {
                set_watch(net, 0);
                wait_ms = 1;
            }
        }
    }
    pthread_mutex_unlock(&net->lock);
    return NULL;
}

/* ---- endpoints ---- */

static mc_status endpoint(struct mc_comm_net *net, int rank, struct mc_err *err)
{
    struct peer *p = &net->peer[rank];
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const ucp_address_t *)(const void *)net->address[rank].data,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_left, .arg = p}};
    if (p->ep)
        return MC_OK;
    watch(net, p);
    if (p->pidfd != -1) /* I5: with UCX's own handling it would go by TCP */
        params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
    ucs_status_t st = ucp_ep_create(net->worker, &params, &p->ep);
    if (st != UCS_OK) {
        p->ep = NULL;
        return mc_err_set(err, MC_E_PEER, "no way to %s: UCX says %s",
                          net->cfg.peers->describe(net->cfg.peers->arg, rank),
                          ucs_status_string(st));
    }
    return MC_OK;
}

mc_status mc_ucx_join(struct mc_comm_net *net, struct mc_group *g, struct mc_err *err)
{
    for (struct mc_group *o = net->groups; o; o = o->sibling)
        if (o->id == g->id)
            return mc_err_set(err, MC_E_BUG,
                              "groups %s and %s of one rank would share their tags; another name "
                              "is needed",
                              o->name, g->name);
    for (int m = 0; m < g->base.cfg.size; m++) {
        if (m != g->base.cfg.me)
            MC_TRY(endpoint(net, g->ranks[m], err));
        if (net->peer[g->ranks[m]].left)
            g->left = 1;
    }
    g->sibling = net->groups;
    net->groups = g;
    return MC_OK;
}

void mc_ucx_leave(struct mc_group *g, int held)
{
    struct mc_group **at = &g->net->groups;
    while (*at && *at != g)
        at = &(*at)->sibling;
    if (*at)
        *at = g->sibling;
    if (held) {
        g->sibling = g->net->graves;
        g->net->graves = g;
    }
}

/* ---- open, close ---- */

static int user_set(const char *name)
{
    char full[64];
    snprintf(full, sizeof full, "UCX_%s", name);
    return getenv(full) != NULL;
}

/* I6. */
static mc_status open_context(struct mc_comm_net *net, struct mc_err *err)
{
    static const char *const own[][2] = {
        /* how often it looks whether another host's rank is there */
        {"KEEPALIVE_INTERVAL", "1s"},
    };
    ucp_config_t *config;
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES |
                                         UCP_PARAM_FIELD_ESTIMATED_NUM_EPS | UCP_PARAM_FIELD_NAME,
                           .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP,
                           .estimated_num_eps = (size_t)net->cfg.world,
                           .name = "mascon"};
    ucs_status_t st = ucp_config_read(NULL, NULL, &config);
    if (st != UCS_OK)
        return mc_err_set(err, MC_E_MACHINE,
                          "UCX refuses its settings (UCX_* in the environment): "
                          "%s",
                          ucs_status_string(st));
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!user_set(own[i][0]))
            ucp_config_modify(config, own[i][0], own[i][1]);
    if (!user_set("LOG_LEVEL")) /* a peer that died is told by our own error */
        ucs_global_opts_set_value("LOG_LEVEL", "fatal");
    st = ucp_init(&params, config, &net->context);
    ucp_config_release(config);
    if (st != UCS_OK) {
        net->context = NULL;
        return mc_err_set(err, MC_E_MACHINE,
                          "UCX does not start: %s; `ucx_info -d` shows what it "
                          "finds",
                          ucs_status_string(st));
    }
    return MC_OK;
}

static mc_status open_worker(struct mc_comm_net *net, struct mc_err *err)
{
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE |
                                                      UCP_WORKER_PARAM_FIELD_EVENTS,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED, /* I1 */
                                        .events = UCP_WAKEUP_TAG_SEND | UCP_WAKEUP_TAG_RECV};
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = (uint32_t)net->cfg.world};
    int efd;
    ucs_status_t st = ucp_worker_create(net->context, &params, &net->worker);
    if (st != UCS_OK)
        net->worker = NULL;
    else
        st = ucp_worker_get_efd(net->worker, &efd);
    if (st != UCS_OK)
        return mc_err_set(err, MC_E_MACHINE,
                          "UCX gives no worker that one can sleep on: %s; a "
                          "UCX_TLS in the environment may leave out what is needed",
                          ucs_status_string(st));
    net->poll = epoll_create1(EPOLL_CLOEXEC);
    if (net->poll == -1 || epoll_ctl(net->poll, EPOLL_CTL_ADD, efd, &ev) == -1)
        return mc_err_sys(err, "poll the transport's descriptor");
    net->duty = epoll_create1(EPOLL_CLOEXEC);
    net->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ev.events = 0; /* not watched */
    if (net->duty == -1 || net->bell == -1 ||
        epoll_ctl(net->duty, EPOLL_CTL_ADD, net->poll, &ev) == -1)
        return mc_err_sys(err, "poll the transport's poll");
    ev.events = EPOLLIN;
    if (epoll_ctl(net->duty, EPOLL_CTL_ADD, net->bell, &ev) == -1)
        return mc_err_sys(err, "poll the bell of the progress thread");
    return MC_OK;
}

/* All ranks' addresses. */
static mc_status meet(struct mc_comm_net *net, struct mc_err *err)
{
    struct address mine = {.version = UCP_API_VERSION, .host = host_id(), .pid = (int64_t)getpid()};
    ucp_address_t *a;
    size_t n;
    ucs_status_t st = ucp_worker_get_address(net->worker, &a, &n);
    if (st != UCS_OK)
        return mc_err_set(err, MC_E_MACHINE, "UCX gives no address: %s", ucs_status_string(st));
    if (n <= ADDRESS_MAX)
        memcpy(mine.data, a, n);
    ucp_worker_release_address(net->worker, a);
    if (n > ADDRESS_MAX)
        return mc_err_set(err, MC_E_MACHINE,
                          "UCX's address of this rank has %zu bytes, the most "
                          "is %d; name the network cards to use in UCX_NET_DEVICES",
                          n, (int)ADDRESS_MAX);
    mine.bytes = (uint32_t)n;
    MC_TRY(net->cfg.peers->exchange(net->cfg.peers->arg, "transport addresses", &mine, sizeof mine,
                                    net->address, net->cfg.deadline_ns, err));
    for (int r = 0; r < net->cfg.world; r++)
        if (net->address[r].bytes > ADDRESS_MAX ||
            net->address[r].version >> 24 != mine.version >> 24)
            return mc_err_set(err, MC_E_PEER, "%s has another UCX (interface %08x, here %08x)",
                              net->cfg.peers->describe(net->cfg.peers->arg, r),
                              net->address[r].version, mine.version);
    return MC_OK;
}

const char *mc_comm_net_name(void)
{
    static char name[32];
    if (!name[0])
        snprintf(name, sizeof name, "ucx %s", ucp_get_version_string());
    return name;
}

static mc_status start_thread(struct mc_comm_net *net, struct mc_err *err)
{
    int e = pthread_create(&net->thread, NULL, progress_main, net);
    if (e != 0) {
        errno = e;
        return mc_err_sys(err, "start the thread that makes progress in communication");
    }
    net->has_thread = 1;
    return MC_OK;
}

mc_status mc_comm_net_open(const struct mc_comm_net_cfg *cfg, struct mc_comm_net **out,
                           struct mc_err *err)
{
    mc_status st;
    pthread_condattr_t attr;
    struct mc_comm_net *net = mc_alloc(sizeof *net, "net");
    if (!net)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the net");
    net->cfg = *cfg;
    net->poll = net->duty = net->bell = -1;
    pthread_mutex_init(&net->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&net->cond, &attr);
    pthread_condattr_destroy(&attr);
    net->peer = mc_alloc((size_t)cfg->world * sizeof *net->peer, "peers");
    net->address = mc_alloc((size_t)cfg->world * sizeof *net->address, "peers' addresses");
    if (!net->peer || !net->address) {
        st = mc_err_set(err, MC_E_NOMEM, "no memory for the addresses of %d ranks", cfg->world);
        goto err_close;
    }
    for (int r = 0; r < cfg->world; r++)
        net->peer[r] = (struct peer){.net = net, .rank = r, .pidfd = -1};
    MC_TRY_GOTO(st, open_context(net, err), err_close);
    MC_TRY_GOTO(st, open_worker(net, err), err_close);
    MC_TRY_GOTO(st, meet(net, err), err_close);
    MC_TRY_GOTO(st, start_thread(net, err), err_close);
    *out = net;
    return MC_OK;
err_close:
    mc_comm_net_close(net);
    return st;
}

void mc_comm_net_abort(struct mc_comm_net *net)
{
    mc_ucx_lock(net);
    for (struct mc_group *g = net->groups; g; g = g->sibling)
        mc_group_abort(g);
    mc_ucx_unlock(net);
}

/* Progress of a net without its thread, until *left requests have ended or time is out. */
static void close_endpoints(struct mc_comm_net *net, int failed)
{
    int64_t until = mc_clock_ns() + CLOSE_MS * 1000000LL;
    for (int r = 0; r < net->cfg.world; r++) {
        struct peer *p = &net->peer[r];
        int force = failed || p->left;
        const ucp_request_param_t how = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                         .flags = force ? UCP_EP_CLOSE_FLAG_FORCE : 0};
        if (!p->ep || (force && p->pidfd != -1))
            continue; /* without error handling there is no forced close: the worker drops it */
        ucs_status_ptr_t q = ucp_ep_close_nbx(p->ep, &how);
        p->ep = NULL;
        while (UCS_PTR_IS_PTR(q) && ucp_request_check_status(q) == UCS_INPROGRESS &&
               mc_clock_ns() < until) {
            if (ucp_worker_progress(net->worker) == 0) {
                struct epoll_event ev;
                if (ucp_worker_arm(net->worker) == UCS_OK)
                    epoll_wait(net->poll, &ev, 1, 10);
            }
        }
        if (UCS_PTR_IS_PTR(q))
            ucp_request_free(q);
    }
}

void mc_comm_net_close(struct mc_comm_net *net)
{
    if (!net)
        return;
    if (net->has_thread) {
        mc_ucx_lock(net);
        net->stop = 1;
        eventfd_write(net->bell, 1);
        mc_ucx_unlock(net);
        pthread_join(net->thread, NULL);
    }
    while (net->groups) {
        struct mc_group *g = net->groups;
        mc_group_abort(g);
        mc_ucx_leave(g, 1);
    }
    if (net->worker) {
        close_endpoints(net, net->graves != NULL);
        ucp_worker_destroy(net->worker);
    }
    if (net->context)
        ucp_cleanup(net->context);
    const int fds[] = {net->duty, net->bell, net->poll};
    for (int i = 0; i < 3; i++)
        if (fds[i] != -1)
            close(fds[i]);
    for (int r = 0; net->peer && r < net->cfg.world; r++)
        if (net->peer[r].pidfd != -1)
            close(net->peer[r].pidfd);
    while (net->graves) {
        struct mc_group *g = net->graves;
        net->graves = g->sibling;
        mc_group_free(g);
    }
    pthread_cond_destroy(&net->cond);
    pthread_mutex_destroy(&net->lock);
    mc_free(net->peer);
    mc_free(net->address);
    mc_free(net);
}
