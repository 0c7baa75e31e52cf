/* cmd_generate.c - `mascon generate`: text from a checkpoint, streamed as it is drawn. Floor 8.
 *
 * I1  The same seed, prompt and settings give the same bytes.
 * I2  Bytes go to stdout as they are drawn, prompt first; notes go to stderr. A stop signal or a
 *     closed pipe ends it.
 */
#include "cli.h"
#include "../base/arena.h"
#include "../base/pool.h"
#include "../data/data.h"
#include "../run/spawn.h"
#include <stdio.h>
#include <string.h>

static const char about[] =
    "Continues --prompt (or starts a document) with text drawn from the model. PATH is a run "
    "(newest\n"
    "checkpoint, or --step N), its ckpt/ or one checkpoint. The same seed gives the same text.\n"
    "Generation ends after --tokens, at an end of document, or at the model's context.";

struct sink {
    int json, stopped;
    char *text; /* json: [cap] */
    size_t n, cap;
};

static int emit(void *arg, int32_t token)
{
    struct sink *s = arg;
    if (token >= 0 && token < 256) { /* others, such as EOS, are not text */
        if (s->json) {
            if (s->n < s->cap)
                s->text[s->n++] = (char)token;
        } else {
            putchar(token);
            if (fflush(stdout) != 0) /* I2 */
                return 1;
        }
    }
    s->stopped = mc_signals_pending() != 0;
    return s->stopped;
}

struct settings {
    const char *prompt;
    int64_t tokens, top_k, seed;
    double temperature, top_p;
    int json, no_eos;
};

static mc_status run(struct mc_cli_model *m, const struct settings *o, struct mc_err *err)
{
    struct mc_session *s = NULL;
    size_t n = strlen(o->prompt);
    int64_t made = 0;
    if (strcmp(m->recipe->data.tokenizer, "bytes") != 0)
        return mc_err_set(err, MC_E_USAGE,
                          "this model's tokenizer is \"%s\"; generate writes text of models with "
                          "tokenizer = \"bytes\"",
                          m->recipe->data.tokenizer);
    struct sink k = {.json = o->json, .cap = (size_t)o->tokens};
    int32_t *prompt = mc_alloc((n + 1) * sizeof *prompt, "prompt");
    k.text = mc_alloc(k.cap + 1, "generated text");
    mc_status st = prompt && k.text ? MC_OK : mc_err_set(err, MC_E_NOMEM, "no memory for the text");
    for (size_t i = 0; st == MC_OK && i < n; i++)
        prompt[i] = (unsigned char)o->prompt[i];
    if (st == MC_OK)
        st = mc_session_open(m->recipe, m->ckpt, mc_pool_default_threads(1), &s, err);
    struct mc_generate_cfg cfg = {.prompt = prompt,
                                  .nprompt = (int64_t)n,
                                  .max_tokens = o->tokens,
                                  .temperature = o->temperature,
                                  .top_k = o->top_k,
                                  .top_p = o->top_p,
                                  .seed = (uint64_t)o->seed,
                                  .stop_at_eos = !o->no_eos,
                                  .emit = emit,
                                  .arg = &k};
    if (st == MC_OK && !o->json && (int64_t)n < m->recipe->model.seq)
        fputs(o->prompt, stdout);
    if (st == MC_OK)
        st = mc_session_generate(s, &cfg, &made, err);
    mc_session_close(s);
    int64_t room = m->recipe->model.seq - (n > 0 ? (int64_t)n : 1) + 1;
    if (st == MC_OK && o->json) {
        struct mc_json j;
        mc_json_init_grow(&j);
        mc_json_open(&j, NULL, '{');
        mc_json_str(&j, "prompt", o->prompt);
        mc_json_strn(&j, "text", k.text, k.n);
        mc_json_i64(&j, "tokens", made);
        mc_json_i64(&j, "seed", o->seed);
        mc_json_i64(&j, "step", m->at);
        mc_json_bool(&j, "context_end", made == room && made < o->tokens);
        mc_json_close(&j, '}');
        mc_say_json(&j);
    } else if (st == MC_OK) {
        putchar('\n');
        fflush(stdout);
        if (made == room && made < o->tokens)
            fprintf(stderr, "note: stopped at the model's context of %lld tokens\n",
                    (long long)m->recipe->model.seq);
    }
    mc_free(k.text);
    mc_free(prompt);
    return st;
}

int mc_cmd_generate(int argc, char **argv)
{
    static struct mc_cli_model m;
    struct settings o = {
        .prompt = "", .tokens = 200, .top_k = 0, .seed = 1, .temperature = 0.8, .top_p = 1};
    m.step = -1;
    const struct mc_arg arg[] = {
        {"--prompt", "TEXT", "what to continue (default: nothing)", MC_ARG_STR, &o.prompt, 0, 0},
        {"--tokens", "N", "at most so many (default 200)", MC_ARG_I64, &o.tokens, 1, 1 << 24},
        {"--temperature", "T", "0: always the likeliest (default 0.8)", MC_ARG_F64, &o.temperature,
         0, 100},
        {"--top-k", "K", "draw from the K likeliest (0: off)", MC_ARG_I64, &o.top_k, 0, 1 << 24},
        {"--top-p", "P", "draw from the likeliest whose mass is P (default 1)", MC_ARG_F64,
         &o.top_p, 1e-9, 1},
        {"--seed", "S", "of the draws (default 1)", MC_ARG_I64, &o.seed, 0, 9e15},
        {"--no-stop", NULL, "go on after an end of document", MC_ARG_FLAG, &o.no_eos, 0, 0},
        {"--step", "N", "of a run, the checkpoint of this step", MC_ARG_I64, &m.step, 0, 9e15},
        {"--device", "D", "cpu or cuda", MC_ARG_STR, &m.device, 0, 0},
        {"--json", NULL, "answer in JSON, all at once", MC_ARG_FLAG, &o.json, 0, 0},
    };
    struct mc_args a = {.usage = "mascon generate RUN|CKPT [--prompt TEXT] [options]",
                        .about = about,
                        .arg = arg,
                        .nargs = sizeof arg / sizeof *arg,
                        .pos = &m.path,
                        .min_pos = 1,
                        .max_pos = 1};
    int rc = mc_args_parse(&a, argc, argv);
    if (rc != MC_ARGS_GO)
        return rc;
    mc_signals_install();
    rc = mc_cli_model_open(&m);
    if (rc == 0) {
        struct mc_err err = {0};
        mc_status st = run(&m, &o, &err);
        if (st != MC_OK)
            rc = mc_say_error(&err, st);
    }
    mc_cli_model_close(&m);
    return rc;
}
