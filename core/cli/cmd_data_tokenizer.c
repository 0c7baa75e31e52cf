/* cmd_data_tokenizer.c - `mascon data train-tokenizer`: a byte-level BPE from texts. Floor 8 (cli).
 */
#include "cli.h"
#include "../data/learn.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char about[] =
    "Learns a byte-level BPE from texts (files or folders, .jsonl, .gz and .zst as in data pack) "
    "and\n"
    "writes it as a Hugging Face tokenizer.json, for data.tokenizer and data pack --tokenizer. "
    "The\n"
    "pair that occurs most often is merged next, of equals the one of the lowest ids: the same "
    "texts\n"
    "give the same file, in any order. Special tokens have the first ids; without --special there "
    "is\n"
    "one, <|endoftext|>, the EOS.";

enum { MAX_INPUTS = 4096 };
struct options {
    const char *out, *key, *format, *pretok;
    struct mc_arg_list special;
    int64_t vocab, min_frequency;
    int json;
    const char *pos[MAX_INPUTS];
    int npos;
};

static mc_status pretok_kind(const char *word, enum mc_pretok_kind *kind, struct mc_err *err)
{
    int k = 0;
    while (k < MC_NPRETOKS && strcmp(word, mc_pretok_names[k]) != 0)
        k++;
    if (k == MC_NPRETOKS)
        return mc_err_set(err, MC_E_USAGE, "--words is gpt2, llama3 or qwen2, not \"%.60s\"", word);
    *kind = (enum mc_pretok_kind)k;
    return MC_OK;
}

static void tell(const struct options *o, const struct mc_bpe_train_stats *s)
{
    if (o->json) {
        struct mc_json j;
        mc_json_init_grow(&j);
        mc_json_open(&j, NULL, '{');
        mc_json_str(&j, "tokenizer", o->out);
        mc_json_i64(&j, "vocab", s->vocab);
        mc_json_i64(&j, "bytes", s->bytes);
        mc_json_i64(&j, "words", s->words);
        mc_json_i64(&j, "different_words", s->different_words);
        mc_json_close(&j, '}');
        mc_say_json(&j);
        return;
    }
    char n[32], b[32], w[32], d[32];
    mc_say_count(s->vocab, n);
    mc_say_bytes((double)s->bytes, b);
    mc_say_count(s->words, w);
    mc_say_count(s->different_words, d);
    printf("%s: %s ids from %s of text, %s words, %s different\n", o->out, n, b, w, d);
    if (s->vocab < o->vocab)
        fprintf(stderr,
                "note: the texts gave %s of the %lld ids asked for: no other pair occurs %lld "
                "times\n",
                n, (long long)o->vocab, (long long)o->min_frequency);
}

static mc_status learn(struct options *o, struct mc_err *err)
{
    static const char *const eos[] = {"<|endoftext|>"};
    struct mc_bpe_train_stats s;
    struct mc_learn_cfg cfg = {.inputs = o->pos,
                               .ninputs = o->npos,
                               .key = o->key,
                               .out = o->out,
                               .bpe = {.special = o->special.n ? o->special.v : eos,
                                       .nspecial = o->special.n ? o->special.n : 1,
                                       .vocab = o->vocab,
                                       .min_frequency = o->min_frequency},
                               .progress = !o->json && isatty(STDERR_FILENO)};
    if (!o->out || !mc_tokenizer_is_file(o->out))
        return mc_err_set(err, MC_E_USAGE,
                          "data train-tokenizer: --out FILE.json says where to write");
    if (o->vocab == 0)
        return mc_err_set(err, MC_E_USAGE,
                          "data train-tokenizer: --vocab N says how many ids to make");
    MC_TRY(mc_cli_pack_format(o->format, &cfg.format, err));
    MC_TRY(pretok_kind(o->pretok, &cfg.bpe.pretok, err));
    MC_TRY(mc_data_learn(&cfg, &s, err));
    tell(o, &s);
    return MC_OK;
}

int mc_cmd_data_tokenizer(int argc, char **argv)
{
    static struct options o;
    o.pretok = "llama3";
    o.min_frequency = 2;
    const struct mc_arg arg[] = {
        {"--out", "FILE", "the tokenizer.json to write", MC_ARG_STR, &o.out, 0, 0},
        {"--vocab", "N", "ids: special tokens, 256 bytes, merges", MC_ARG_I64, &o.vocab, 1,
         1 << 24},
        {"--words", "W", "how text is cut: gpt2, llama3 (default) or qwen2", MC_ARG_STR, &o.pretok,
         0, 0},
        {"--special", "TOKEN", "a special token (repeatable; the first EOS name found is the EOS)",
         MC_ARG_LIST, &o.special, 0, 0},
        {"--min-frequency", "N", "a pair must occur so often (default 2)", MC_ARG_I64,
         &o.min_frequency, 1, 1e15},
        {"--key", "K", "member of a JSONL line that is the text (default: text)", MC_ARG_STR,
         &o.key, 0, 0},
        {"--format", "F", "text or jsonl whatever the names say (default: auto)", MC_ARG_STR,
         &o.format, 0, 0},
        {"--json", NULL, "answer in JSON", MC_ARG_FLAG, &o.json, 0, 0},
    };
    struct mc_args a = {.usage = "mascon data train-tokenizer INPUT... --vocab N --out FILE.json "
                                 "[options]",
                        .about = about,
                        .arg = arg,
                        .nargs = sizeof arg / sizeof *arg,
                        .pos = o.pos,
                        .min_pos = 1,
                        .max_pos = MAX_INPUTS};
    int rc = mc_args_parse(&a, argc, argv);
    if (rc != MC_ARGS_GO)
        return rc;
    o.npos = a.npos;
    struct mc_err err = {0};
    mc_status st = learn(&o, &err);
    return st == MC_OK ? 0 : mc_say_error(&err, st);
}
