/* preload_rank.c - a signal to one rank at one place, from outside: LD_PRELOAD=libpreload_rank.so.
 *
 *   MC_RANK         K: only the process `EXE rank RUN K ...` meets it
 *   MC_RANK_AT      start (before its main), net (when it opens its transport), exit (when it has
 *                   said its last word and takes its transport down)
 *   MC_RANK_SIGNAL  number: 9 it is gone, 19 it stands still
 *
 * Memory: none. Threads: those of the rank. */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <ucp/api/ucp.h>

static int is_meant(void)
{
    const char *rank = getenv("MC_RANK");
    char line[4096], *p = line;
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd == -1 ? -1 : read(fd, line, sizeof line - 1);
    if (fd != -1)
        close(fd);
    if (!rank || n <= 0)
        return 0;
    line[n] = 0;
    for (int i = 0; i < 3 && p < line + n; i++) {
        p += strlen(p) + 1;
        if (i == 0 && strcmp(p, "rank") != 0)
            return 0;
    }
    return p < line + n && strcmp(p, rank) == 0;
}

static void arrive(const char *place)
{
    const char *at = getenv("MC_RANK_AT"), *sig = getenv("MC_RANK_SIGNAL");
    if (at && sig && strcmp(at, place) == 0 && is_meant())
        raise(atoi(sig));
}

__attribute__((constructor)) static void start(void)
{
    arrive("start");
}

/* the library's own */
static void find(const char *name, void *fn)
{
    void *p = dlsym(RTLD_NEXT, name);
    if (!p)
        abort();
    memcpy(fn, &p, sizeof p);
}

ucs_status_t ucp_worker_create(ucp_context_h context, const ucp_worker_params_t *params,
                               ucp_worker_h *worker)
{
    ucs_status_t (*real)(ucp_context_h, const ucp_worker_params_t *, ucp_worker_h *);
    find("ucp_worker_create", &real);
    arrive("net");
    return real(context, params, worker);
}

void ucp_worker_destroy(ucp_worker_h worker)
{
    void (*real)(ucp_worker_h);
    find("ucp_worker_destroy", &real);
    arrive("exit");
    real(worker);
}
