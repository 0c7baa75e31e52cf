/* cmd_data.c - `mascon data pack|inspect|verify`: packed token files (.bin/.idx). Floor 8 (cli). */
#include "cli.h"
#include "../data/data.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char about[] =
    "  pack     INPUT... --out PREFIX   texts (files; each one document, as bytes, closed by EOS) "
    "to\n"
    "                                   PREFIX.bin, PREFIX.idx and the sidecar PREFIX.json\n"
    "  inspect  PATH                    documents, tokens, type of a packed file or a text\n"
    "  verify   PATH [--vocab N]        structure and hashes of every byte; exit code 4 when "
    "damaged\n";

enum { MAX_INPUTS = 4096 };
struct options {
    const char *out;
    int no_eos, json;
    int64_t vocab;
    const char *pos[MAX_INPUTS + 1];
    int npos;
};

static mc_status pack(const struct options *o, struct mc_err *err)
{
    if (!o->out)
        return mc_err_set(err, MC_E_USAGE, "data pack: --out PREFIX says where to write");
    struct mc_pack_cfg cfg = {.inputs = o->pos + 1,
                              .ninputs = o->npos - 1,
                              .out_prefix = o->out,
                              .append_eos = !o->no_eos,
                              .progress = !o->json && isatty(STDERR_FILENO)};
    struct mc_pack_stats s;
    MC_TRY(mc_data_pack(&cfg, &s, err));
    if (o->json) {
        struct mc_json j;
        char hex[32];
        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)s.hash);
        mc_json_init_grow(&j);
        mc_json_open(&j, NULL, '{');
        mc_json_str(&j, "prefix", o->out);
        mc_json_i64(&j, "documents", s.documents);
        mc_json_i64(&j, "tokens", s.tokens);
        mc_json_i64(&j, "bytes_in", s.bytes_in);
        mc_json_str(&j, "hash", hex);
        mc_json_close(&j, '}');
        mc_say_json(&j);
    } else {
        char d[32], t[32];
        mc_say_count(s.documents, d);
        mc_say_count(s.tokens, t);
        printf("%s.bin, %s.idx: %s documents, %s tokens\n", o->out, o->out, d, t);
    }
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
    static const char *const verbs[] = {"pack", "inspect", "verify"};
    static struct options o;
    const struct mc_arg arg[] = {
        {"--out", "PREFIX", "pack: where to write", MC_ARG_STR, &o.out, 0, 0},
        {"--no-eos", NULL, "pack: no EOS after a document", MC_ARG_FLAG, &o.no_eos, 0, 0},
        {"--vocab", "N", "verify: ids must be below N", MC_ARG_I64, &o.vocab, 1, 1 << 24},
        {"--json", NULL, "answer in JSON", MC_ARG_FLAG, &o.json, 0, 0},
    };
    struct mc_args a = {.usage = "mascon data pack INPUT... --out PREFIX | inspect PATH | verify "
                                 "PATH [--vocab N]",
                        .about = about,
                        .arg = arg,
                        .nargs = sizeof arg / sizeof *arg,
                        .pos = o.pos,
                        .min_pos = 2,
                        .max_pos = MAX_INPUTS + 1};
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
        const char *near = mc_nearest(o.pos[0], verbs, 3);
        st = mc_err_set(&err, MC_E_USAGE,
                        "data: unknown verb \"%.60s\"%s%s%s; it is pack, inspect "
                        "or verify",
                        o.pos[0], near ? " (did you mean \"" : "", near ? near : "",
                        near ? "\"?)" : "");
    }
    return st == MC_OK ? 0 : mc_say_error(&err, st);
}
