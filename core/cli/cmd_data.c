/* cmd_data.c - `mascon data pack|inspect|verify`: packed token files (.bin/.idx). Floor 8 (cli). */
#include "cli.h"
#include "../base/pool.h"
#include "../data/data.h"
#include "../data/tokenizer.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char about[] =
    "  pack     INPUT... --out PREFIX   texts (a file is one document), JSONL (a line is one), "
    "alone\n"
    "                                   or in folders, as they are or as .gz or .zst: to "
    "PREFIX.bin,\n"
    "                                   PREFIX.idx and the sidecar PREFIX.json. Killed: run it "
    "again\n"
    "  train-tokenizer INPUT... --vocab N --out FILE.json\n"
    "                                   a tokenizer from texts (--help after it)\n"
    "  inspect  PATH                    documents, tokens, type of a packed file or a text\n"
    "  verify   PATH [--vocab N]        structure and hashes of every byte; exit code 4 when "
    "damaged\n";

enum { MAX_INPUTS = 4096 };
struct options {
    const char *out, *key, *format, *tokenizer;
    int no_eos, json;
    int64_t vocab, workers;
    const char *pos[MAX_INPUTS + 1];
    int npos;
};

static void tell_pack(const struct options *o, const struct mc_pack_stats *s)
{
    if (o->json) {
        struct mc_json j;
        char hex[32];
        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)s->hash);
        mc_json_init_grow(&j);
        mc_json_open(&j, NULL, '{');
        mc_json_str(&j, "prefix", o->out);
        mc_json_i64(&j, "documents", s->documents);
        mc_json_i64(&j, "tokens", s->tokens);
        mc_json_i64(&j, "bytes_in", s->bytes_in);
        mc_json_i64(&j, "text_bytes", s->text_bytes);
        mc_json_str(&j, "hash", hex);
        mc_json_close(&j, '}');
        mc_say_json(&j);
        return;
    }
    char d[32], t[32];
    mc_say_count(s->documents, d);
    mc_say_count(s->tokens, t);
    printf("%s.bin, %s.idx: %s documents, %s tokens", o->out, o->out, d, t);
    if (s->tokens > 0)
        printf(", %.2f bytes of text a token", (double)s->text_bytes / (double)s->tokens);
    printf("\n");
}

mc_status mc_cli_pack_format(const char *word, enum mc_pack_format *f, struct mc_err *err)
{
    static const char *const words[] = {"auto", "text", "jsonl"};
    *f = MC_PACK_AUTO;
    for (int i = 0; word && i < 3; i++)
        if (!strcmp(word, words[i])) {
            *f = (enum mc_pack_format)i;
            return MC_OK;
        }
    return word
               ? mc_err_set(err, MC_E_USAGE, "--format is auto, text or jsonl, not \"%.60s\"", word)
               : MC_OK;
}

/* "a/b/gpt2/tokenizer.json" -> "gpt2/tokenizer.json", for the sidecar. */
static void short_name(const char *path, char dst[MC_WORD])
{
    const char *at = path + strlen(path);
    for (int slashes = 0; at > path; at--)
        if (at[-1] == '/' && ++slashes == 2)
            break;
    snprintf(dst, MC_WORD, "%s", at);
}

static mc_status pack(const struct options *o, struct mc_err *err)
{
    if (!o->out)
        return mc_err_set(err, MC_E_USAGE, "data pack: --out PREFIX says where to write");
    struct mc_pack_cfg cfg = {.inputs = o->pos + 1,
                              .ninputs = o->npos - 1,
                              .out_prefix = o->out,
                              .append_eos = !o->no_eos,
                              .key = o->key,
                              .workers = o->workers ? (int)o->workers : mc_pool_default_threads(1),
                              .progress = !o->json && isatty(STDERR_FILENO)};
    struct mc_tokenizer *t = NULL;
    struct mc_pack_encoder enc;
    struct mc_pack_stats s;
    char name[MC_WORD];
    mc_status st;
    MC_TRY(mc_cli_pack_format(o->format, &cfg.format, err));
    if (o->tokenizer) {
        MC_TRY(mc_tokenizer_open(o->tokenizer, &t, err));
        short_name(o->tokenizer, name);
        mc_pack_tokenizer(t, name, &enc);
        cfg.encoder = &enc;
    }
    st = mc_data_pack(&cfg, &s, err);
    mc_tokenizer_close(t);
    MC_TRY(st);
    tell_pack(o, &s);
    return MC_OK;
}

static mc_status look(const struct options *o, int check, struct mc_err *err)
{
    struct mc_json j;
    if (o->npos != 2)
        return mc_err_set(err, MC_E_USAGE, "data %s takes one path", o->pos[0]);
    mc_json_init_grow(&j);
    j.pretty = !o->json;
    mc_status st =
        check ? mc_data_verify(o->pos[1], o->vocab, &j, err) : mc_data_inspect(o->pos[1], &j, err);
    if (st != MC_OK) {
        mc_json_fini(&j);
        return st;
    }
    mc_say_json(&j);
    return MC_OK;
}

int mc_cmd_data(int argc, char **argv)
{
    static const char *const verbs[] = {"pack", "inspect", "verify", "train-tokenizer"};
    static struct options o;
    const struct mc_arg arg[] = {
        {"--out", "PREFIX", "pack: where to write", MC_ARG_STR, &o.out, 0, 0},
        {"--tokenizer", "T", "pack: bytes (default) or a tokenizer.json", MC_ARG_STR, &o.tokenizer,
         0, 0},
        {"--key", "K", "pack: member of a JSONL line that is the text (default: text)", MC_ARG_STR,
         &o.key, 0, 0},
        {"--format", "F", "pack: text or jsonl whatever the names say (default: auto)", MC_ARG_STR,
         &o.format, 0, 0},
        {"--workers", "N", "pack: threads (default: the cores); the output is the same for any N",
         MC_ARG_I64, &o.workers, 1, 1024},
        {"--no-eos", NULL, "pack: no EOS after a document", MC_ARG_FLAG, &o.no_eos, 0, 0},
        {"--vocab", "N", "verify: ids must be below N", MC_ARG_I64, &o.vocab, 1, 1 << 24},
        {"--json", NULL, "answer in JSON", MC_ARG_FLAG, &o.json, 0, 0},
    };
    struct mc_args a = {
        .usage = "mascon data pack INPUT... --out PREFIX [--tokenizer T] | inspect PATH | verify "
                 "PATH [--vocab N] | train-tokenizer INPUT... --vocab N --out FILE.json",
        .about = about,
        .arg = arg,
        .nargs = sizeof arg / sizeof *arg,
        .pos = o.pos,
        .min_pos = 2,
        .max_pos = MAX_INPUTS + 1};
    if (argc > 0 && !strcmp(argv[0], "train-tokenizer")) /* it has options of its own */
        return mc_cmd_data_tokenizer(argc - 1, argv + 1);
    int rc = mc_args_parse(&a, argc, argv);
    if (rc != MC_ARGS_GO)
        return rc;
    o.npos = a.npos;
    struct mc_err err = {0};
    mc_status st;
    if (!strcmp(o.pos[0], "pack")) {
        st = pack(&o, &err);
    } else if (!strcmp(o.pos[0], "inspect")) {
        st = look(&o, 0, &err);
    } else if (!strcmp(o.pos[0], "verify")) {
        st = look(&o, 1, &err);
    } else {
        const char *near = mc_nearest(o.pos[0], verbs, 4);
        st = mc_err_set(&err, MC_E_USAGE,
                        "data: unknown verb \"%.60s\"%s%s%s; it is pack, inspect, "
                        "verify or, first of all words, train-tokenizer",
                        o.pos[0], near ? " (did you mean \"" : "", near ? near : "",
                        near ? "\"?)" : "");
    }
    return st == MC_OK ? 0 : mc_say_error(&err, st);
}
