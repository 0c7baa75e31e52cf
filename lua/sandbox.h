/* sandbox.h - what a chunk may see. */
#pragma once
#include "vm.h"

/* Opens the allowed libraries inside vm and prepares the environments. Once a state. */
MC_LJMP void mc_sandbox_open(lua_State *L);
/* Pushes a new environment: its own copies of the allowed libraries, strict about unknown names. */
MC_LJMP void mc_sandbox_push_env(lua_State *L);
/* Pushes what `require(name)` gives to library code ("mascon.trace"). */
MC_LJMP void mc_sandbox_require(lua_State *L, const char *name);

/* Pushes the keys of the table at idx (absolute), sorted as pairs() visits them; how many. */
MC_LJMP int mc_sandbox_push_keys(lua_State *L, int idx);

/* -- api.c: the `host` table that only files of home/lua/mascon see ---------------------------- */
MC_LJMP void mc_api_push_host(lua_State *L);
/* Tag of the table at idx ("decoder"), the file of the call that made it (-1: none) and its line;
 * NULL: a plain table. */
MC_LJMP const char *mc_api_tag(lua_State *L, int idx, int *file, int *line);
/* File (-1: none) and line of the innermost running function outside the library; with models = 1
 * the preset files count as outside. */
MC_LJMP int mc_api_where(lua_State *L, int models, int *line);
/* Raises "file:line: msg" at that place; pops nothing. */
MC_LJMP int mc_api_fail(lua_State *L, const char *msg);
