/* cmd_doc.c - `mascon doc`: the recipe's keys and the model's ops, from the rows that bind them. */
#include "cli.h"
#include "../graph/op.h"
#include <stdio.h>
#include <string.h>

static const char about[] =
    "Without KEY: the reference of all recipe keys, as Markdown. With KEY (or a part of one, such "
    "as\n"
    "\"lr\"): that key. `mascon doc ops` lists the ops that a model may call.";

static void print_ops(void)
{
    int n;
    const struct mc_op *const *op = mc_op_all(&n);
    for (int i = 0; i < n; i++) {
        printf("%-14s %s", op[i]->name, op[i]->doc);
        for (int k = 0; k < MC_OP_ATTRS && op[i]->attrs[k]; k++)
            printf("%s%s", k == 0 ? "  { " : ", ", op[i]->attrs[k]);
        printf("%s\n", op[i]->attrs[0] ? " }" : "");
    }
}

int mc_cmd_doc(int argc, char **argv)
{
    const char *key = NULL;
    struct mc_args a = {
        .usage = "mascon doc [KEY | ops]", .about = about, .pos = &key, .min_pos = 0, .max_pos = 1};
    int rc = mc_args_parse(&a, argc, argv);
    if (rc != MC_ARGS_GO)
        return rc;
    if (key && strcmp(key, "ops") == 0) {
        print_ops();
        return 0;
    }
    struct mc_err err = {0};
    mc_status st = mc_recipe_doc(key, mc_say_line, NULL, &err);
    return st == MC_OK ? 0 : mc_say_error(&err, st);
}
