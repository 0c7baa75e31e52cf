/* cmd_eval.c - `mascon eval`: loss, perplexity and bits per byte of a checkpoint on a text. */
#include "cli.h"
#include "../base/arena.h"
#include "../run/spawn.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char about[] = "Mean token loss of a checkpoint over validation data: that of its "
                            "recipe, or --data FILE. PATH is\n"
                            "a run (newest checkpoint, or --step N), its ckpt/ or one checkpoint. "
                            "On several ranks, of any\n"
                            "layout, the loss is the same but for rounding.";

/* --data: this text alone, all of it. */
static void replace_data(struct mc_recipe *r, const char *path)
{
    r->data.ntrain = 0;
    r->data.required = 0;
    r->data.declared_tokens = r->data.declared_vocab = 0;
    r->data.holdout = 0;
    memset(r->data.split, 0, sizeof r->data.split);
    r->data.nvalid = 1;
    snprintf(r->data.valid[0].path, sizeof r->data.valid[0].path, "%s", path);
    r->data.valid[0].weight = 1;
}

static void answer(const struct mc_cli_model *m, const struct mc_eval_result *e, int json)
{
    double ppl = exp(e->loss);
    if (json) {
        struct mc_json j;
        mc_json_init_grow(&j);
        mc_json_open(&j, NULL, '{');
        mc_json_i64(&j, "step", m->at);
        mc_json_f64(&j, "loss", e->loss);
        mc_json_f64(&j, "perplexity", ppl);
        mc_json_f64(&j, "bits_per_byte", e->bits_per_byte);
        mc_json_i64(&j, "tokens", e->tokens);
        mc_json_i64(&j, "samples", e->samples);
        mc_json_str(&j, "checkpoint", m->ckpt);
        mc_json_close(&j, '}');
        mc_say_json(&j);
        return;
    }
    char n[32];
    mc_say_count(e->tokens, n);
    printf("step %lld: loss %.6f, perplexity %.4f", (long long)m->at, e->loss, ppl);
    if (!isnan(e->bits_per_byte))
        printf(", %.4f bits per byte", e->bits_per_byte);
    printf(" over %s tokens\n", n);
}

static mc_status evaluate(struct mc_cli_model *m, struct mc_cli_several *k, const char *data,
                          const char *tokenizer, int64_t samples, struct mc_eval_result *e,
                          struct mc_err *err)
{
    const char *base = m->own.loaded.base_dir[0] ? m->own.loaded.base_dir : ".";
    struct mc_session *s = NULL;
    MC_TRY(mc_cli_several_join(k, m->recipe, err));
    if (data)
        replace_data(m->recipe, data);
    MC_TRY(mc_cli_tokenizer_find(m, tokenizer, err));
    const struct mc_session_cfg cfg = {.recipe = m->recipe,
                                       .mesh = k->seat.mesh,
                                       .line = k->line,
                                       .ckpt_path = m->ckpt,
                                       .threads = k->threads};
    MC_TRY(mc_session_open(&cfg, &s, err));
    mc_status st = mc_session_eval(s, base, samples, e, err);
    mc_session_close(s);
    return st;
}

int mc_cmd_eval(int argc, char **argv)
{
    static struct mc_cli_model m;
    static struct mc_cli_several k;
    const char *data = NULL, *tokenizer = NULL;
    int64_t samples = 0;
    int json = 0;
    m.step = -1;
    mc_cli_several_init(&k);
    const struct mc_arg arg[] = {
        {"--data", "FILE", "evaluate on this text or packed file", MC_ARG_STR, &data, 0, 0},
        {"--samples", "N", "only the first N samples", MC_ARG_I64, &samples, 1, 9e15},
        {"--step", "N", "of a run, the checkpoint of this step", MC_ARG_I64, &m.step, 0, 9e15},
        {"--recipe", "RECIPE", "instead of the one in the checkpoint", MC_ARG_STR, &m.recipe_path,
         0, 0},
        {"--tokenizer", "T", "bytes or a tokenizer.json, instead of the model's", MC_ARG_STR,
         &tokenizer, 0, 0},
        {"--device", "D", "cpu or cuda", MC_ARG_STR, &m.device, 0, 0},
        {"--json", NULL, "answer in JSON", MC_ARG_FLAG, &json, 0, 0},
        MC_CLI_SEVERAL_ARGS(k),
    };
    struct mc_args a = {.usage = "mascon eval RUN|CKPT [--data FILE] [--samples N] [options]",
                        .about = about,
                        .arg = arg,
                        .nargs = sizeof arg / sizeof *arg,
                        .pos = &m.path,
                        .min_pos = 1,
                        .max_pos = 1};
    int rc = mc_args_parse(&a, argc, argv);
    if (rc != MC_ARGS_GO)
        return rc;
    if (data && strlen(data) >= MC_PATH) {
        fprintf(stderr, "mascon: --data: path too long\n");
        return 2;
    }
    m.own.json = json;
    mc_signals_install();
    rc = mc_cli_model_open(&m);
    if (rc == 0) {
        struct mc_err err = {0};
        mc_status st = mc_cli_several_settle(&k, m.recipe, &err);
        if (st == MC_OK && mc_cli_several_is_agent(&k)) {
            rc = mc_cli_several_run(&k, &m, "eval", argc, argv);
        } else {
            struct mc_eval_result e;
            if (st == MC_OK)
                st = evaluate(&m, &k, data, tokenizer, samples, &e, &err);
            if (st == MC_OK && k.seat.number <= 0)
                answer(&m, &e, json);
            rc = mc_cli_several_end(&k, st, &err);
        }
    }
    mc_cli_model_close(&m);
    return rc;
}
