/* log.c - levelled lines on stderr. Floor 0 (base).
 *
 * I1  One write(2) a line, so that lines of ranks that share a terminal or a file never mix.
 * I2  Logging never fails and never allocates; a line past 2,000 bytes is cut and says so.
 *
 * Threads: any. mc_log_init before the first thread. */
#include "log.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static enum mc_log_level g_level = MC_LOG_INFO;
static int g_rank = -1;

void mc_log_init(enum mc_log_level level, int rank)
{
    g_level = level;
    g_rank = rank;
}

void mc_log(enum mc_log_level level, const char *fmt, ...)
{
    static const char *const word[] = {"error: ", "warning: ", "", "debug: "};
    static const char cut[] = " ...(cut)";
    if (level > g_level)
        return;
    int keep = errno;
    char line[2048];
    size_t cap = sizeof line - sizeof cut - 1;
    int n = g_rank >= 0 ? snprintf(line, cap, "mascon[%d]: %s", g_rank, word[level])
                        : snprintf(line, cap, "mascon: %s", word[level]);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, cap - (size_t)n, fmt, ap);
    va_end(ap);
    size_t len = (size_t)n;
    if (m > 0 && (size_t)m >= cap - (size_t)n) { /* I2 */
        len = cap - 1;
        memcpy(line + len, cut, sizeof cut - 1);
        len += sizeof cut - 1;
    } else if (m > 0) {
        len += (size_t)m;
    }
    if (len == 0 || line[len - 1] != '\n')
        line[len++] = '\n';
    while (write(STDERR_FILENO, line, len) == -1 && errno == EINTR) /* I1 */
        ;
    errno = keep;
}
