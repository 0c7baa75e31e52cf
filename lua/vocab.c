/* vocab.c - model.vocab and model.eos from the recipe's tokenizer. Floor 7 (lua).
 *
 * The recipe's floor knows no tokenizers, so the file is asked here, on the tree of values: a key
 * that the recipe does not give gets a value whose origin is the tokenizer's file, and everything
 * after that (tracing, binding, explain, resolved.json) sees it as if it had been given.
 *
 * I1  A name that is no file ("gpt2", for token files of others) says nothing of the vocabulary.
 *
 * Memory: values are the pool's; the tokenizer is closed again. Threads: one. */
#include "vocab.h"
#include "../core/base/sysio.h"
#include "../core/data/tokenizer.h"
#include <string.h>

static int put(struct mc_values *pool, struct mc_value *model, const char *key, double v,
               const char *file)
{
    struct mc_value *x = mc_value_new(pool, MC_V_NUM);
    if (!x)
        return 0;
    x->num = v;
    x->file = file;
    return mc_value_put(pool, model, key, x, NULL) == MC_OK;
}

int mc_vocab_settle(struct mc_values *pool, struct mc_value *root, const char *dir,
                    struct mc_problems *problems)
{
    struct mc_value *name = mc_value_get(mc_value_get(root, "data"), "tokenizer");
    struct mc_value *model = mc_value_get(root, "model"), *given;
    struct mc_tokenizer *t;
    struct mc_err err = {0};
    char path[2048];
    int ok = 1;
    if (!name || name->kind != MC_V_STR || !mc_tokenizer_is_file(name->str)) /* I1 */
        return 1;
    if (mc_path_join(path, sizeof path, dir, name->str, &err) != MC_OK ||
        mc_tokenizer_open(path, &t, &err) != MC_OK) {
        mc_problems_add(problems, "data.tokenizer", name->file, name->line, "", "%s", err.msg);
        if (model && model->kind == MC_V_MAP && !mc_value_get(model, "vocab"))
            ok = put(pool, model, "vocab", 257, name->str); /* one cause, one problem */
        return ok;
    }
    if (model && model->kind == MC_V_MAP) {
        const double n = (double)mc_tokenizer_vocab(t);
        given = mc_value_get(model, "vocab");
        if (!given)
            ok = put(pool, model, "vocab", n, name->str);
        else if (given->kind == MC_V_NUM && given->num < n)
            mc_problems_add(problems, "model.vocab", given->file, given->line, "",
                            "%.0f is below the tokenizer's: %.200s has %.0f ids", given->num,
                            name->str, n);
        if (ok && !mc_value_get(model, "eos") && mc_tokenizer_eos(t) >= 0)
            ok = put(pool, model, "eos", (double)mc_tokenizer_eos(t), name->str);
    }
    mc_tokenizer_close(t);
    return ok;
}
