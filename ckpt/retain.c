/* retain.c - what may be deleted: unfinished folders, and old checkpoints behind verified new ones.
 *
 * Floor 5 (ckpt). The caller holds the run's lock.
 * I1  Counting from the newest, checkpoints are read back in full until `keep` (>= 2) have proven
 *     whole; only what is older than the last of those is deleted. Damaged ones among the newer are
 *     left for people to look at; they do not count.
 * I2  The kept ones' names are synced before anything is deleted: a save whose last sync failed
 *     must not outlive the only durable copy.
 * I3  Order of a deletion: store_posix.c I3. Killed at any call, it leaves whole checkpoints and
 *     folders without a manifest, and the next retention sweeps those.
 * I4  A folder of a later epoch means that this process is a zombie: nothing is deleted at all. An
 *     unfinished folder is swept if its epoch is not later, and this process is not writing it.
 * I5  The newest is read back at every retention that deletes something. What this process has
 *     proven before is remembered by the manifest's hash, not in a file: a note beside the data
 *     would say nothing about what the disk has done to it since.
 * I6  A damaged checkpoint is named once in a process, not at every retention that meets it.
 * Memory: the memory of I5 and I6, 64 entries each, process life; a list while it runs. Threads:
 * one at a time, by the run's lock. */
#include "ckpt_int.h"
#include <stdio.h>
#include <string.h>
#include "../core/base/arena.h"
#include "../core/base/log.h"
#include "../core/base/sysio.h"

enum { REMEMBERED = 64 };
static uint64_t g_proven[REMEMBERED]; /* digests of manifests whose data was read back whole */
static int g_next;

static int64_t g_told[REMEMBERED]; /* (epoch, step) of the damaged ones that were named */
static int g_next_told;

/* 1 the first time. */
static int tell(const struct mc_ckpt_info *info)
{
    int64_t id = (int64_t)info->epoch << 40 ^ (info->step + 1);
    for (int i = 0; i < REMEMBERED; i++)
        if (g_told[i] == id)
            return 0;
    g_told[g_next_told++ % REMEMBERED] = id;
    return 1;
}

static int proven(uint64_t digest)
{
    for (int i = 0; i < REMEMBERED; i++)
        if (g_proven[i] == digest && digest)
            return 1;
    return 0;
}

/* *ok: read back whole. MC_E_NOMEM is an error, any other failure is "not proven". */
static mc_status prove(const struct mc_ckpt_info *info, int anew, int *ok, struct mc_err *err)
{
    struct mc_ckpt *c = NULL;
    struct mc_err e = {0};
    *ok = 0;
    if (!info->whole)
        return MC_OK;
    mc_status st = mc_ckpt_open(info->path, &c, &e);
    if (st == MC_OK && (anew || !proven(mc_ckpt_digest(c)))) {
        st = mc_ckpt_verify(c, NULL, NULL, &e);
        if (st == MC_OK && !proven(mc_ckpt_digest(c)))
            g_proven[g_next++ % REMEMBERED] = mc_ckpt_digest(c);
    }
    mc_ckpt_close(c);
    if (st == MC_E_NOMEM)
        return mc_err_set(err, st, "%s", e.msg);
    if (st != MC_OK && tell(info))
        mc_log(MC_LOG_WARN, "retention: %s", e.msg);
    *ok = st == MC_OK;
    return MC_OK;
}

static mc_status sweep_unfinished(const char *ckpt_dir, int this_epoch, struct mc_err *err)
{
    const struct mc_store_ops *store = &mc_store_posix;
    char **names, folder[MC_CKPT_PATH];
    int n, swept = 0;
    mc_status st = MC_OK;
    MC_TRY(store->names(ckpt_dir, &names, &n, err));
    for (int i = 0; i < n && st == MC_OK; i++) {
        int64_t step;
        int epoch, left, yes;
        if (!mc_ckpt_name_parse(names[i], &step, &epoch) || epoch > this_epoch ||
            mc_writer_busy(step, epoch)) /* I4 */
            continue;
        st = mc_path_join(folder, sizeof folder, ckpt_dir, names[i], err);
        if (st != MC_OK)
            break;
        if (!mc_sys_is_dir(folder)) /* a file of that name is nobody's checkpoint */
            continue;
        st = store->committed(folder, &yes, err);
        if (st == MC_OK && yes) {
            st = store->sweep_tmp(folder, err);
            continue;
        }
        left = 0;
        if (st == MC_OK)
            st = store->sweep(folder, &left, err);
        swept++;
        if (st == MC_OK && left)
            mc_log(MC_LOG_WARN,
                   "retention: %s is unfinished, but holds files of others: left there", folder);
    }
    mc_sys_list_free(names, n);
    if (st == MC_OK && swept)
        st = store->sync(ckpt_dir, err);
    return st;
}

static mc_status delete_older(const char *ckpt_dir, const struct mc_ckpt_info *list, int n,
                              int keep, struct mc_err *err)
{
    const struct mc_store_ops *store = &mc_store_posix;
    char name[MC_CKPT_NAME];
    int kept = 0, i, left;
    for (i = n - 1; i >= 0 && kept < keep; i--) { /* I1 */
        int ok;
        MC_TRY(prove(&list[i], i == n - 1, &ok, err));
        kept += ok;
        if (ok) { /* I2 */
            mc_ckpt_name_print(list[i].step, list[i].epoch, name);
            MC_TRY(store->settle(ckpt_dir, name, err));
        }
    }
    if (kept < keep || i < 0)
        return MC_OK;
    for (int k = 0; k <= i; k++) { /* oldest first: what a kill leaves is still the newest */
        MC_TRY(store->uncommit(list[k].path, err)); /* I3 */
        MC_TRY(store->sweep(list[k].path, &left, err));
        if (left)
            mc_log(MC_LOG_WARN, "retention: %s is deleted, but for files of others in it",
                   list[k].path);
    }
    return store->sync(ckpt_dir, err);
}

mc_status mc_ckpt_retain(const char *ckpt_dir, int keep, int this_epoch, struct mc_err *err)
{
    struct mc_ckpt_info *list;
    int n, top;
    if (keep < 2)
        return mc_err_set(err, MC_E_BUG, "retention: keep %d; at least 2 are kept", keep);
    MC_TRY(mc_ckpt_top_epoch(ckpt_dir, &top, err));
    if (top < 0)
        return MC_OK;
    if (top > this_epoch) /* I4 */
        return mc_err_set(err, MC_E_MACHINE,
                          "%s: a later start of this run (epoch %d) has written here; this process "
                          "belongs to epoch %d and must not delete anything",
                          ckpt_dir, top, this_epoch);
    MC_TRY(sweep_unfinished(ckpt_dir, this_epoch, err));
    MC_TRY(mc_ckpt_list(ckpt_dir, &list, &n, err));
    mc_status st = n > keep ? delete_older(ckpt_dir, list, n, keep, err) : MC_OK;
    mc_free(list);
    return st == MC_OK ? st : mc_err_trail(err, st, __FILE__, __LINE__);
}
