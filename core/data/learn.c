/* learn.c - texts, JSONL and packed files of them to a new tokenizer.json.
 * Floor 3 (data). Includes: base recipe.
 *
 * pack's reader fills blocks and pack's encoder hands out their documents; the "encoder" here
 * counts words and makes no ids. So both commands read the same inputs alike.
 *
 * I1  A document is counted whole: words never span two, and none is cut.
 * I2  Nothing is written before all texts are read; then tokenizer.json appears whole or not at
 *     all.
 *
 * Memory: one block, and the trainer's words. Threads: one. */
#include "learn.h"
#include <stdio.h>
#include <string.h>
#include "../base/arena.h"
#include "../base/clock.h"
#include "pack_int.h"

struct learn {
    const struct mc_learn_cfg *cfg;
    struct mc_bpe_trainer *trainer;
    struct mc_files *files; /* [ninputs] */
    struct mc_pack_input *in;
    int nin;
    int64_t all, shown_ns; /* all: bytes of the inputs */
};

static mc_status count(void *state, const char *text, size_t n, struct mc_pack_ids *out,
                       struct mc_err *err)
{
    (void)out;
    return mc_bpe_trainer_add(state, text, n, err);
}

static mc_status list_inputs(struct learn *l, struct mc_err *err)
{
    const struct mc_learn_cfg *c = l->cfg;
    for (int i = 0; i < c->ninputs; i++) {
        enum mc_source_kind kind;
        char prefix[MC_PATH];
        MC_TRY(mc_source_classify(c->inputs[i], &kind, prefix, err));
        if (kind == MC_SOURCE_PACKED)
            return mc_err_set(err, MC_E_USAGE,
                              "%s: packed already; a tokenizer is learned from text", c->inputs[i]);
        MC_TRY(mc_source_files(c->inputs[i], &l->files[i], err));
        l->nin += l->files[i].n;
    }
    l->in = mc_alloc((size_t)l->nin * sizeof *l->in, "inputs");
    if (!l->in)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a list of %d files", l->nin);
    for (int i = 0, n = 0; i < c->ninputs; i++)
        for (int j = 0; j < l->files[i].n; j++, n++) {
            char *path = l->files[i].path[j];
            int jsonl =
                c->format == MC_PACK_JSONL || (c->format == MC_PACK_AUTO && mc_pack_is_jsonl(path));
            l->in[n] = (struct mc_pack_input){path, l->files[i].bytes[j], jsonl};
            l->all += l->in[n].bytes;
        }
    return MC_OK;
}

static void show_progress(struct learn *l, int64_t taken, int last)
{
    int64_t now = mc_clock_ns();
    if (!l->cfg->progress || (!last && now - l->shown_ns < 200000000))
        return;
    l->shown_ns = now;
    fprintf(stderr, "\rread: %3.0f %%%s", l->all > 0 ? 100.0 * (double)taken / (double)l->all : 100,
            last ? "; learning\n" : "");
    fflush(stderr);
}

static mc_status count_all(struct learn *l, struct mc_err *err)
{
    static const struct mc_pack_encoder counting = {
        .name = "learning", .vocab = 1, .eos = -1, .encode = count};
    struct mc_pack_job job = {.enc = &counting,
                              .state = l->trainer,
                              .key = l->cfg->key ? l->cfg->key : "text",
                              .esize = 2};
    struct mc_pack_reader r = {.in = l->in, .nin = l->nin, .whole = 1}; /* I1 */
    struct mc_pack_block b = {0};
    mc_status st = MC_OK;
    for (int filled = 1; filled && st == MC_OK;) {
        st = mc_pack_read(&r, &b, 1, &filled, err);
        if (st != MC_OK || !filled)
            break;
        mc_pack_encode(&job, &b);
        st = b.st;
        if (st != MC_OK && err)
            *err = b.err;
        show_progress(l, b.taken, 0);
    }
    mc_pack_block_fini(&b);
    mc_pack_reader_fini(&r);
    show_progress(l, l->all, 1);
    return st;
}

mc_status mc_data_learn(const struct mc_learn_cfg *cfg, struct mc_bpe_train_stats *stats,
                        struct mc_err *err)
{
    struct learn l = {.cfg = cfg};
    mc_status st;
    if (mc_sys_exists(cfg->out))
        return mc_err_set(err, MC_E_USAGE,
                          "%s exists: a tokenizer that data or runs may stand on is not written "
                          "over; move it away or write another",
                          cfg->out);
    l.files = mc_alloc((size_t)cfg->ninputs * sizeof *l.files + 1, "inputs");
    if (!l.files)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a list of inputs");
    MC_TRY_GOTO(st, mc_bpe_trainer_create(&cfg->bpe, &l.trainer, err), out);
    MC_TRY_GOTO(st, list_inputs(&l, err), out);
    MC_TRY_GOTO(st, count_all(&l, err), out);
    st = mc_bpe_trainer_write(l.trainer, cfg->out, stats, err);
out:
    mc_bpe_trainer_destroy(l.trainer);
    for (int i = 0; i < cfg->ninputs; i++)
        mc_source_files_fini(&l.files[i]);
    mc_free(l.files);
    mc_free(l.in);
    return st;
}
