/* args.c - arguments by table: the same rows parse and print the help. Floor 8 (cli).
 *
 * I1  "--name value" and "--name=value" mean the same; options may stand anywhere; "--" ends them.
 * I2  An unknown option, a missing or malformed value, too few or too many words: one message with
 *     the nearest name, exit 2, nothing started.
 * I3  An option given twice is an error, unless it is a list.
 *
 * Memory: the caller's. Threads: one. */
#include "cli.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ARGS = 32 };

int mc_args_i64(const char *s, int64_t *v)
{
    char *end;
    errno = 0;
    long long x = strtoll(s, &end, 10);
    if (end == s || *end || errno)
        return 0;
    *v = x;
    return 1;
}

static void print_help(const struct mc_args *a)
{
    printf("usage: %s\n\n%s\n", a->usage, a->about);
    if (a->nargs > 0)
        printf("\noptions:\n");
    for (int i = 0; i < a->nargs; i++) {
        char left[64];
        if (!a->arg[i].doc)
            continue;
        snprintf(left, sizeof left, "%s%s%s", a->arg[i].name, a->arg[i].meta ? " " : "",
                 a->arg[i].meta ? a->arg[i].meta : "");
        printf("  %-24s %s\n", left, a->arg[i].doc);
    }
}

static int fail(const struct mc_args *a, const char *what, const char *hint)
{
    fprintf(stderr, "mascon: %s", what);
    if (hint)
        fprintf(stderr, " (did you mean \"%s\"?)", hint);
    fprintf(stderr, "\nusage: %s\n", a->usage);
    return 2;
}

static int unknown(const struct mc_args *a, const char *name, size_t len)
{
    const char *known[MAX_ARGS + 1];
    char what[256], word[128];
    int n = 0;
    for (int i = 0; i < a->nargs; i++)
        if (a->arg[i].doc)
            known[n++] = a->arg[i].name;
    known[n++] = "--help";
    snprintf(word, sizeof word, "%.*s", (int)len, name);
    snprintf(what, sizeof what, "unknown option \"%s\"", word);
    return fail(a, what, mc_nearest(word, known, n));
}

static int store(const struct mc_args *a, const struct mc_arg *arg, const char *value)
{
    char what[256];
    double x;
    int64_t v;
    char *end;
    switch (arg->kind) {
    case MC_ARG_FLAG:
        *(int *)arg->dst = 1;
        return MC_ARGS_GO;
    case MC_ARG_STR:
        *(const char **)arg->dst = value;
        return MC_ARGS_GO;
    case MC_ARG_LIST: {
        struct mc_arg_list *l = arg->dst;
        if (l->n == MC_ARG_LIST_MAX) {
            snprintf(what, sizeof what, "%s is given more than %d times", arg->name,
                     MC_ARG_LIST_MAX);
            return fail(a, what, NULL);
        }
        l->v[l->n++] = value;
        return MC_ARGS_GO;
    }
    case MC_ARG_I64:
        if (!mc_args_i64(value, &v)) {
            snprintf(what, sizeof what, "%s: \"%.100s\" is not a whole number", arg->name, value);
            return fail(a, what, NULL);
        }
        x = (double)v;
        break;
    default:
        x = strtod(value, &end);
        if (end == value || *end || !isfinite(x)) {
            snprintf(what, sizeof what, "%s: \"%.100s\" is not a number", arg->name, value);
            return fail(a, what, NULL);
        }
        v = 0;
    }
    if ((arg->lo != 0 || arg->hi != 0) && (x < arg->lo || x > arg->hi)) {
        snprintf(what, sizeof what, "%s: %.100s is not in %g .. %g", arg->name, value, arg->lo,
                 arg->hi);
        return fail(a, what, NULL);
    }
    if (arg->kind == MC_ARG_I64)
        *(int64_t *)arg->dst = v;
    else
        *(double *)arg->dst = x;
    return MC_ARGS_GO;
}

/* One option at argv[*i]; *i is left at its last word. */
static int option(const struct mc_args *a, int argc, char **argv, int *i, unsigned *seen)
{
    const char *word = argv[*i], *eq = strchr(word, '=');
    size_t len = eq ? (size_t)(eq - word) : strlen(word);
    char what[256];
    for (int k = 0; k < a->nargs; k++) {
        const struct mc_arg *arg = &a->arg[k];
        if (strlen(arg->name) != len || strncmp(arg->name, word, len) != 0)
            continue;
        if ((*seen >> k & 1) && arg->kind != MC_ARG_LIST) { /* I3 */
            snprintf(what, sizeof what, "%s is given twice", arg->name);
            return fail(a, what, NULL);
        }
        *seen |= 1u << k;
        if (arg->kind == MC_ARG_FLAG) {
            if (eq) {
                snprintf(what, sizeof what, "%s takes no value", arg->name);
                return fail(a, what, NULL);
            }
            return store(a, arg, NULL);
        }
        if (!eq && *i + 1 >= argc) {
            snprintf(what, sizeof what, "%s needs a value: %s %s", arg->name, arg->name, arg->meta);
            return fail(a, what, NULL);
        }
        return store(a, arg, eq ? eq + 1 : argv[++*i]); /* I1 */
    }
    return unknown(a, word, len);
}

int mc_args_parse(struct mc_args *a, int argc, char **argv)
{
    unsigned seen = 0;
    int only_words = 0;
    char what[256];
    MC_ASSERT(a->nargs <= MAX_ARGS);
    a->npos = 0;
    for (int i = 0; i < argc; i++) {
        if (!only_words && strcmp(argv[i], "--") == 0) {
            only_words = 1;
        } else if (!only_words && (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))) {
            print_help(a);
            return 0;
        } else if (!only_words && argv[i][0] == '-' && argv[i][1]) {
            int rc = option(a, argc, argv, &i, &seen);
            if (rc != MC_ARGS_GO)
                return rc;
        } else if (a->npos < a->max_pos) {
            a->pos[a->npos++] = argv[i];
        } else {
            snprintf(what, sizeof what, "\"%.100s\": one word too many", argv[i]);
            return fail(a, what, NULL);
        }
    }
    if (a->npos < a->min_pos)
        return fail(a, a->npos == 0 ? "something is missing" : "a word is missing", NULL);
    return MC_ARGS_GO;
}
