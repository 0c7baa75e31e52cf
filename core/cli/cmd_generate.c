/* cmd_generate.c - `mascon generate`: text from a checkpoint, streamed as it is drawn. Floor 8.
 *
 * I1  The same seed, prompt and settings give the same bytes.
 * I2  Bytes go to stdout as they are drawn, prompt first; notes go to stderr. A stop signal or a
 *     closed pipe ends it.
 * I3  No write ends inside a character: its first bytes wait for the token that ends it.
 */
#include "cli.h"
#include "../base/arena.h"
#include "../data/data.h"
#include "../run/spawn.h"
#include <stdio.h>
#include <string.h>

static const char about[] =
    "Continues --prompt (or starts a document) with text drawn from the model. PATH is a run "
    "(newest\n"
    "checkpoint, or --step N), its ckpt/ or one checkpoint. The same seed gives the same text.\n"
    "It is the same on several ranks, as far as rounding leaves the draws alone.\n"
    "Generation ends after --tokens, at an end of document, or at the model's context.";

struct sink {
    const struct mc_tokenizer *tok;
    int json, stopped;
    char *text; /* [cap]; not json: what is not printed yet */
    size_t n, cap;
};

/* I3: bytes at the end of s[0, n) that begin a character and do not end it. */
static size_t unfinished(const char *s, size_t n)
{
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        unsigned char c = (unsigned char)s[n - k];
        if ((c & 0xc0) == 0x80)
            continue;
        size_t need = c >= 0xf0 && c < 0xf5 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 ? 2 : 1;
        return c < 0xf5 && need > k ? k : 0;
    }
    return 0;
}

static int print(struct sink *s, size_t keep)
{
    size_t n = s->n - keep;
    fwrite(s->text, 1, n, stdout);
    memmove(s->text, s->text + n, keep);
    s->n = keep;
    return fflush(stdout) != 0; /* I2 */
}

static int emit(void *arg, int32_t token)
{
    struct sink *s = arg;
    size_t n;
    const char *piece = mc_tokenizer_piece(s->tok, token, &n);
    if (n > s->cap - s->n) {
        size_t cap = 2 * s->cap + n;
        char *p = mc_grow(s->text, s->cap, cap, "generated text");
        if (!p)
            return 1;
        s->text = p;
        s->cap = cap;
    }
    if (n > 0) /* EOS of bytes is no text */
        memcpy(s->text + s->n, piece, n);
    s->n += n;
    if (!s->json && print(s, unfinished(s->text, s->n)))
        return 1;
    s->stopped = mc_signals_pending() != 0;
    return s->stopped;
}

struct settings {
    const char *prompt, *tokenizer;
    int64_t tokens, top_k, seed;
    double temperature, top_p;
    int json, no_eos;
};

static void answer_json(const struct mc_cli_model *m, const struct settings *o,
                        const struct sink *k, int64_t made, int context_end)
{
    struct mc_json j;
    mc_json_init_grow(&j);
    mc_json_open(&j, NULL, '{');
    mc_json_str(&j, "prompt", o->prompt);
    mc_json_strn(&j, "text", k->text, k->n);
    mc_json_i64(&j, "tokens", made);
    mc_json_i64(&j, "seed", o->seed);
    mc_json_i64(&j, "step", m->at);
    mc_json_bool(&j, "context_end", context_end);
    mc_json_close(&j, '}');
    mc_say_json(&j);
}

static mc_status draw(struct mc_cli_model *m, const struct mc_cli_several *several,
                      const struct settings *o, struct sink *k, const struct mc_ids *prompt,
                      struct mc_err *err)
{
    struct mc_session *s = NULL;
    int64_t made = 0, n = prompt->n;
    int first = several->seat.number <= 0; /* it speaks for all */
    const struct mc_session_cfg open = {.recipe = m->recipe,
                                        .mesh = several->seat.mesh,
                                        .line = several->line,
                                        .ckpt_path = m->ckpt,
                                        .threads = several->threads};
    MC_TRY(mc_session_open(&open, &s, err));
    struct mc_generate_cfg cfg = {.prompt = prompt->v,
                                  .nprompt = n,
                                  .eos = mc_tokenizer_eos(k->tok),
                                  .max_tokens = o->tokens,
                                  .temperature = o->temperature,
                                  .top_k = o->top_k,
                                  .top_p = o->top_p,
                                  .seed = (uint64_t)o->seed,
                                  .stop_at_eos = !o->no_eos,
                                  .emit = emit,
                                  .arg = k};
    if (first && !o->json && n < mc_recipe_longest(m->recipe))
        fputs(o->prompt, stdout);
    mc_status st = mc_session_generate(s, &cfg, &made, err);
    mc_session_close(s);
    MC_TRY(st);
    if (!first)
        return MC_OK;
    int64_t room = mc_recipe_longest(m->recipe) - (n > 0 ? n : 1) + 1;
    int context_end = made == room && made < o->tokens;
    if (o->json) {
        answer_json(m, o, k, made, context_end);
        return MC_OK;
    }
    print(k, 0);
    putchar('\n');
    fflush(stdout);
    if (context_end)
        fprintf(stderr, "note: stopped at the model's context of %lld tokens\n",
                (long long)mc_recipe_longest(m->recipe));
    return MC_OK;
}

static mc_status run(struct mc_cli_model *m, struct mc_cli_several *several,
                     const struct settings *o, struct mc_err *err)
{
    struct mc_tokenizer *t = NULL;
    struct mc_encoder *e = NULL;
    struct mc_ids prompt = {0};
    struct sink k = {.json = o->json, .cap = (size_t)o->tokens + 16};
    mc_status st;
    MC_TRY(mc_cli_several_join(several, m->recipe, err));
    MC_TRY(mc_cli_tokenizer_find(m, o->tokenizer, err));
    MC_TRY(mc_cli_tokenizer_open(m, &t, err));
    MC_TRY_GOTO(st, mc_encoder_create(t, &e, err), out);
    MC_TRY_GOTO(st, mc_encode(e, o->prompt, strlen(o->prompt), MC_ENCODE_SPECIAL, &prompt, err),
                out);
    k.tok = t;
    k.text = mc_alloc(k.cap, "generated text");
    st = k.text ? draw(m, several, o, &k, &prompt, err)
                : mc_err_set(err, MC_E_NOMEM, "no memory for the text");
out:
    mc_free(k.text);
    mc_free(prompt.v);
    mc_encoder_destroy(e);
    mc_tokenizer_close(t);
    return st;
}

int mc_cmd_generate(int argc, char **argv)
{
    static struct mc_cli_model m;
    static struct mc_cli_several k;
    struct settings o = {
        .prompt = "", .tokens = 200, .top_k = 0, .seed = 1, .temperature = 0.8, .top_p = 1};
    m.step = -1;
    mc_cli_several_init(&k);
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
        {"--tokenizer", "T", "bytes or a tokenizer.json, instead of the model's", MC_ARG_STR,
         &o.tokenizer, 0, 0},
        {"--device", "D", "cpu or cuda", MC_ARG_STR, &m.device, 0, 0},
        {"--json", NULL, "answer in JSON, all at once", MC_ARG_FLAG, &o.json, 0, 0},
        MC_CLI_SEVERAL_ARGS(k),
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
        mc_status st = mc_cli_several_settle(&k, m.recipe, &err);
        if (st == MC_OK && mc_cli_several_is_agent(&k)) {
            rc = mc_cli_several_run(&k, &m, "generate", argc, argv);
        } else {
            if (st == MC_OK)
                st = run(&m, &k, &o, &err);
            rc = mc_cli_several_end(&k, st, &err);
        }
    }
    mc_cli_model_close(&m);
    return rc;
}
