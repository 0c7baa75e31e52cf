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
 * I2  One thread makes progress. It sleeps on the worker's descriptor, armed. Who begins
 *     a call makes progress until the worker can be armed, too, so that nothing is left that no
 *     event announces. Waiters sleep on a condition.
 * I3  What UCX still holds of a failed call keeps its memory until the net is closed: such groups,
 *     when destroyed, go to `graves`.
 * I4  A peer of this host is watched through its pidfd, since shared memory does not tell that its
 *     other end is gone: whatever ends it, all its peers know at once. What it sent before is taken
 *     first. Other hosts' ranks are watched by UCX (connections, keepalive).
 * I5  Settings that we need are set in UCX's configuration, not in the environment, and only where
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
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <ucp/api/ucp.h>
#include <ucs/config/global_opts.h>

enum {
    ADDRESS_MAX = 2024, /* of a worker; more than a node with eight network cards has */
    CLOSE_MS = 1000
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
    pthread_cond_t cond; /* a request that is waited for has ended */
    _Atomic int wanted;  /* threads that want the lock; the progress thread lets them in */
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
    struct peer *peer; /* [world] */
    struct address *address;          /* [world] */
    struct mc_group *groups, *graves; /* I3 */
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
    pthread_cond_broadcast(&net->cond);
}

/* ---- progress ---- */

/* I2. */
void mc_ucx_drive(struct mc_comm_net *net)
{
    do {
        while (ucp_worker_progress(net->worker))
            ;
    } while (ucp_worker_arm(net->worker) == UCS_ERR_BUSY);
}

/* ---- peers that go ---- */

static void tell_groups(struct mc_comm_net *net, int rank, const char *why)
{
    for (struct mc_group *g = net->groups; g; g = g->sibling)
        for (int m = 0; m < g->base.cfg.size; m++)
            if (g->ranks[m] == rank)
                mc_group_peer_left(g, m, why);
}

/* The processes whose pidfd is among the events (I4); how many. All are marked before any is told:
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
    mc_ucx_drive(net); /* what they sent before */
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

static void *progress_main(void *arg)
{
    struct mc_comm_net *net = arg;
    pthread_mutex_lock(&net->lock);
    while (!net->stop) {
        int n = 0;
        while (n < 64 && ucp_worker_progress(net->worker))
            n++;
        int armed = n < 64 && ucp_worker_arm(net->worker) == UCS_OK;
        if (!armed && atomic_load(&net->wanted) == 0)
            continue;
        pthread_mutex_unlock(&net->lock);
        struct epoll_event ev[16];
        int events = 0;
        if (armed)
            events = epoll_wait(net->poll, ev, 16, -1);
        else
            sched_yield(); /* whoever wants the lock gets it before we want it again */
        pthread_mutex_lock(&net->lock);
        look_at(net, ev, events);
    }
    pthread_mutex_unlock(&net->lock);
    return NULL;
}

int mc_ucx_sleep(struct mc_comm_net *net, int64_t until_ns)
{
    struct timespec t = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    return pthread_cond_timedwait(&net->cond, &net->lock, &t) != ETIMEDOUT;
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
    if (p->pidfd != -1) /* I4: with UCX's own handling it would go by TCP */
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

/* I5. */
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
    if (!user_set("HANDLE_ERRORS")) /* no stack traces: a fault is the engine's to tell */
        ucs_global_opts_set_value("HANDLE_ERRORS", "none");
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
    net->poll = -1;
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
        ucp_worker_signal(net->worker);
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
    if (net->poll != -1)
        close(net->poll);
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
