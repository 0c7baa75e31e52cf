/* event.c - events.jsonl: one durable line an event. Floor 3 (run).
 *
 * I1  A line is written by one write(2) on an O_APPEND descriptor, so that lines of agent and ranks
 *     do not mix, then fsynced.
 * I2  A line that a full disk left torn stays alone: the next event begins a new line. One that a
 *     crash left at the end is cut off by the next start.
 * I3  Events of up to 8 KiB allocate nothing: the step loop may write them.
 *
 * Memory: the stack, or a grown buffer freed before return. Threads: any. */
#include "rundir.h"
#include "../base/clock.h"
#include "../base/sysio.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static void build(struct mc_json *j, const char *kind, const char *fields)
{
    char now[40];
    mc_clock_iso(now, sizeof now);
    mc_json_open(j, NULL, '{');
    mc_json_str(j, "time", now);
    mc_json_str(j, "kind", kind);
    if (fields && *fields)
        mc_json_raw(j, NULL, fields);
    mc_json_close(j, '}');
}

/* 1 when the file has bytes and the last is no newline (I2). */
static int is_torn(int fd)
{
    struct stat s;
    char last = '\n';
    return fstat(fd, &s) == 0 && s.st_size > 0 && pread(fd, &last, 1, s.st_size - 1) == 1 &&
           last != '\n';
}

static mc_status append(const char *path, struct mc_json *j, struct mc_err *err)
{
    int fd;
    MC_TRY(mc_sys_open(path, O_RDWR | O_APPEND | O_CREAT, 0666, &fd, err));
    char *text = j->buf + 1; /* buf[0] is a newline, kept for I2 */
    size_t n = j->len - 1;
    text[n++] = '\n'; /* over the NUL */
    if (is_torn(fd)) {
        text--;
        n++;
    }
    mc_status st = mc_sys_append(fd, text, n, path, err); /* I1 */
    if (st == MC_OK)
        st = mc_sys_fsync(fd, path, err);
    mc_status closed = mc_sys_close(fd, path, err);
    return st != MC_OK ? st : closed;
}

mc_status mc_rundir_event(const struct mc_rundir *rd, const char *kind, const char *fields_json,
                          struct mc_err *err)
{
    char path[1100], fixed[8192];
    struct mc_json j;
    MC_TRY(mc_rundir_held(rd, err));
    MC_TRY(mc_rundir_file(rd, "events.jsonl", path, err));
    mc_json_init_fixed(&j, fixed, sizeof fixed); /* I3 */
    mc_json_raw(&j, NULL, "\n");
    j.comma = 0;
    build(&j, kind, fields_json);
    if (j.failed) {
        mc_json_init_grow(&j);
        mc_json_raw(&j, NULL, "\n");
        j.comma = 0;
        build(&j, kind, fields_json);
    }
    mc_status st = j.failed ? mc_err_set(err, MC_E_NOMEM, "no memory for the event \"%s\"", kind)
                            : append(path, &j, err);
    mc_json_fini(&j);
    return st;
}

mc_status mc_rundir_mend_events(const struct mc_rundir *rd, struct mc_err *err)
{
    char path[1100];
    int64_t size, end;
    int fd;
    MC_TRY(mc_rundir_file(rd, "events.jsonl", path, err));
    if (!mc_sys_exists(path))
        return MC_OK;
    MC_TRY(mc_sys_open(path, O_RDWR, 0, &fd, err));
    mc_status st = mc_sys_file_size(path, &size, err);
    if (st == MC_OK)
        st = mc_sys_whole_lines(fd, path, size, &end, err);
    if (st == MC_OK && end < size) /* I2 */
        st = mc_sys_ftruncate(fd, end, path, err);
    mc_status closed = mc_sys_close(fd, path, err);
    return st != MC_OK ? st : closed;
}
