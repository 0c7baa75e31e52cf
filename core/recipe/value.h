/* value.h - plain data between a source (a Lua table, a JSON file, --set) and struct mc_recipe.
 *
 * A tree of tagged values, each with its origin, so that one binder serves every source and each
 * message can say path, file and line. Numbers are doubles, as in Lua; integers up to 2^53 are
 * exact. Owned by a struct mc_values pool: handle life, freed as one. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

enum mc_value_kind { MC_V_NIL, MC_V_BOOL, MC_V_NUM, MC_V_STR, MC_V_LIST, MC_V_MAP };

struct mc_value {
    enum mc_value_kind kind;
    int b;
    double num;
    const char *str;  /* MC_V_STR; NUL-terminated, no inner NUL */
    const char *tag;  /* MC_V_MAP from a constructor: "decoder", "lr.wsd", "adamw" ...; else NULL */
    const char *file; /* origin: recipe path, "--set", "resolved.json", NULL */
    int line;         /* 0: unknown */
    int n;            /* LIST, MAP */
    struct mc_value **item;
    const char **key; /* MAP, always in ascending strcmp order */
};

struct mc_values;                         /* the pool */
struct mc_values *mc_values_create(void); /* NULL: out of memory */
void mc_values_destroy(struct mc_values *p);
struct mc_value *mc_value_new(struct mc_values *p, enum mc_value_kind kind);
const char *mc_value_strn(struct mc_values *p, const char *s, size_t n); /* copied into the pool */
mc_status mc_value_push(struct mc_values *p, struct mc_value *list, struct mc_value *item,
                        struct mc_err *err);
mc_status mc_value_put(struct mc_values *p, struct mc_value *map, const char *key,
                       struct mc_value *item, struct mc_err *err); /* replaces */
struct mc_value *mc_value_get(const struct mc_value *map,
                              const char *key); /* NULL: absent or not a map */
int mc_value_remove(struct mc_value *map, const char *key);
/* JSON text (<= 64 MiB, depth <= 32, at most 2^21 values, no duplicate keys, integers that a double
 * holds exactly) -> values with file = `origin`. A top that is no object or array: MC_E_FORMAT. */
mc_status mc_value_from_json(struct mc_values *p, const char *text, size_t n, const char *origin,
                             struct mc_value **v, struct mc_err *err);
