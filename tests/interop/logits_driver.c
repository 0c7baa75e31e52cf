/* logits_driver.c - the logits of a checkpoint, for comparison with other programs.
 * links: mc_train
 * logits_driver CKPT: the ids come on stdin, one after another; for each the logits of the next
 * token on stdout, vocab native doubles, fed one by one through the cache. The recipe is the
 * checkpoint's own. */
#include <stdio.h>
#include <string.h>
#include "../../ckpt/ckpt.h"
#include "../../core/tensor/bf16.h"
#include "../../core/train/books.h"
#include "../../core/train/session_int.h"

static mc_status run(const char *path, struct mc_err *err)
{
    struct mc_ckpt *c;
    struct mc_recipe_box *box = NULL;
    struct mc_session *s = NULL;
    struct mc_graph *g;
    int id, at = 0;
    MC_TRY(mc_ckpt_open(path, &c, err));
    mc_status st = mc_books_recipe(mc_ckpt_books(c), &box, err);
    mc_ckpt_close(c);
    MC_TRY(st);
    struct mc_recipe *r = mc_recipe_of(box);
    st = mc_session_open(&(struct mc_session_cfg){.recipe = r, .ckpt_path = path, .threads = 2}, &s,
                         err);
    if (st == MC_OK)
        st = mc_session_graph(s, MC_GRAPH_INFER, &g, err);
    while (st == MC_OK && at < r->model.seq && scanf("%d", &id) == 1) {
        const int32_t token = id;
        const void *logits;
        st = mc_graph_infer(g, &token, 1, at++, &logits, err);
        for (int64_t i = 0; st == MC_OK && i < r->model.vocab; i++) {
            double v = s->kern->dtype == MC_F64    ? ((const double *)logits)[i]
                       : s->kern->dtype == MC_BF16 ? mc_bf16_to_f32(((const uint16_t *)logits)[i])
                                                   : ((const float *)logits)[i];
            fwrite(&v, sizeof v, 1, stdout);
        }
    }
    mc_session_close(s);
    mc_recipe_destroy(box);
    return st;
}

int main(int argc, char **argv)
{
    struct mc_err err = {0};
    if (argc != 2) {
        fprintf(stderr, "usage: logits_driver CKPT <ids >logits\n");
        return 2;
    }
    if (run(argv[1], &err) == MC_OK && fflush(stdout) == 0)
        return 0;
    fprintf(stderr, "logits_driver: %s\n", err.msg);
    return 1;
}
