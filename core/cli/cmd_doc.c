/* cmd_doc.c - `mascon doc`: the recipe's keys and the model's ops, from the rows that bind them. */
#include "cli.h"
#include "../base/arena.h"
#include "../graph/op.h"
#include <stdio.h>
#include <string.h>

static const char about[] =
    "Without KEY: the reference of all recipe keys, as Markdown. With KEY (or a part of one, such "
    "as\n"
    "\"lr\"): that key. `mascon doc ops` lists the ops that a model may call, `mascon doc OP` "
    "tells "
    "one.";

static void print_op(const struct mc_op *op)
{
    printf("%-14s %s", op->name, op->doc);
    for (int k = 0; k < MC_OP_ATTRS && op->attrs[k]; k++)
        printf("%s%s", k == 0 ? "  { " : ", ", op->attrs[k]);
    printf("%s\n", op->attrs[0] ? " }" : "");
}

static void print_ops(void)
{
    int n;
    const struct mc_op *const *op = mc_op_all(&n);
    for (int i = 0; i < n; i++)
        print_op(op[i]);
}

/* An op near to a word that is no key; NULL: none. */
static const char *nearest_op(const char *word)
{
    int n;
    const struct mc_op *const *op = mc_op_all(&n);
    const char **name = mc_alloc((size_t)n * sizeof *name, "names of ops");
    for (int i = 0; name && i < n; i++)
        name[i] = op[i]->name;
    const char *near = name ? mc_nearest(word, name, n) : NULL;
    mc_free(name);
    return near;
}

int mc_cmd_doc(int argc, char **argv)
{
    const char *key = NULL;
    struct mc_args a = {.usage = "mascon doc [KEY | ops | OP]",
                        .about = about,
                        .pos = &key,
                        .min_pos = 0,
                        .max_pos = 1};
    int rc = mc_args_parse(&a, argc, argv);
    if (rc != MC_ARGS_GO)
        return rc;
    if (key && strcmp(key, "ops") == 0) {
        print_ops();
        return 0;
    }
    const struct mc_op *op = key ? mc_op_find(key) : NULL;
    if (op)
        print_op(op);
    if (op && !mc_recipe_key_known(key))
        return 0;
    struct mc_err err = {0};
    mc_status st = mc_recipe_doc(key, mc_say_line, NULL, &err);
    const char *near = st == MC_E_USAGE ? nearest_op(key) : NULL;
    if (near && !strstr(err.msg, "did you mean")) {
        mc_err_clear(&err);
        mc_err_set(&err, st, "%.100s: no such key or op; did you mean the op \"%s\"?", key, near);
    }
    return st == MC_OK ? 0 : mc_say_error(&err, st);
}
