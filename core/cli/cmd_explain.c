/* cmd_explain.c - `mascon explain`: every resolved value and where it came from. */
#include "cli.h"
#include <stdio.h>

static const char about[] =
    "Prints every key of RECIPE with its value after defaults, inherit, --set and checks, and "
    "where\n"
    "each came from (a line of a file, --set, or the default). Starts nothing.";

static void print_memory(const struct mc_cli_recipe *r)
{
    const struct mc_train_memory *m = &r->memory;
    const struct mc_parallel_cfg *p = &r->recipe->parallel;
    int64_t ranks = p->dp * p->tp * p->pp;
    const struct {
        const char *name;
        size_t bytes;
    } row[] = {{"parameters", m->params},       {"gradients", m->grads + m->extra_grads},
               {"masters", m->master},          {"optimizer", m->optim},
               {"activations", m->activations}, {"temporaries", m->temp},
               {"tables", m->tables},           {"batch", m->batch},
               {"pipeline", m->pipe},           {"total", m->total}};
    char b[32];
    if (m->total == 0) /* a note says why */
        return;
    if (ranks > 1)
        printf("\nmemory of the fullest of %lld ranks:\n", (long long)ranks);
    else
        printf("\nmemory of one rank:\n");
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        mc_say_bytes((double)row[i].bytes, b);
        printf("  %-12s %14zu  %s\n", row[i].name, row[i].bytes, b);
    }
    printf("\nwork of one token, forward and backward, at the longest sequence (MFLOP):\n"
           "  causal %.6g, full (what mfu counts) %.6g, 6N + 12LCT %.6g\n",
           m->flops_causal * 1e-6, m->flops_full * 1e-6, m->flops_formula * 1e-6);
}

int mc_cmd_explain(int argc, char **argv)
{
    static struct mc_cli_recipe r;
    const struct mc_arg arg[] = {
        {"--set", "KEY=VALUE", "change a key after loading (repeatable)", MC_ARG_LIST, &r.set, 0,
         0},
        {"--device", "D", "cpu or cuda", MC_ARG_STR, &r.device, 0, 0},
        {"--ranks", "N", "resolve the layout for N ranks", MC_ARG_I64, &r.ranks, 1, 1 << 20},
        {"--nodes", "N", "... or for N nodes", MC_ARG_I64, &r.nodes, 1, 1 << 20},
        {"--per-node", "G", "devices on a node", MC_ARG_I64, &r.per_node, 1, 1024},
        {"--json", NULL, "answer in JSON", MC_ARG_FLAG, &r.json, 0, 0},
    };
    struct mc_args a = {.usage = "mascon explain RECIPE [options]",
                        .about = about,
                        .arg = arg,
                        .nargs = sizeof arg / sizeof *arg,
                        .pos = &r.path,
                        .min_pos = 1,
                        .max_pos = 1};
    int rc = mc_args_parse(&a, argc, argv);
    if (rc != MC_ARGS_GO)
        return rc;
    rc = mc_cli_load(&r);
    if (rc == 0) {
        struct mc_err err = {0};
        struct mc_json j;
        mc_json_init_grow(&j);
        mc_status st = mc_recipe_explain(r.loaded.box, r.json ? &j : NULL, mc_say_line, NULL);
        if (st != MC_OK) {
            rc = mc_say_error(&err, st);
            mc_json_fini(&j);
        } else if (r.json) {
            mc_say_json(&j);
        } else {
            mc_json_fini(&j);
            print_memory(&r);
            fflush(stdout);
            mc_say_notes(&r.notes);
        }
    }
    mc_cli_unload(&r);
    return rc;
}
