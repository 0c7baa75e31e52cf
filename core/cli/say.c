/* say.c - how commands speak, and where this program and its home are. Floor 8 (cli).
 *
 * I1  Answers go to stdout, all else to stderr. A problem is one line:
 *     file:line: path: message (did you mean "x"?)
 * Memory: none kept. Threads: one. */
#include "cli.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../base/sysio.h"

void mc_say_line(void *arg, const char *line)
{
    (void)arg;
    puts(line);
}

int mc_say_error(const struct mc_err *err, mc_status st)
{
    fflush(stdout);
    fprintf(stderr, "mascon: %s\n", err->msg[0] ? err->msg : mc_status_name(st));
    if (st == MC_E_BUG && err->trail[0])
        fprintf(stderr, "mascon: at %s; this is a bug of mascon\n", err->trail);
    return mc_status_exit_code(st);
}

void mc_say_problems(const struct mc_problems *ps)
{
    for (int i = 0; i < ps->n; i++) {
        const struct mc_problem *p = &ps->p[i];
        if (p->file[0])
            fprintf(stderr, "%s:", p->file);
        if (p->file[0] && p->line > 0)
            fprintf(stderr, "%d:", p->line);
        fprintf(stderr, "%s%s%s%s", p->file[0] ? " " : "", p->path, p->path[0] ? ": " : "",
                p->message);
        if (p->hint[0]) /* a name alone, or words of its own */
            fprintf(stderr, strchr(p->hint, ' ') ? " (%s)" : " (did you mean \"%s\"?)", p->hint);
        fputc('\n', stderr);
    }
    if (ps->dropped > 0)
        fprintf(stderr, "... and %d more\n", ps->dropped);
    int n = ps->n + ps->dropped;
    fprintf(stderr, "%d error%s; nothing was started\n", n, n == 1 ? "" : "s");
}

void mc_say_problems_json(const struct mc_problems *ps, struct mc_json *j)
{
    mc_json_open(j, "errors", '[');
    for (int i = 0; i < ps->n; i++) {
        const struct mc_problem *p = &ps->p[i];
        mc_json_open(j, NULL, '{');
        mc_json_str(j, "path", p->path);
        mc_json_str(j, "file", p->file);
        mc_json_i64(j, "line", p->line);
        mc_json_str(j, "message", p->message);
        mc_json_str(j, "hint", p->hint);
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
    if (ps->dropped > 0)
        mc_json_i64(j, "errors_dropped", ps->dropped);
}

void mc_say_notes(const struct mc_check_notes *notes)
{
    for (int i = 0; i < notes->n; i++)
        fprintf(stderr, "note: %s\n", notes->note[i]);
}

void mc_say_json(struct mc_json *j)
{
    if (j->failed)
        fprintf(stderr, "mascon: no memory for the answer's text\n");
    else
        puts(j->buf);
    mc_json_fini(j);
}

void mc_say_bytes(double bytes, char dst[32])
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int u = 0;
    while (bytes >= 1024 && u < 5) {
        bytes /= 1024;
        u++;
    }
    snprintf(dst, 32, u ? "%.1f %s" : "%.0f %s", bytes, unit[u]);
}

void mc_say_count(int64_t n, char dst[32])
{
    char plain[32];
    int len = snprintf(plain, sizeof plain, "%lld", (long long)n), o = 0;
    for (int i = 0; i < len && o < 30; i++) {
        dst[o++] = plain[i];
        int left = len - 1 - i;
        if (left > 0 && left % 3 == 0 && plain[i] != '-')
            dst[o++] = ',';
    }
    dst[o] = '\0';
}

/* MASCON_HOME; else where an installed program's data lies, seen from the program itself, so that a
 * prefix can be chosen at installation and moved later; else the source tree it was built from. */
mc_status mc_home_find(char home[1024], struct mc_err *err)
{
    const char *said = getenv("MASCON_HOME");
    char installed[PATH_MAX] = "", exe[1024], bin[1024], lua[PATH_MAX + 16];
    if (mc_exe_find(exe, NULL) == MC_OK) {
        mc_path_dir(bin, sizeof bin, exe);
        snprintf(lua, sizeof lua, "%s/%s", bin, MC_DATA_FROM_BIN);
        if (!realpath(lua, installed))
            installed[0] = 0;
    }
    const char *dir = said && *said ? said : installed[0] ? installed : MC_SOURCE_HOME;
    snprintf(lua, sizeof lua, "%s/lua/mascon", dir);
    if (strlen(dir) >= 1000)
        return mc_err_set(err, MC_E_USAGE, "%.60s...: the path of the Lua library is too long",
                          dir);
    if (!mc_sys_is_dir(lua))
        return mc_err_set(
            err, MC_E_USAGE,
            "%s%s has no lua/mascon: the Lua library is not there; set MASCON_HOME to "
            "the folder that holds lua/ hooks/ recipes/",
            dir == said ? "MASCON_HOME=" : "", dir);
    snprintf(home, 1024, "%.1000s", dir);
    return MC_OK;
}

mc_status mc_exe_find(char exe[1024], struct mc_err *err)
{
    ssize_t n = readlink("/proc/self/exe", exe, 1023);
    if (n < 0 || n >= 1023)
        return mc_err_sys(err, "/proc/self/exe: where this program is");
    exe[n] = '\0';
    return MC_OK;
}
