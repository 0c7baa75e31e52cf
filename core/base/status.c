/* status.c - the error record and the assert that ends a process with its last events on stderr.
 * Floor 0 (base).
 *
 * I1  The first cause is kept: a record whose code is set is never overwritten, and what is
 *     returned is the code of that first cause, so that message and exit code agree.
 * I2  A message is one line: control characters become blanks, whatever foreign text it quotes.
 * I3  Nothing here allocates: errors are told when memory is gone, too.
 *
 * Memory: the caller's. Threads: any, each with its own record. */
#include "status.h"
#include "flight.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct code_row {
    const char *name;
    int exit_code;
};

static const struct code_row codes[MC_NCODES] = {
    [MC_OK] = {"ok", 0},
    [MC_E_BUG] = {"bug", 1},
    [MC_E_USAGE] = {"usage", 2},
    [MC_E_RECIPE] = {"recipe", 2},
    [MC_E_MACHINE] = {"machine", 3},
    [MC_E_DIFF] = {"diff", 4},
    [MC_E_NOTFOUND] = {"notfound", 2},
    [MC_E_FORMAT] = {"format", 2},
    [MC_E_CORRUPT] = {"corrupt", 76},
    [MC_E_IO] = {"io", 76},
    [MC_E_NOSPC] = {"nospc", 76},
    [MC_E_NOMEM] = {"nomem", 76},
    [MC_E_TIMEOUT] = {"timeout", 76},
    [MC_E_PEER] = {"peer", 76},
    [MC_E_STOPPED] = {"stopped", 75},
    [MC_E_FAILED] = {"failed", 76},
    [MC_E_GIVEUP] = {"giveup", 77},
};

const char *mc_status_name(mc_status st)
{
    return st >= 0 && st < MC_NCODES ? codes[st].name : "unknown";
}

int mc_status_exit_code(mc_status st)
{
    return st >= 0 && st < MC_NCODES ? codes[st].exit_code : 1;
}

static void one_line(char *s) /* I2 */
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            *s = ' ';
}

mc_status mc_err_set(struct mc_err *err, mc_status code, const char *fmt, ...)
{
    if (!err)
        return code;
    if (err->code != MC_OK) /* I1 */
        return err->code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    one_line(err->msg);
    err->code = code;
    err->sys_errno = 0;
    err->trail[0] = 0;
    return code;
}

/* What the reader can do about it, where the errno alone says so; "" otherwise. */
static const char *hint_of(int e)
{
    switch (e) {
    case ENOSPC:
        return "; free space on that file system, then start again";
    case EDQUOT:
        return "; the quota is used up: free space or ask for more, then start again";
    case EACCES:
    case EPERM:
        return "; check owner and permissions";
    case EMFILE:
        return "; raise the limit of open files (ulimit -n)";
    default:
        return "";
    }
}

static mc_status code_of(int e)
{
    switch (e) {
    case ENOSPC:
    case EDQUOT:
        return MC_E_NOSPC;
    case ENOMEM:
        return MC_E_NOMEM;
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG: /* a retry finds it no more than ENOENT's would */
        return MC_E_NOTFOUND;
    case EACCES:
    case EPERM:
    case EROFS:
        return MC_E_MACHINE;
    case EISDIR:
        return MC_E_FORMAT;
    default:
        return MC_E_IO;
    }
}

mc_status mc_err_sys(struct mc_err *err, const char *fmt, ...)
{
    int e = errno;
    mc_status code = code_of(e);
    if (!err)
        return code;
    if (err->code != MC_OK) /* I1 */
        return err->code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    size_t n = strlen(err->msg);
    char text[128];
    /* The GNU strerror_r may return a static string instead of filling `text`. */
    snprintf(err->msg + n, sizeof err->msg - n, ": %s%s", strerror_r(e, text, sizeof text),
             hint_of(e));
    one_line(err->msg);
    err->code = code;
    err->sys_errno = e;
    err->trail[0] = 0;
    return code;
}

mc_status mc_err_trail(struct mc_err *err, mc_status st, const char *file, int line)
{
    if (!err || err->code == MC_OK)
        return st;
    const char *slash = strrchr(file, '/');
    size_t n = strlen(err->trail);
    int w = snprintf(err->trail + n, sizeof err->trail - n, "%s%s:%d", n ? " < " : "",
                     slash ? slash + 1 : file, line);
    if (w < 0 || (size_t)w >= sizeof err->trail - n)
        err->trail[n] = 0; /* no half entries */
    return st;
}

void mc_err_clear(struct mc_err *err)
{
    if (!err)
        return;
    err->code = MC_OK;
    err->sys_errno = 0;
    err->msg[0] = 0;
    err->trail[0] = 0;
}

_Noreturn void mc_assert_fail(const char *expr, const char *file, int line)
{
    char text[512];
    int n = snprintf(text, sizeof text,
                     "mascon: bug: %s:%d: this does not hold: %s\n"
                     "mascon: the last events of this process, oldest first:\n",
                     file, line, expr);
    if (n > (int)sizeof text - 1)
        n = (int)sizeof text - 1;
    mc_flight_note(-1, line, "assert failed");
    if (write(STDERR_FILENO, text, (size_t)n) >= 0)
        mc_flight_dump(NULL, STDERR_FILENO, 32);
    abort();
}
