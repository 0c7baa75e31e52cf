/* bus.c - SIGBUS with the name of the file. Floor 8 (cli).
 *
 * Data files are mapped. One that is cut while it is mapped, or whose disk fails, is a SIGBUS at
 * the next look at a page that is gone: death by a signal that says nothing. Here it becomes one
 * line, in the progress page where there is one, else on stderr, and exit 76.
 *
 * I1  Only what is safe in a signal handler: no allocation, no lock, no stdio.
 * I2  A SIGBUS at any other address is not ours: the default comes back, and the instruction that
 *     is then repeated ends the process as before.
 * Memory: statics. Threads: the handler runs on the thread that touched the page; the first one to
 * enter speaks. */
#include "cli.h"
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>
#include "../base/sysio.h"
#include "../run/page.h"

static struct mc_page *_Atomic g_page;

static size_t add(char *dst, size_t at, size_t cap, const char *s)
{
    while (*s && at + 1 < cap)
        dst[at++] = *s++;
    dst[at] = '\0';
    return at;
}

static void on_bus(int sig, siginfo_t *info, void *context)
{
    static atomic_flag spoken = ATOMIC_FLAG_INIT;
    static char line[sizeof((struct mc_page *)0)->message];
    struct mc_page *p = atomic_load(&g_page);
    const char *path = mc_sys_mapped(info->si_addr);
    (void)context;
    if (!path) { /* I2 */
        signal(sig, SIG_DFL);
        return;
    }
    if (atomic_flag_test_and_set(&spoken))
        for (;;) /* another thread is ending the process */
            pause();
    size_t n = add(line, 0, sizeof line, "data file ");
    n = add(line, n, sizeof line, path);
    n = add(line, n, sizeof line,
            " shrank or its disk failed while it was being read: restore it, leave it alone while "
            "it is in use, then start the same command again");
    if (p) {
        add(p->message, 0, sizeof p->message, line);
        p->exit_code = 76;
        p->result_step = atomic_load(&p->step);
        p->segment_steps = 0;
        p->committed_step = -1;
        p->loss = NAN;
        atomic_store_explicit(&p->result_valid, 1, memory_order_release);
    } else {
        const ssize_t a = write(STDERR_FILENO, "mascon: ", 8);
        line[n < sizeof line - 1 ? n++ : n - 1] = '\n';
        const ssize_t b = write(STDERR_FILENO, line, n);
        (void)a; /* a closed stderr changes nothing */
        (void)b;
    }
    _exit(76);
}

void mc_bus_install(void)
{
    struct sigaction sa = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGBUS, &sa, NULL);
}

void mc_bus_page(struct mc_page *page)
{
    atomic_store(&g_page, page);
}
