/* model.c - RUN|CKPT on the command line: which checkpoint, and what its recipe is. Floor 8 (cli).
 *
 * I1  The recipe is the one kept in the checkpoint, so that a checkpoint can be copied away from
 *     its run and still be used; --recipe overrides it.
 *
 * Memory: struct mc_cli_model owns the recipe. Threads: one. */
#include "cli.h"
#include "../train/books.h"
#include "../../ckpt/ckpt.h"
#include <stdio.h>
#include <string.h>

static mc_status own_recipe(struct mc_cli_model *m, struct mc_err *err)
{
    struct mc_ckpt *c;
    MC_TRY(mc_ckpt_open(m->ckpt, &c, err));
    m->at = mc_ckpt_step(c);
    mc_status st = m->recipe_path ? MC_OK : mc_books_recipe(mc_ckpt_books(c), &m->box, err);
    mc_ckpt_close(c);
    return mc_err_trail(err, st, __FILE__, __LINE__);
}

static mc_status open_model(struct mc_cli_model *m, int *rc, struct mc_err *err)
{
    MC_TRY(mc_ckpt_resolve(m->path, m->step, m->ckpt, err));
    MC_TRY(own_recipe(m, err));
    if (m->recipe_path) {
        m->own.path = m->recipe_path;
        m->own.device = m->device;
        *rc = mc_cli_load(&m->own);
        m->recipe = m->own.recipe;
        return MC_OK;
    }
    m->recipe = mc_recipe_of(m->box);
    if (m->device) {
        int kind = mc_device_kind_parse(m->device);
        if (kind < 0)
            return mc_err_set(err, MC_E_USAGE, "--device: \"%.60s\" is not cpu or cuda", m->device);
        m->recipe->device = (enum mc_device_kind)kind;
    }
    return MC_OK;
}

int mc_cli_model_open(struct mc_cli_model *m)
{
    struct mc_err err = {0};
    int rc = 0;
    mc_status st = open_model(m, &rc, &err);
    return st == MC_OK ? rc : mc_say_error(&err, st);
}

void mc_cli_model_close(struct mc_cli_model *m)
{
    mc_cli_unload(&m->own);
    if (m->box)
        mc_recipe_destroy(m->box);
    m->box = NULL;
}
