/* walk.h - from Lua tables to the value tree, and back. */
#pragma once
#include "vm.h"
#include "../core/recipe/recipe.h"

enum { MC_WALK_MAX_FNS = 64, MC_WALK_DEPTH = 12 };

struct mc_walk_fn { /* a function of the recipe: a map with this tag stands for it in the tree */
    const struct mc_value *v;
    int ref; /* in the registry */
};
struct mc_walk {
    struct mc_vm *vm;
    struct mc_values *pool;
    struct mc_problems *problems;
    const char *origin; /* file of values that no text of ours made: "--set" */
    int nfns;
    struct mc_walk_fn fn[MC_WALK_MAX_FNS];
    int failed; /* out of memory in the pool */
};

/* Value at idx (absolute) -> tree. file: text it came from (-1: none), whose constructor `node` is
 * (-1: unknown). NULL: it was no data; a problem was added. */
MC_LJMP struct mc_value *mc_walk_table(struct mc_walk *w, lua_State *L, int idx, int file,
                                       int node);
/* The function that stands behind v; LUA_NOREF: none. */
int mc_walk_function(const struct mc_walk *w, const struct mc_value *v);
/* Pushes v as plain Lua data. */
MC_LJMP void mc_walk_push(lua_State *L, const struct mc_value *v);
