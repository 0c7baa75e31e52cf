/* tokenizer.c - the tokenizer of a model that lies in a run or a checkpoint, and its copy in the
 * run folder. Floor 8 (cli).
 *
 * I1  A run folder keeps the tokenizer.json that it began with, so that it can be copied and moved;
 *     what the file of the recipe says later is compared with it byte for byte.
 * I2  Sought in this order: --tokenizer; RUN/tokenizer.json above the checkpoint; the recipe's own
 *     path. A name that is no file ("gpt2") has no text: --tokenizer is asked for.
 *
 * Memory: the caller's. Threads: one. */
#include "cli.h"
#include "../base/arena.h"
#include "../base/sysio.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 256 << 20 };

static mc_status copy_path(const char *run, char path[MC_PATH], struct mc_err *err)
{
    return mc_path_join(path, MC_PATH, run, "tokenizer.json", err);
}

mc_status mc_cli_tokenizer_keep(const char *run, const char *file, int allowed, struct mc_err *err)
{
    char path[MC_PATH], *now, *was = NULL;
    size_t n, m = 0;
    if (!mc_tokenizer_is_file(file))
        return MC_OK;
    MC_TRY(copy_path(run, path, err));
    MC_TRY(mc_sys_read_file(file, MAX_FILE, &now, &n, err));
    mc_status st = MC_OK;
    int kept = mc_sys_exists(path);
    if (kept)
        st = mc_sys_read_file(path, MAX_FILE, &was, &m, err);
    int same = kept && st == MC_OK && n == m && !memcmp(now, was, n);
    if (st == MC_OK && kept && !same && !allowed)
        st = mc_err_set(err, MC_E_RECIPE,
                        "data.tokenizer: %s is not the file that this run began with (%s): ids "
                        "would change their meaning; --allow data.tokenizer lets it",
                        file, path);
    else if (st == MC_OK && !same)
        st = mc_sys_replace_file(path, now, n, err);
    mc_free(now);
    mc_free(was);
    return mc_err_trail(err, st, __FILE__, __LINE__);
}

mc_status mc_cli_tokenizer_find(struct mc_cli_model *m, const char *given, struct mc_err *err)
{
    char ckpt[MC_PATH], run[MC_PATH], path[MC_PATH], base[MC_PATH];
    char *name = m->recipe->data.tokenizer;
    if (given) {
        if (strlen(given) >= sizeof m->recipe->data.tokenizer)
            return mc_err_set(err, MC_E_USAGE, "--tokenizer: path too long");
        snprintf(name, sizeof m->recipe->data.tokenizer, "%s", given);
        snprintf(base, sizeof base, ".");
    } else if (!mc_tokenizer_is_file(name)) {
        return MC_OK;
    } else {
        mc_path_dir(ckpt, sizeof ckpt, m->ckpt); /* RUN/ckpt/step-N -> RUN */
        mc_path_dir(run, sizeof run, ckpt);
        MC_TRY(copy_path(run, path, err));
        if (mc_sys_exists(path)) { /* I2 */
            snprintf(name, sizeof m->recipe->data.tokenizer, "%s", path);
            snprintf(base, sizeof base, ".");
        } else {
            snprintf(base, sizeof base, "%s",
                     m->own.loaded.base_dir[0] ? m->own.loaded.base_dir : ".");
        }
    }
    if (name[0] == '/' || !strcmp(name, "bytes") || !mc_tokenizer_is_file(name))
        return MC_OK;
    char *abs = realpath(base, NULL); /* whoever reads it knows other folders */
    if (!abs)
        return mc_err_sys(err, "the folder %s", base);
    mc_status st = mc_path_join(path, sizeof path, abs, name, err);
    free(abs); /* libc's */
    if (st == MC_OK)
        snprintf(name, sizeof m->recipe->data.tokenizer, "%s", path);
    return st;
}

mc_status mc_cli_tokenizer_open(const struct mc_cli_model *m, struct mc_tokenizer **t,
                                struct mc_err *err)
{
    const char *name = m->recipe->data.tokenizer;
    if (strcmp(name, "bytes") != 0 && !mc_tokenizer_is_file(name))
        return mc_err_set(err, MC_E_USAGE,
                          "this model's tokenizer is \"%.60s\", a name: give its tokenizer.json "
                          "with --tokenizer FILE",
                          name);
    MC_TRY(mc_tokenizer_open(name, t, err));
    if (mc_tokenizer_vocab(*t) <= m->recipe->model.vocab)
        return MC_OK;
    int64_t n = mc_tokenizer_vocab(*t);
    mc_tokenizer_close(*t);
    return mc_err_set(err, MC_E_USAGE,
                      "%s has %lld ids and the model %lld: it is not this model's tokenizer", name,
                      (long long)n, (long long)m->recipe->model.vocab);
}
