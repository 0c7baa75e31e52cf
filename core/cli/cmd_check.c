/* cmd_check.c - `mascon check`: everything that would fail, before anything is started. */
#include "cli.h"
#include "../optim/optim.h"
#include <stdio.h>

static const char about[] = "Loads RECIPE, checks every key and everything across keys, and "
                            "reports all errors at once, each\n"
                            "with its file, line, dotted path and the nearest known name. Starts "
                            "nothing and takes no device.\n"
                            "Exit code 0: sound; 2: errors.";

static void summary_json(const struct mc_cli_recipe *r, const struct mc_train_memory *m,
                         int64_t steps)
{
    struct mc_json j;
    mc_json_init_grow(&j);
    mc_json_open(&j, NULL, '{');
    mc_json_bool(&j, "ok", 1);
    mc_say_problems_json(&r->problems, &j);
    mc_json_open(&j, "notes", '[');
    for (int i = 0; i < r->notes.n; i++)
        mc_json_str(&j, NULL, r->notes.note[i]);
    mc_json_close(&j, ']');
    mc_json_str(&j, "name", r->recipe->name);
    mc_json_i64(&j, "parameters", m->parameters);
    mc_json_i64(&j, "steps", steps);
    mc_json_f64(&j, "flops_per_token", m->flops_causal); /* flops.c */
    mc_json_f64(&j, "flops_per_token_full", m->flops_full);
    mc_json_f64(&j, "flops_per_token_formula", m->flops_formula);
    mc_json_open(&j, "memory", '{'); /* of the fullest rank; zeros: not planned */
    m = &r->memory;
    mc_json_i64(&j, "params", (int64_t)m->params);
    mc_json_i64(&j, "grads", (int64_t)(m->grads + m->extra_grads));
    mc_json_i64(&j, "master", (int64_t)m->master);
    mc_json_i64(&j, "optim", (int64_t)m->optim);
    mc_json_i64(&j, "activations", (int64_t)m->activations);
    mc_json_i64(&j, "temp", (int64_t)m->temp);
    mc_json_i64(&j, "tables", (int64_t)m->tables);
    mc_json_i64(&j, "batch", (int64_t)m->batch);
    mc_json_i64(&j, "pipe", (int64_t)m->pipe);
    mc_json_i64(&j, "total", (int64_t)m->total);
    mc_json_close(&j, '}');
    mc_json_close(&j, '}');
    mc_say_json(&j);
}

static void summary(const struct mc_cli_recipe *r, const struct mc_train_memory *m, int64_t steps)
{
    char params[32], n[32], total[32], target[48];
    mc_say_notes(&r->notes);
    mc_say_count(m->parameters, params);
    mc_say_count(steps, n);
    mc_say_bytes((double)r->memory.total, total);
    mc_units_print(r->recipe->steps, target);
    printf("ok\n");
    printf("%s: %s parameters; %s", r->recipe->name, params, target);
    if (r->recipe->steps.unit != MC_UNIT_STEPS && steps >= 0)
        printf(" (%s steps)", n);
    printf(" of %lld x %lld tokens", (long long)r->recipe->batch.global,
           (long long)r->recipe->model.seq);
    if (r->memory.total > 0)
        printf("; %s of memory on %s rank", total,
               r->recipe->parallel.dp * r->recipe->parallel.tp * r->recipe->parallel.pp > 1
                   ? "the fullest"
                   : "one");
    printf("\n");
}

int mc_cmd_check(int argc, char **argv)
{
    static struct mc_cli_recipe r;
    const struct mc_arg arg[] = {
        {"--set", "KEY=VALUE", "change a key after loading (repeatable)", MC_ARG_LIST, &r.set, 0,
         0},
        {"--device", "D", "cpu or cuda", MC_ARG_STR, &r.device, 0, 0},
        {"--ranks", "N", "check the layout against N ranks", MC_ARG_I64, &r.ranks, 1, 1 << 20},
        {"--nodes", "N", "... or against N nodes", MC_ARG_I64, &r.nodes, 1, 1 << 20},
        {"--per-node", "G", "devices on a node", MC_ARG_I64, &r.per_node, 1, 1024},
        {"--json", NULL, "answer in JSON", MC_ARG_FLAG, &r.json, 0, 0},
    };
    struct mc_args a = {.usage =
                            "mascon check RECIPE [--ranks N | --nodes N --per-node G] [options]",
                        .about = about,
                        .arg = arg,
                        .nargs = sizeof arg / sizeof *arg,
                        .pos = &r.path,
                        .min_pos = 1,
                        .max_pos = 1};
    int rc = mc_args_parse(&a, argc, argv);
    if (rc != MC_ARGS_GO)
        return rc;
    struct mc_err err = {0};
    struct mc_train_memory m = {0};
    rc = mc_cli_load(&r);
    if (rc == 0) {
        mc_status st = mc_train_plan(r.recipe, 1, &m, &err);
        struct mc_counters zero = {0};
        int64_t steps = mc_steps_to_go(r.recipe, &zero);
        if (st != MC_OK)
            rc = mc_say_error(&err, st);
        else if (r.json)
            summary_json(&r, &m, steps);
        else
            summary(&r, &m, steps);
    }
    mc_cli_unload(&r);
    return rc;
}
