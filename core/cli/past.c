/* past.c - what the history of a run says of a start: the checkpoint it goes on from, the recipe
 * that made it, and whether the run is over. Floor 8 (cli).
 *
 * I1  A start is compared with what it goes on from: the recipe kept in that checkpoint, whatever
 *     later starts wanted and did not get. Only without a checkpoint is it the newest segment.
 * I2  A checkpoint that ends the run is read to its last byte before it is said to.
 * I3  Nothing is written here.
 * I4  Damage that leaves nothing to go on from is MC_E_GIVEUP: a retry meets it again.
 *
 * Memory: the caller's struct. Threads: one. */
#include "cli.h"
#include "../base/arena.h"
#include "../base/log.h"
#include "../base/sysio.h"
#include "../train/books.h"
#include "../../ckpt/ckpt.h"
#include <stdio.h>
#include <string.h>

/* MC_E_CORRUPT: this one serves nobody. */
static mc_status look_at(const struct mc_ckpt_info *l, const struct mc_quantity *target,
                         struct mc_cli_past *p, struct mc_err *err)
{
    struct mc_ckpt *c;
    if (!l->whole)
        return mc_err_set(err, MC_E_CORRUPT, "%s: %s", l->path, l->why);
    MC_TRY(mc_ckpt_open(l->path, &c, err));
    struct mc_books *b = mc_alloc(sizeof *b, "books");
    mc_status st = b ? mc_books_read(mc_ckpt_books(c), NULL, b, NULL, err)
                     : mc_err_set(err, MC_E_NOMEM, "no memory for the books");
    if (st == MC_OK && mc_target_reached(target, &b->at) && !b->eval_owed) {
        st = mc_ckpt_verify(c, NULL, NULL, err); /* I2 */
        p->finished = st == MC_OK;
    }
    if (st == MC_OK) {
        snprintf(p->ckpt, sizeof p->ckpt, "%s", l->path);
        p->step = b->at.steps;
        p->loss = b->loss;
        p->weights_hash = b->weights_hash;
    }
    mc_free(b);
    mc_ckpt_close(c);
    return st;
}

static mc_status find_newest(const char *dir, const struct mc_quantity *target,
                             struct mc_cli_past *p, struct mc_err *err)
{
    struct mc_ckpt_info *l = NULL;
    struct mc_err why = {0};
    char all[900] = "";
    int n = 0;
    MC_TRY(mc_ckpt_list(dir, &l, &n, err));
    mc_status st = n == 0 ? MC_OK : MC_E_CORRUPT;
    for (int i = n - 1; i >= 0 && st == MC_E_CORRUPT; i--) {
        struct mc_err one = {0};
        st = look_at(&l[i], target, p, &one);
        if (st != MC_OK && (why.code == MC_OK || st != MC_E_CORRUPT))
            why = one;
        size_t len = strlen(all), skip = strlen(dir) + 1; /* each by its name, and why */
        snprintf(all + len, sizeof all - len, "%s%.200s", len ? "; " : "",
                 strncmp(one.msg, l[i].path, skip) ? one.msg : one.msg + skip);
    }
    mc_free(l);
    if (st == MC_E_CORRUPT)
        return mc_err_set(err, MC_E_GIVEUP,
                          "%s: none of its %d checkpoints is whole (%s); restore one from a copy, "
                          "or start a new run with another --run",
                          dir, n, all);
    if (st != MC_OK)
        return mc_err_set(err, st, "%s", why.msg);
    if (p->finished && why.code != MC_OK) /* else the rank meets the damage, and tells it */
        mc_log(MC_LOG_ERROR, "checkpoint not usable: %s", why.msg);
    return MC_OK;
}

mc_status mc_cli_past_find(const struct mc_rundir *rd, int64_t step,
                           const struct mc_quantity *target, struct mc_cli_past *p,
                           struct mc_err *err)
{
    char dir[1100];
    memset(p, 0, sizeof *p);
    MC_TRY(mc_rundir_file(rd, "ckpt", dir, err));
    if (step < 0)
        return find_newest(dir, target, p, err);
    p->step = step;
    struct mc_err why = {0};
    mc_status st = mc_ckpt_resolve(dir, step, p->ckpt, &why);
    if (st == MC_E_CORRUPT)
        return mc_err_set(err, MC_E_GIVEUP,
                          "%s; restore it from a copy, or go on from another step", why.msg);
    if (st != MC_OK && err)
        *err = why;
    return st;
}

mc_status mc_cli_past_recipe(const struct mc_rundir *rd, const struct mc_cli_past *p,
                             struct mc_recipe_box **box, struct mc_err *err)
{
    char path[1100];
    struct mc_ckpt *c;
    if (!p->ckpt[0]) {
        MC_TRY(mc_rundir_segment_file(rd, rd->segment, "resolved.json", path, err));
        struct mc_err why = {0};
        mc_status st = mc_recipe_read_json(path, box, &why);
        if (st == MC_E_CORRUPT || st == MC_E_NOTFOUND)
            return mc_err_set(err, MC_E_GIVEUP,
                              "%s; and there is no checkpoint that says what the run was. Nothing "
                              "was trained: delete the folder segments/%03d, or start a new run "
                              "with another --run",
                              why.msg, rd->segment);
        if (st != MC_OK && err)
            *err = why;
        return st;
    }
    MC_TRY(mc_ckpt_open(p->ckpt, &c, err));
    mc_status st = mc_books_recipe(mc_ckpt_books(c), box, err); /* I1 */
    mc_ckpt_close(c);
    return mc_err_trail(err, st, __FILE__, __LINE__);
}
