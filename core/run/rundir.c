/* rundir.c - a run folder: recognised, locked, given segments. Floor 3 (run).
 *
 * I1  One holder. The lock is a flock on run.lock: it belongs to the open file description, which
 *     the ranks inherit, so it lasts until the last of them is gone. What is written in run.lock is
 *     for messages and for telling a dying run from a living one; the flock alone decides.
 * I2  Segment numbers never repeat and a segment is whole or absent: its files are made durable in
 *     segments/NNN.new, which is then renamed to segments/NNN.
 * I3  No file holds the folder's own path.
 * I4  A folder is a run of ours if it holds run.lock or segments/. Nothing is ever written into a
 *     non-empty folder that is none.
 *
 * I5  A lock on a file that is no longer RUN/run.lock protects nothing: someone deleted the folder
 * or the lock. Then nothing is written into it any more, and it is not made anew.
 *
 * run.lock, one line of JSON, written by the holder after it has the lock:
 *     pid    of the agent           host   as gethostname
 *     start  its start in clock ticks since boot (/proc/PID/stat, field 22): a reused pid differs
 *     time   for people
 *
 * Memory: the caller's struct. Threads: one. */
#include "rundir.h"
#include "../base/arena.h"
#include "../base/clock.h"
#include "../base/sysio.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_NAME     "run.lock"
#define LOCK_WAIT_NS  INT64_C(5000000000) /* for the ranks of a dead agent to be gone */
#define ALIVE_WAIT_NS INT64_C(250000000)  /* for kill -9 to take effect */
#define LOCK_POLL_US  20000

/* ---- open ---- */

/* "007" -> 7; 0 when it is no number of at least three digits. */
static int number_of(const char *name)
{
    size_t n = strspn(name, "0123456789");
    if (n < 3 || n > 9 || (name[n] != 0 && strcmp(name + n, ".json") != 0))
        return 0;
    return atoi(name);
}

/* The highest number among the names in RUN/sub; 0 when there is none, or no such folder. */
static mc_status highest_in(const struct mc_rundir *rd, const char *sub, int *highest,
                            struct mc_err *err)
{
    char path[1100], **names;
    int n, max = 0;
    MC_TRY(mc_rundir_file(rd, sub, path, err));
    if (!mc_sys_is_dir(path)) {
        *highest = 0;
        return MC_OK;
    }
    MC_TRY(mc_sys_list(path, &names, &n, err));
    for (int i = 0; i < n; i++)
        if (number_of(names[i]) > max)
            max = number_of(names[i]);
    mc_sys_list_free(names, n);
    *highest = max;
    return MC_OK;
}

/* *ours: run.lock or segments is there. *empty: nothing is. */
static mc_status look_at(const char *path, int *ours, int *empty, struct mc_err *err)
{
    char **names;
    int n;
    MC_TRY(mc_sys_list(path, &names, &n, err));
    *ours = 0;
    *empty = n == 0;
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], LOCK_NAME) == 0 || strcmp(names[i], "segments") == 0)
            *ours = 1;
    mc_sys_list_free(names, n);
    return MC_OK;
}

static mc_status make_folders(const struct mc_rundir *rd, struct mc_err *err)
{
    /* segments first: it marks the folder as ours (I4) */
    static const char *const sub[] = {"segments", "incidents", "ckpt", "logs"};
    int any = 0;
    for (size_t i = 0; i < sizeof sub / sizeof *sub; i++) {
        char p[1100];
        int made;
        MC_TRY(mc_rundir_file(rd, sub[i], p, err));
        MC_TRY(mc_sys_mkdir(p, &made, err));
        any |= made;
    }
    if (any)
        MC_TRY(mc_sys_fsync_dir(rd->path, err));
    return MC_OK;
}

mc_status mc_rundir_open(const char *path, int create, struct mc_rundir *rd, struct mc_err *err)
{
    struct mc_rundir r = {.lock_fd = -1};
    size_t n = strlen(path);
    int ours = 0, empty = 1;
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (n == 0 || n >= sizeof r.path - 64) /* room for the files below it */
        return mc_err_set(err, MC_E_USAGE, "a run folder's path must have 1 to %zu bytes, not %zu",
                          sizeof r.path - 65, n);
    memcpy(r.path, path, n);
    if (!mc_sys_exists(r.path)) {
        if (!create)
            return mc_err_set(err, MC_E_NOTFOUND, "there is no run folder %s", r.path);
        MC_TRY(mc_sys_mkdirs(r.path, err));
    }
    if (!mc_sys_is_dir(r.path))
        return mc_err_set(err, MC_E_MACHINE, "%s is a file, not a run folder; use another --run",
                          r.path);
    MC_TRY(look_at(r.path, &ours, &empty, err));
    if (!ours && !empty) /* I4 */
        return mc_err_set(err, MC_E_MACHINE,
                          "the folder %s is not empty and holds no run of mascon (no segments/); "
                          "choose another --run",
                          r.path);
    if (!ours && !create)
        return mc_err_set(err, MC_E_NOTFOUND, "the folder %s is empty: no run was started there",
                          r.path);
    if (create)
        MC_TRY(make_folders(&r, err));
    MC_TRY(highest_in(&r, "segments", &r.segment, err));
    *rd = r;
    return MC_OK;
}

void mc_rundir_close(struct mc_rundir *rd)
{
    if (rd->lock_fd != -1)
        close(rd->lock_fd);
    rd->lock_fd = -1;
}

mc_status mc_rundir_file(const struct mc_rundir *rd, const char *name, char out[1100],
                         struct mc_err *err)
{
    return mc_path_join(out, 1100, rd->path, name, err);
}

mc_status mc_rundir_segment_file(const struct mc_rundir *rd, int segment, const char *name,
                                 char out[1100], struct mc_err *err)
{
    int w = snprintf(out, 1100, "%s/segments/%03d/%s", rd->path, segment, name);
    if (w < 0 || w >= 1100)
        return mc_err_set(err, MC_E_USAGE, "the path of %.80s in segment %d is too long", name,
                          segment);
    return MC_OK;
}

/* ---- lock (I1) ---- */

struct holder {
    int known; /* run.lock could be read */
    long long pid, start;
    char host[256];
    int here, alive; /* on this host; and that very process exists */
};

/* Start of a process in clock ticks since boot; -1 when there is no such process. Zombies count as
 * gone: they hold nothing. */
static long long start_of(long long pid)
{
    char path[64], *text, state = 0;
    size_t n;
    long long start = -1;
    snprintf(path, sizeof path, "/proc/%lld/stat", pid);
    if (mc_sys_read_file(path, 8192, &text, &n, NULL) != MC_OK)
        return -1;
    char *p = strrchr(text, ')'); /* the name before it may hold anything */
    if (p) {
        p++;
        for (int field = 3; *p && field <= 22; field++) {
            p += strspn(p, " ");
            if (field == 3)
                state = *p;
            if (field == 22)
                start = strtoll(p, NULL, 10);
            p += strcspn(p, " ");
        }
    }
    mc_free(text);
    return state == 'Z' || state == 'X' ? -1 : start;
}

static void this_host(char dst[256])
{
    if (gethostname(dst, 256) == -1)
        dst[0] = 0;
    dst[255] = 0;
}

static void read_holder(const char *path, struct holder *h)
{
    char *text, host[256];
    size_t n;
    memset(h, 0, sizeof *h);
    if (mc_sys_read_file(path, 65536, &text, &n, NULL) != MC_OK)
        return;
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    mc_free(text);
    const char *s = json_string_value(json_object_get(j, "host"));
    h->pid = json_integer_value(json_object_get(j, "pid"));
    h->start = json_integer_value(json_object_get(j, "start"));
    if (s && h->pid > 0) {
        h->known = 1;
        snprintf(h->host, sizeof h->host, "%s", s);
        this_host(host);
        h->here = strcmp(host, h->host) == 0;
        h->alive = h->here && start_of(h->pid) == h->start;
    }
    json_decref(j);
}

static mc_status write_holder(int fd, const char *path, struct mc_err *err)
{
    char text[1024], host[256], now[40];
    struct mc_json j;
    this_host(host);
    mc_clock_iso(now, sizeof now);
    mc_json_init_fixed(&j, text, sizeof text);
    mc_json_open(&j, NULL, '{');
    mc_json_i64(&j, "pid", getpid());
    mc_json_str(&j, "host", host);
    mc_json_i64(&j, "start", start_of(getpid()));
    mc_json_str(&j, "time", now);
    mc_json_close(&j, '}');
    MC_ASSERT(!j.failed && j.len + 1 < sizeof text);
    text[j.len++] = '\n';
    MC_TRY(mc_sys_ftruncate(fd, 0, path, err));
    return mc_sys_write_all(fd, text, j.len, path, err);
}

static mc_status refuse(const struct mc_rundir *rd, const struct holder *h, struct mc_err *err)
{
    if (!h->known)
        return mc_err_set(err, MC_E_MACHINE,
                          "the run folder %s is in use by a process that has not said who it is; "
                          "try again, or use another --run",
                          rd->path);
    if (h->here && !h->alive)
        return mc_err_set(err, MC_E_MACHINE,
                          "the run folder %s is in use: its agent, pid %lld on host %s, is dead, "
                          "but ranks of it are still there after 5 seconds; end them, then start "
                          "again",
                          rd->path, h->pid, h->host);
    return mc_err_set(err, MC_E_MACHINE,
                      "the run folder %s is in use by mascon, pid %lld on host %s; wait for it, "
                      "stop it (kill %lld), or use another --run",
                      rd->path, h->pid, h->host, h->pid);
}

/* 1: fd is the file at path. 0: another one is there, or none. -1: it cannot be told. */
static int is_at(int fd, const char *path)
{
    struct stat a, b;
    if (fstat(fd, &a) == -1)
        return -1;
    if (stat(path, &b) == -1)
        return errno == ENOENT || errno == ENOTDIR ? 0 : -1;
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

mc_status mc_rundir_held(const struct mc_rundir *rd, struct mc_err *err)
{
    char path[1100];
    if (rd->lock_fd < 0)
        return MC_OK;
    MC_TRY(mc_rundir_file(rd, LOCK_NAME, path, err));
    if (is_at(rd->lock_fd, path) != 0)
        return MC_OK;
    return mc_err_set(
        err, MC_E_FAILED,
        "the run folder %s was deleted or replaced while this run was going on (%s is "
        "not the file that it locked); the run has stopped and writes nothing there "
        "any more",
        rd->path, LOCK_NAME);
}

mc_status mc_rundir_lock(struct mc_rundir *rd, struct mc_err *err)
{
    char path[1100];
    int fd;
    struct holder h;
    mc_status st = MC_OK;
    int64_t began = mc_clock_ns();
    MC_TRY(mc_rundir_file(rd, LOCK_NAME, path, err));
    MC_TRY(mc_sys_open(path, O_RDWR | O_CREAT, 0666, &fd, err));
    while (flock(fd, LOCK_EX | LOCK_NB) == -1) {
        if (errno == EINTR)
            continue;
        if (errno != EWOULDBLOCK) {
            st = mc_err_set(err, MC_E_MACHINE,
                            "cannot lock %s: %s; the file system must know "
                            "flock: use another --run",
                            path, strerror(errno));
            break;
        }
        read_holder(path, &h);
        /* A holder that is alive is not waited for, but for the moment in which a killed one is
         * still there; one that cannot be looked at from here, not at all. An unreadable line is a
         * holder between its flock and its write: a moment, too. */
        int64_t waited = mc_clock_ns() - began;
        if ((h.known && !h.here) || (h.alive && waited >= ALIVE_WAIT_NS) ||
            waited >= LOCK_WAIT_NS) {
            st = refuse(rd, &h, err);
            break;
        }
        usleep(LOCK_POLL_US);
    }
    if (st == MC_OK && is_at(fd, path) == 0) /* I5: deleted between open and flock */
        st = mc_err_set(err, MC_E_MACHINE, "%s was deleted while it was being locked; start again",
                        path);
    if (st == MC_OK)
        st = write_holder(fd, path, err);
    if (st != MC_OK) {
        close(fd);
        return st;
    }
    rd->lock_fd = fd;
    return MC_OK;
}

/* ---- segments (I2) ---- */

/* Writes and syncs dir/name; the folder is synced by the caller, once for all files. */
static mc_status put_file(const char *dir, const char *name, const char *text, struct mc_err *err)
{
    char path[1200];
    int fd;
    MC_TRY(mc_path_join(path, sizeof path, dir, name, err));
    if (!text)
        return mc_sys_unlink(path, err); /* of a crashed predecessor */
    MC_TRY(mc_sys_open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666, &fd, err));
    mc_status st = mc_sys_write_all(fd, text, strlen(text), path, err);
    if (st == MC_OK)
        st = mc_sys_fsync(fd, path, err);
    mc_status closed = mc_sys_close(fd, path, err);
    return st != MC_OK ? st : closed;
}

mc_status mc_rundir_new_segment(struct mc_rundir *rd, const struct mc_segment_text *text,
                                struct mc_err *err)
{
    char all[1100], fresh[1100], final[1100], name[32];
    int n;
    MC_TRY(mc_rundir_held(rd, err)); /* I5 */
    MC_TRY(mc_rundir_mend_events(rd, err));
    MC_TRY(highest_in(rd, "segments", &n, err));
    n = (n > rd->segment ? n : rd->segment) + 1;
    MC_TRY(mc_rundir_file(rd, "segments", all, err));
    snprintf(name, sizeof name, "segments/%03d", n);
    MC_TRY(mc_rundir_file(rd, name, final, err));
    snprintf(name, sizeof name, "segments/%03d.new", n);
    MC_TRY(mc_rundir_file(rd, name, fresh, err));
    MC_TRY(mc_sys_mkdir(fresh, NULL, err)); /* what a crash left under that name is overwritten */
    MC_TRY(put_file(fresh, "recipe.lua", text->recipe, err));
    MC_TRY(put_file(fresh, "resolved.json", text->resolved, err));
    MC_TRY(put_file(fresh, "launch_map.tsv", text->launch_map, err));
    MC_TRY(put_file(fresh, "schedule.txt", text->schedule, err));
    MC_TRY(mc_sys_fsync_dir(fresh, err));
    MC_TRY(mc_sys_rename(fresh, final, err));
    MC_TRY(mc_sys_fsync_dir(all, err));
    rd->segment = n;
    return MC_OK;
}

/* ---- incidents: next number, whole file ---- */

mc_status mc_rundir_incident(const struct mc_rundir *rd, const struct mc_incident *in, int *number,
                             struct mc_err *err)
{
    char path[1100], name[40], now[40];
    struct mc_json j;
    int n;
    MC_TRY(mc_rundir_held(rd, err)); /* I5 */
    MC_TRY(highest_in(rd, "incidents", &n, err));
    n++;
    MC_TRY(mc_rundir_file(rd, "incidents", path, err));
    MC_TRY(mc_sys_mkdir(path, NULL, err));
    snprintf(name, sizeof name, "incidents/%03d.json", n);
    MC_TRY(mc_rundir_file(rd, name, path, err));
    mc_clock_iso(now, sizeof now);
    mc_json_init_grow(&j);
    j.pretty = 1;
    mc_json_open(&j, NULL, '{');
    mc_json_str(&j, "time", now);
    mc_json_open(&j, "cause", '{');
    mc_json_str(&j, "class", in->cls);
    mc_json_i64(&j, "rank", in->rank);
    mc_json_i64(&j, "pid", in->pid);
    mc_json_str(&j, "node", in->node);
    mc_json_str(&j, "message", in->message);
    mc_json_close(&j, '}');
    mc_json_i64(&j, "step", in->step);
    mc_json_i64(&j, "segment", rd->segment);
    mc_json_raw(&j, "flight", in->flight ? in->flight : "[]");
    if (in->others)
        mc_json_raw(&j, "others", in->others);
    mc_json_close(&j, '}');
    mc_status st = j.failed ? mc_err_set(err, MC_E_NOMEM, "no memory to write %s", path)
                            : mc_sys_replace_file(path, j.buf, j.len, err);
    mc_json_fini(&j);
    if (st == MC_OK && number)
        *number = n;
    return st;
}
