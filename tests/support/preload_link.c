/* preload_link.c - a slow link between ranks, from outside: LD_PRELOAD=libpreload_link.so.
 *
 *   MC_LINK_MS     what a message takes longer, in ms (a fraction is fine)
 *   MC_LINK_BYTES  the smallest message that does; 0: all
 *
 * A late send is kept here and given to UCX when its time has come, inside ucp_worker_progress, so
 * under the lock of whoever makes progress; the caller goes on at once with a handle of ours. One
 * thread wakes the worker in time. Order within (endpoint, tag) stays. Messages do not share the
 * link: each takes its own time.
 *
 * Memory: a fixed table; when it is full, sends are not late. Threads: the worker's lock, and a
 * mutex between that and the thread that wakes. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>

enum { SENDS = 4096 };
struct late {
    int used;
    int64_t due_ns;
    uint64_t order;
    ucp_worker_h worker;
    ucp_ep_h ep;
    const void *buf;
    size_t n;
    ucp_tag_t tag;
    ucp_request_param_t param; /* of the caller */
};
static struct late g_late[SENDS];
static uint64_t g_order;
static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t g_cond;
static ucp_worker_h g_worker; /* of this process: one is enough for a rank */
static double g_ms;
static size_t g_bytes;

static ucs_status_ptr_t (*real_send)(ucp_ep_h, const void *, size_t, ucp_tag_t,
                                     const ucp_request_param_t *);
static unsigned (*real_progress)(ucp_worker_h);
static void (*real_free)(void *);
static void (*real_cancel)(ucp_worker_h, void *);
static ucs_status_t (*real_create)(ucp_context_h, const ucp_worker_params_t *, ucp_worker_h *);
static ucs_status_ptr_t (*real_close)(ucp_ep_h, const ucp_request_param_t *);

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* The first to be sent, or NULL; g_lock is held. */
static struct late *first(void)
{
    struct late *best = NULL;
    for (struct late *l = g_late; l < g_late + SENDS; l++)
        if (l->used == 1 && (!best || l->order < best->order))
            best = l;
    return best;
}

/* Wakes the worker whenever a send is due, again each ms until it has gone. */
static void *wake_main(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&g_lock);
    for (;;) {
        struct late *l = first();
        if (!l) {
            pthread_cond_wait(&g_cond, &g_lock);
            continue;
        }
        int64_t at = l->due_ns;
        if (at <= now_ns()) {
            ucp_worker_signal(l->worker);
            at = now_ns() + 1000000;
        }
        struct timespec t = {.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000};
        pthread_cond_timedwait(&g_cond, &g_lock, &t);
    }
    return NULL;
}

static void find(void *fn, const char *name)
{
    void *p = dlsym(RTLD_NEXT, name);
    memcpy(fn, &p, sizeof p);
}

__attribute__((constructor)) static void start(void)
{
    const char *ms = getenv("MC_LINK_MS"), *bytes = getenv("MC_LINK_BYTES");
    pthread_condattr_t attr;
    find(&real_send, "ucp_tag_send_nbx");
    find(&real_progress, "ucp_worker_progress");
    find(&real_free, "ucp_request_free");
    find(&real_cancel, "ucp_request_cancel");
    find(&real_create, "ucp_worker_create");
    find(&real_close, "ucp_ep_close_nbx");
    g_ms = ms ? atof(ms) : 0;
    g_bytes = bytes ? (size_t)strtoull(bytes, NULL, 10) : 0;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g_cond, &attr);
}

ucs_status_t ucp_worker_create(ucp_context_h context, const ucp_worker_params_t *params,
                               ucp_worker_h *worker)
{
    pthread_t thread;
    ucs_status_t st = real_create(context, params, worker);
    if (st == UCS_OK && g_ms > 0 && !g_worker) {
        g_worker = *worker;
        if (pthread_create(&thread, NULL, wake_main, NULL) == 0)
            pthread_detach(thread);
    }
    return st;
}

ucs_status_ptr_t ucp_tag_send_nbx(ucp_ep_h ep, const void *buf, size_t n, ucp_tag_t tag,
                                  const ucp_request_param_t *param)
{
    struct late *mine = NULL;
    if (g_ms > 0) {
        pthread_mutex_lock(&g_lock);
        int late = n >= g_bytes;
        for (struct late *l = g_late; l < g_late + SENDS; l++)
            if (l->used == 1)
                late |= l->ep == ep && l->tag == tag;
            else if (l->used == 0 && !mine)
                mine = l;
        mine = late ? mine : NULL;
        if (mine)
            *mine = (struct late){.used = 1,
                                  .due_ns = now_ns() + (int64_t)(g_ms * 1e6),
                                  .order = g_order++,
                                  .worker = g_worker,
                                  .ep = ep,
                                  .buf = buf,
                                  .n = n,
                                  .tag = tag,
                                  .param = *param};
        pthread_cond_signal(&g_cond);
        pthread_mutex_unlock(&g_lock);
    }
    return mine ? (ucs_status_ptr_t)mine : real_send(ep, buf, n, tag, param);
}

static void finish(struct late *l, ucs_status_t st)
{
    ucp_request_param_t p = l->param;
    l->used = 2; /* until the callback frees the handle */
    p.cb.send(l, st, p.user_data);
}

static void on_sent(void *request, ucs_status_t st, void *late)
{
    real_free(request);
    finish(late, st);
}

unsigned ucp_worker_progress(ucp_worker_h worker)
{
    unsigned n = 0;
    while (g_ms > 0) {
        pthread_mutex_lock(&g_lock);
        struct late *l = first();
        if (l && l->due_ns <= now_ns() && l->worker == worker)
            l->used = 3; /* under way */
        else
            l = NULL;
        pthread_mutex_unlock(&g_lock);
        if (!l)
            break;
        const ucp_request_param_t p = {.op_attr_mask =
                                           UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                       .cb.send = on_sent,
                                       .user_data = l};
        ucs_status_ptr_t q = real_send(l->ep, l->buf, l->n, l->tag, &p);
        n++;
        if (!UCS_PTR_IS_PTR(q))
            finish(l, UCS_PTR_STATUS(q));
    }
    return n + real_progress(worker);
}

static int ours(const void *request)
{
    return request >= (const void *)g_late && request < (const void *)(g_late + SENDS);
}

void ucp_request_free(void *request)
{
    if (ours(request)) {
        pthread_mutex_lock(&g_lock);
        ((struct late *)request)->used = 0;
        pthread_mutex_unlock(&g_lock);
    } else {
        real_free(request);
    }
}

void ucp_request_cancel(ucp_worker_h worker, void *request)
{
    if (!ours(request)) /* UCX cannot take back a send either */
        real_cancel(worker, request);
}

ucs_status_ptr_t ucp_ep_close_nbx(ucp_ep_h ep, const ucp_request_param_t *param)
{
    pthread_mutex_lock(&g_lock);
    for (struct late *l = g_late; l < g_late + SENDS; l++)
        if (l->used == 1 && l->ep == ep)
            l->used = 0; /* lost with the link */
    pthread_mutex_unlock(&g_lock);
    return real_close(ep, param);
}
