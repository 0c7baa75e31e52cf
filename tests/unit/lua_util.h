/* lua_util.h - for the test_lua_* programs: a folder of texts, and recipes loaded from text. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../core/base/arena.h"
#include "../../lua/host.h"

static char g_dir[64];

static int make_dir(void **state)
{
    (void)state;
    snprintf(g_dir, sizeof g_dir, "/tmp/mascon-test-XXXXXX");
    return mkdtemp(g_dir) ? 0 : -1;
}
static int drop_dir(void **state)
{
    char cmd[128];
    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", g_dir);
    return system(cmd);
}
static inline const char *path_of(const char *name)
{
    static char path[4][256];
    static int at;
    at = (at + 1) % 4;
    snprintf(path[at], sizeof path[at], "%s/%s", g_dir, name);
    return path[at];
}
static inline const char *write_file(const char *name, const char *text)
{
    const char *path = path_of(name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
    return path;
}

struct loaded {
    struct mc_problems problems;
    struct mc_loaded l;
    struct mc_err err;
    mc_status st;
};
static inline void load_file(struct loaded *x, const char *path, const char *const *set, int nset)
{
    const struct mc_load_cfg cfg = {.path = path, .home = MC_SOURCE_HOME, .set = set, .nset = nset};
    memset(x, 0, sizeof *x);
    x->st = mc_lua_load_recipe(&cfg, &x->problems, &x->l, &x->err);
}
static inline void load_text(struct loaded *x, const char *text)
{
    load_file(x, write_file("recipe.lua", text), NULL, 0);
}
static inline void unload(struct loaded *x)
{
    if (x->st == MC_OK)
        mc_lua_loaded_fini(&x->l);
    mc_problems_fini(&x->problems);
}
/* The problem whose message holds `part`, or NULL. */
static inline const struct mc_problem *find_problem(const struct loaded *x, const char *part)
{
    for (int i = 0; i < x->problems.n; i++)
        if (strstr(x->problems.p[i].message, part))
            return &x->problems.p[i];
    return NULL;
}
static inline void show(const struct loaded *x)
{
    printf("status %d: %s\n", x->st, x->err.msg);
    for (int i = 0; i < x->problems.n; i++)
        printf("  %s:%d: %s: %s\n", x->problems.p[i].file, x->problems.p[i].line,
               x->problems.p[i].path, x->problems.p[i].message);
}
/* Fails the test unless there is such a problem, at this path and line (NULL, 0: any). */
static inline void expect_problem(const struct loaded *x, const char *part, const char *path,
                                  int line)
{
    const struct mc_problem *p = find_problem(x, part);
    if (!p || x->st != MC_E_RECIPE || (path && strcmp(p->path, path)) ||
        (line && p->line != line)) {
        show(x);
        fail_msg("wanted '%s' at %s:%d", part, path ? path : "any", line);
    }
}
static inline void expect_ok(const struct loaded *x)
{
    if (x->st != MC_OK) {
        show(x);
        fail_msg("the recipe did not load");
    }
}

/* A whole recipe with room for more keys; lines: model 4, heads 5, data 6. */
#define RECIPE(before, more)                                                                       \
    "local m = require 'mascon'\n" before "return m.recipe {\n"                                    \
    "  name = 'x',\n"                                                                              \
    "  model = m.models.llama { layers = 2, hidden = 16,\n"                                        \
    "    heads = 4, kv_heads = 2, ffn = 32, seq = 8 },\n"                                          \
    "  data = { tokenizer = 'bytes', train = 'text.txt' },\n"                                      \
    "  batch = { global = 4, micro = 2 }, steps = { steps = 10 },\n"                               \
    "  lr = m.lr.constant { peak = 1e-3 },\n" more "}\n"
