/* page.c - the progress page: what a rank leaves behind. Floor 3 (run).
 *
 * I1  The memory belongs to a memfd that the agent holds: it outlives the rank, whatever killed it.
 * I2  Its size is sealed, so that no process can make another's access fault.
 * I3  A reader trusts the result fields only when result_valid is 1; the writer stores it last,
 *     with release.
 * I4  The descriptor is close-on-exec: mc_spawn passes it to the one rank it is for.
 *
 * Memory: one mapping in each of the two processes. Threads: the rank's main thread writes, the
 * agent reads at any time. */
#include "page.h"
#include "../base/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE_MAGIC   UINT32_C(0x4750434d) /* "MCPG" */
#define PAGE_VERSION 2

const char *mc_phase_name(enum mc_phase p)
{
    static const char *const names[] = {"start", "load", "step", "eval", "save", "exit"};
    return (unsigned)p <= MC_PHASE_EXIT ? names[p] : "?";
}

static mc_status map_page(int fd, struct mc_page **page, struct mc_err *err)
{
    void *p = mmap(NULL, sizeof **page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return mc_err_sys(err, "cannot map the progress page");
    *page = p;
    return MC_OK;
}

mc_status mc_page_create(int *fd, struct mc_page **page, struct mc_err *err)
{
    struct mc_page *p = NULL;
    mc_status st;
    int f = memfd_create("mascon-page", MFD_CLOEXEC | MFD_ALLOW_SEALING); /* I1, I4 */
    if (f == -1)
        return mc_err_sys(err, "cannot make a progress page (memfd_create)");
    if (ftruncate(f, (off_t)sizeof *p) == -1 ||
        fcntl(f, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == -1) { /* I2 */
        st = mc_err_sys(err, "cannot size a progress page (%zu bytes)", sizeof *p);
        goto err_close;
    }
    MC_TRY_GOTO(st, map_page(f, &p, err), err_close);
    p->magic = PAGE_MAGIC;
    p->version = PAGE_VERSION;
    p->committed_step = -1;
    *fd = f;
    *page = p;
    return MC_OK;
err_close:
    close(f);
    return st;
}

mc_status mc_page_attach(int fd, struct mc_page **page, struct mc_err *err)
{
    struct stat s;
    struct mc_page *p = NULL;
    if (fstat(fd, &s) == -1)
        return mc_err_set(err, MC_E_USAGE,
                          "descriptor %d is not open: only mascon's agent starts ranks", fd);
    int seals = fcntl(fd, F_GET_SEALS);
    if (!S_ISREG(s.st_mode) || s.st_size != (off_t)sizeof *p || seals == -1 ||
        !(seals & F_SEAL_SHRINK)) /* I2 */
        return mc_err_set(err, MC_E_USAGE,
                          "descriptor %d is no progress page: only mascon's agent starts ranks",
                          fd);
    MC_TRY(map_page(fd, &p, err));
    if (p->magic != PAGE_MAGIC || p->version != PAGE_VERSION) {
        mc_status st = mc_err_set(err, MC_E_USAGE,
                                  "descriptor %d: progress page of version %u, this program speaks "
                                  "%d: agent and ranks must be one build",
                                  fd, p->version, PAGE_VERSION);
        mc_page_detach(p);
        return st;
    }
    *page = p;
    return MC_OK;
}

void mc_page_detach(struct mc_page *page)
{
    if (page)
        munmap(page, sizeof *page);
}

void mc_page_phase(struct mc_page *page, enum mc_phase phase, int64_t step)
{
    if (!page)
        return;
    int64_t now = mc_clock_ns();
    char what[32];
    snprintf(what, sizeof what, "phase.%s", mc_phase_name(phase));
    mc_flight_note(step, 0, what);
    atomic_store(&page->step, step);
    atomic_store(&page->phase_since_ns, now);
    atomic_store(&page->beat_ns, now);
    atomic_store(&page->phase, (uint32_t)phase);
}
