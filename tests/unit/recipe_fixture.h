/* recipe_fixture.h - a small sound recipe as JSON, and a way to change one key of it. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "../../core/base/arena.h"
#include "../../core/recipe/recipe.h"

#define FIXTURE_MODEL                                                                              \
    "\"model\":{\"layers\":2,\"hidden\":32,\"heads\":4,\"kv_heads\":2,\"ffn\":64,\"seq\":16,"      \
    "\"stem\":[{\"op\":\"embedding\",\"name\":\"embed\",\"in\":[0],\"attrs\":{},\"line\":3}],"     \
    "\"blocks\":[[{\"op\":\"rmsnorm\",\"name\":\"norm\",\"in\":[0],\"attrs\":{\"eps\":1e-05},"     \
    "\"line\":7},{\"op\":\"rope\",\"in\":[1],\"attrs\":{\"theta\":10000.5,\"half\":true}},"        \
    "{\"op\":\"add\",\"in\":[0,2],\"attrs\":{\"mode\":\"plain\"}}]],"                              \
    "\"layer_block\":[0,0],"                                                                       \
    "\"head\":[{\"op\":\"linear\",\"name\":\"head\",\"in\":[0],\"attrs\":{\"shard\":\"column\"}}]" \
    "}"
#define FIXTURE                                                                                    \
    "{\"name\":\"t\"," FIXTURE_MODEL ",\"data\":{\"train\":\"text\"},"                             \
    "\"batch\":{\"global\":12,\"micro\":1},\"steps\":{\"steps\":50},"                              \
    "\"lr\":{\"kind\":\"constant\",\"peak\":0.001}}"

struct fixture {
    struct mc_values *pool;
    struct mc_value *root;
    struct mc_problems problems;
    struct mc_recipe_box *box;
};

static inline struct mc_value *fixture_json(struct fixture *f, const char *json, const char *file)
{
    struct mc_value *v = NULL;
    struct mc_err err = {0};
    char wrapped[4096];

    snprintf(wrapped, sizeof wrapped, "[%s]", json); /* a scalar alone is no JSON text here */
    if (mc_value_from_json(f->pool, wrapped, strlen(wrapped), file, &v, &err) != MC_OK)
        fail_msg("%s: %s", json, err.msg);
    return v->item[0];
}

static inline void fixture_init(struct fixture *f)
{
    memset(f, 0, sizeof *f);
    f->pool = mc_values_create();
    f->root = fixture_json(f, FIXTURE, "r.lua");
}

static inline void fixture_fini(struct fixture *f)
{
    mc_recipe_destroy(f->box);
    mc_problems_fini(&f->problems);
    mc_values_destroy(f->pool);
    memset(f, 0, sizeof *f);
}

/* Sets a dotted key to a JSON value, making maps on the way; json NULL removes it. */
static inline struct mc_value *fixture_set(struct fixture *f, const char *dotted, const char *json)
{
    struct mc_value *at = f->root, *v = NULL, *next;
    char part[64];
    const char *dot;

    while ((dot = strchr(dotted, '.'))) {
        snprintf(part, sizeof part, "%.*s", (int)(dot - dotted), dotted);
        next = mc_value_get(at, part);
        if (!next) {
            next = mc_value_new(f->pool, MC_V_MAP);
            next->file = "r.lua";
            assert_int_equal(mc_value_put(f->pool, at, part, next, NULL), MC_OK);
        }
        at = next;
        dotted = dot + 1;
    }
    if (!json) {
        assert_true(mc_value_remove(at, dotted));
        return NULL;
    }
    v = fixture_json(f, json, "r.lua");
    v->line = 42;
    assert_int_equal(mc_value_put(f->pool, at, dotted, v, NULL), MC_OK);
    return v;
}

static inline mc_status fixture_bind(struct fixture *f)
{
    return mc_recipe_bind(f->root, &f->problems, &f->box, NULL);
}

static inline void fixture_print(const struct mc_problems *ps)
{
    for (int i = 0; i < ps->n; i++)
        print_message("  %s:%d: %s: %s [%s]\n", ps->p[i].file, ps->p[i].line, ps->p[i].path,
                      ps->p[i].message, ps->p[i].hint);
}

/* Is there a problem at path whose message (or hint) holds the text? */
static inline int fixture_says(const struct mc_problems *ps, const char *path, const char *text)
{
    for (int i = 0; i < ps->n; i++)
        if (strcmp(ps->p[i].path, path) == 0 &&
            (strstr(ps->p[i].message, text) || strstr(ps->p[i].hint, text)))
            return 1;
    return 0;
}
