/* resolve.c - which checkpoints are there, and which one is meant.
 *
 * Floor 5 (ckpt).
 * I1  A checkpoint's folder is step-<9 digits or more>.e<epoch>; what else lies in ckpt/ is not
 *     looked at. Newest = highest (epoch, step): every start, restart or rollback begins an epoch.
 * I2  Without manifest.json there is no checkpoint. With one that does not hold there is a damaged
 *     checkpoint: it is listed, with the reason, and never chosen.
 * I3  "None exists" and "none is whole" are different answers: only the first may start afresh.
 * I4  No memory, or a folder that cannot be listed, is an error of its own, never "damaged" or
 *     "none".
 * Memory: the list belongs to the caller. Threads: any; a folder that vanishes meanwhile (retention
 * in another process) is left out. */
#include "ckpt_int.h"
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../core/base/arena.h"
#include "../core/base/sysio.h"

void mc_ckpt_name_print(int64_t step, int epoch, char dst[MC_CKPT_NAME])
{
    snprintf(dst, MC_CKPT_NAME, "step-%09lld.e%d", (long long)step, epoch);
}

static const char *digits(const char *s, int64_t most, int64_t *v)
{
    int64_t n = 0;
    if (!isdigit((unsigned char)*s))
        return NULL;
    for (; isdigit((unsigned char)*s); s++) {
        if (n > (most - (*s - '0')) / 10)
            return NULL;
        n = n * 10 + (*s - '0');
    }
    *v = n;
    return s;
}

int mc_ckpt_name_parse(const char *name, int64_t *step, int *epoch)
{
    char again[MC_CKPT_NAME];
    int64_t s, e;
    const char *p = name;
    if (strncmp(p, "step-", 5) || !(p = digits(p + 5, INT64_MAX, &s)) || strncmp(p, ".e", 2) ||
        !(p = digits(p + 2, INT_MAX, &e)) || *p)
        return 0;
    mc_ckpt_name_print(s, (int)e, again); /* I1: one name for one (step, epoch) */
    if (strcmp(again, name))
        return 0;
    *step = s;
    *epoch = (int)e;
    return 1;
}

/* Names in dir; a folder that is not there has none. */
static mc_status names_of(const char *dir, char ***names, int *n, struct mc_err *err)
{
    struct mc_err e = {0};
    mc_status st = mc_store_posix.names(dir, names, n, &e);
    if (st == MC_E_NOTFOUND) {
        *names = NULL;
        *n = 0;
        return MC_OK;
    }
    if (st != MC_OK) {
        mc_err_set(err, st, "%s", e.msg);
        if (err && !err->sys_errno)
            err->sys_errno = e.sys_errno;
    }
    return st;
}

mc_status mc_ckpt_top_epoch(const char *ckpt_dir, int *epoch, struct mc_err *err)
{
    char **names;
    int n, top = -1, e;
    int64_t step;
    MC_TRY(names_of(ckpt_dir, &names, &n, err));
    for (int i = 0; i < n; i++)
        if (mc_ckpt_name_parse(names[i], &step, &e) && e > top)
            top = e;
    mc_sys_list_free(names, n);
    *epoch = top;
    return MC_OK;
}

/* *there = 0: no checkpoint, or gone meanwhile. */
static mc_status look(const char *folder, int64_t step, int epoch, struct mc_ckpt_info *info,
                      int *there, struct mc_err *err)
{
    const struct mc_store_ops *store = &mc_store_posix;
    struct mc_ckpt *c = NULL;
    struct mc_err e = {0};
    *there = 0;
    memset(info, 0, sizeof *info);
    info->step = step;
    info->epoch = epoch;
    snprintf(info->path, sizeof info->path, "%s", folder);
    int yes = 0;
    mc_status st = store->committed(folder, &yes, &e);
    if (st == MC_OK && !yes) /* I2 */
        return MC_OK;
    if (st == MC_OK)
        st = mc_ckpt_open(folder, &c, &e);
    if (st == MC_E_NOMEM) /* I4 */
        return mc_err_set(err, st, "%s", e.msg);
    if (st != MC_OK) {
        yes = 1;
        store->committed(folder, &yes, NULL);
        *there = yes;
        size_t len = strlen(folder); /* the reader of `why` knows the folder */
        const char *why =
            !strncmp(e.msg, folder, len) && e.msg[len] == '/' ? e.msg + len + 1 : e.msg;
        snprintf(info->why, sizeof info->why, "%.199s", why);
        return MC_OK;
    }
    if (mc_ckpt_step(c) != step || mc_ckpt_epoch(c) != epoch) {
        snprintf(info->why, sizeof info->why, "its manifest is that of step %lld, epoch %d",
                 (long long)mc_ckpt_step(c), mc_ckpt_epoch(c));
    } else {
        mc_ckpt_measure(c, &info->bytes, &info->unix_time);
        info->whole = 1;
    }
    *there = 1;
    mc_ckpt_close(c);
    return MC_OK;
}

static int older_first(const void *pa, const void *pb)
{
    const struct mc_ckpt_info *a = pa, *b = pb;
    if (a->epoch != b->epoch)
        return a->epoch < b->epoch ? -1 : 1;
    return (a->step > b->step) - (a->step < b->step);
}

mc_status mc_ckpt_list(const char *ckpt_dir, struct mc_ckpt_info **list, int *n, struct mc_err *err)
{
    char **names, folder[MC_CKPT_PATH];
    int nnames, len = 0;
    mc_status st = MC_OK;
    MC_TRY(names_of(ckpt_dir, &names, &nnames, err));
    struct mc_ckpt_info *r = mc_alloc(((size_t)nnames + 1) * sizeof *r, "list of checkpoints");
    if (!r)
        st = mc_err_set(err, MC_E_NOMEM, "%s: no memory to list it", ckpt_dir);
    for (int i = 0; i < nnames && st == MC_OK; i++) {
        int64_t step;
        int epoch, there;
        if (!mc_ckpt_name_parse(names[i], &step, &epoch))
            continue;
        st = mc_path_join(folder, sizeof folder, ckpt_dir, names[i], err);
        if (st == MC_OK)
            st = look(folder, step, epoch, &r[len], &there, err);
        if (st == MC_OK)
            len += there;
    }
    mc_sys_list_free(names, nnames);
    if (st != MC_OK) {
        mc_free(r);
        return mc_err_trail(err, st, __FILE__, __LINE__);
    }
    if (len > 1)
        qsort(r, (size_t)len, sizeof *r, older_first);
    *list = r;
    *n = len;
    return MC_OK;
}

/* As store->committed: only a "no" is a no. */
static mc_status is_there(const char *path, int *yes, struct mc_err *err)
{
    int64_t bytes;
    struct mc_err e = {0};
    mc_status st = mc_sys_file_size(path, &bytes, &e);
    *yes = st == MC_OK;
    if (st == MC_OK || st == MC_E_NOTFOUND)
        return MC_OK;
    mc_err_set(err, st, "%s", e.msg);
    if (err && !err->sys_errno)
        err->sys_errno = e.sys_errno;
    return st;
}

/* One checkpoint folder, named by the user. */
static mc_status resolve_one(const char *folder, int64_t step, char out[1100], struct mc_err *err)
{
    struct mc_ckpt *c;
    MC_TRY(mc_ckpt_open(folder, &c, err));
    int64_t have = mc_ckpt_step(c);
    mc_ckpt_close(c);
    if (step >= 0 && have != step)
        return mc_err_set(err, MC_E_NOTFOUND, "%s: is the checkpoint of step %lld, not of %lld",
                          folder, (long long)have, (long long)step);
    snprintf(out, MC_CKPT_PATH, "%s", folder);
    return MC_OK;
}

/* "20, 40, 50": steps that there are, each once, the newest if there are too many. */
static void print_steps(const struct mc_ckpt_info *list, int n, char dst[200])
{
    int64_t step[9];
    int k = 0, more = 0;
    for (int i = n - 1; i >= 0; i--) {
        int at = 0;
        while (at < k && step[at] > list[i].step)
            at++;
        if (at < k && step[at] == list[i].step)
            continue;
        if (k == 8)
            more = 1;
        for (int m = k < 8 ? k : 7; m > at; m--)
            step[m] = step[m - 1];
        if (at < 8)
            step[at] = list[i].step;
        k += k < 8;
    }
    size_t len = (size_t)snprintf(dst, 200, "%s", more ? "..., " : "");
    for (int i = k - 1; i >= 0; i--)
        len += (size_t)snprintf(dst + len, 200 - len, "%lld%s", (long long)step[i], i ? ", " : "");
}

/* The list of ckpt_dir: the newest whole one, of `step` if it is given. */
static mc_status choose(const char *ckpt_dir, int64_t step, char out[1100], struct mc_err *err)
{
    struct mc_ckpt_info *list;
    int n, seen = 0;
    char why[sizeof list->why + 1200] = "", steps[200];
    MC_TRY(mc_ckpt_list(ckpt_dir, &list, &n, err));
    mc_status st = MC_E_NOTFOUND;
    for (int i = n - 1; i >= 0 && st != MC_OK; i--) {
        if (step >= 0 && list[i].step != step)
            continue;
        if (list[i].whole) {
            snprintf(out, MC_CKPT_PATH, "%s", list[i].path);
            st = MC_OK;
        } else if (!seen++) {
            snprintf(why, sizeof why, "%s: %s", list[i].path, list[i].why);
        }
    }
    print_steps(list, n, steps);
    mc_free(list);
    if (st == MC_OK)
        return MC_OK;
    if (seen) /* I3 */
        return mc_err_set(err, MC_E_CORRUPT, "%s: %d checkpoint%s there, but none is whole; %s",
                          ckpt_dir, seen, seen == 1 ? " is" : "s are", why);
    if (step >= 0 && n > 0)
        return mc_err_set(err, MC_E_NOTFOUND, "%s: no checkpoint of step %lld; there are: %s",
                          ckpt_dir, (long long)step, steps);
    return mc_err_set(err, MC_E_NOTFOUND, "%s: no checkpoint", ckpt_dir);
}

mc_status mc_ckpt_resolve(const char *path, int64_t step, char out[1100], struct mc_err *err)
{
    char sub[MC_CKPT_PATH];
    size_t len = strlen(path);
    int64_t s;
    int e, yes;
    while (len > 1 && path[len - 1] == '/')
        len--;
    if (len == 0 || len >= sizeof sub - 16)
        return mc_err_set(err, MC_E_NOTFOUND, "\"%s\": not a path of a checkpoint", path);
    memcpy(sub, path, len);
    sub[len] = 0;
    MC_TRY(is_there(sub, &yes, err));
    if (!yes)
        return mc_err_set(err, MC_E_NOTFOUND, "%s: no such folder", sub);
    MC_TRY(mc_store_posix.committed(sub, &yes, err));
    if (yes)
        return resolve_one(sub, step, out, err);
    const char *base = strrchr(sub, '/');
    if (mc_ckpt_name_parse(base ? base + 1 : sub, &s, &e))
        return mc_err_set(err, MC_E_NOTFOUND,
                          "%s: unfinished (it has no manifest.json), so it is no checkpoint", sub);
    memcpy(sub + len, "/ckpt", 6);
    MC_TRY(is_there(sub, &yes, err));
    if (!yes)
        sub[len] = 0;
    return choose(sub, step, out, err);
}
