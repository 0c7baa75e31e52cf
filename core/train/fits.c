/* fits.c - would a checkpoint load into this run? Asked before a segment is opened. Floor 6
 * (train).
 *
 * I1  The answer is that of the load itself: the same graph, the optimizer's names (optim.h), the
 *     checkpoint's and the cursor's own comparisons. What differs is that no tensor is filled.
 * I2  Nothing is written, and no memory of the run's size is taken.
 *
 * Memory: the graph, the data's handles and a list of tensors, freed here. Threads: one. */
#include "books.h"
#include "train_int.h"
#include "../../ckpt/ckpt.h"

mc_status mc_tensors_fit(const struct mc_recipe *r, const struct mc_graph *model,
                         const struct mc_ckpt *c, struct mc_err *err)
{
    int n = mc_optim_tensors(model, r->precision, NULL, 0);
    int skip = mc_weights_stored(c) ? 0 : mc_weights_rebuilt(model, r->precision);
    struct mc_state_tensor *t = mc_alloc((size_t)n * sizeof *t, "list of tensors");
    if (!t)
        return mc_err_set(err, MC_E_NOMEM, "no memory for %d tensors", n);
    mc_optim_tensors(model, r->precision, t, n);
    mc_status st = mc_ckpt_fits(c, t + skip, n - skip, 1, err); /* I1 */
    mc_free(t);
    return st;
}

static mc_status books_fit(const struct mc_recipe *r, const char *base_dir, const struct mc_ckpt *c,
                           struct mc_err *err)
{
    struct mc_data *d = NULL;
    struct mc_books *b = mc_alloc(sizeof *b, "books");
    if (!b)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the books");
    mc_books_init(b, r);
    mc_status st = mc_data_open(r, base_dir, &d, err);
    if (st == MC_OK) {
        struct mc_books_run run = {.recipe = r, .data = d};
        st = mc_books_read(mc_ckpt_books(c), &run, b, NULL, err);
    }
    mc_data_close(d);
    mc_free(b);
    return st;
}

mc_status mc_train_fits(const struct mc_recipe *r, const char *base_dir, int threads,
                        const char *ckpt_path, struct mc_err *err)
{
    struct mc_graphs g = {0};
    struct mc_ckpt *c;
    MC_TRY(mc_ckpt_open(ckpt_path, &c, err));
    mc_status st =
        mc_graphs_build(&(struct mc_graphs_cfg){.recipe = r, .threads = threads}, &g, err);
    if (st == MC_OK)
        st = mc_tensors_fit(r, g.whole, c, err);
    if (st == MC_OK)
        st = books_fit(r, base_dir, c, err);
    mc_graphs_destroy(&g);
    mc_ckpt_close(c);
    return mc_err_trail(err, st, __FILE__, __LINE__);
}
