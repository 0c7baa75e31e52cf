/* recipe_int.h - field rows and the binder's state, for core/recipe only. */
#pragma once
#include "recipe.h"

/* How a key's value looks in the recipe, in struct mc_recipe and in JSON. */
enum mc_row_type {
    MC_ROW_I64,  /* int64_t; a whole number, or a quantity in the row's unit, or the row's word */
    MC_ROW_SEED, /* int64_t; a whole number or a string of decimal digits */
    MC_ROW_BOOL, /* int */
    MC_ROW_F64,  /* double */
    MC_ROW_ENUM, /* an enum; one of the row's words */
    MC_ROW_STR,  /* char[size] */
    MC_ROW_QUANTITY, /* struct mc_quantity; JSON: its text */
    MC_ROW_TARGET,   /* struct mc_quantity shared by exclusive keys, one a unit */
    MC_ROW_SPAN,     /* double in `unit` (s, h); a duration or a bare number; JSON: the number */
    MC_ROW_BYTES,    /* int64_t; bytes */
    MC_ROW_OTHER     /* `bind` and `write` know */
};
enum mc_row_resume { MC_FREE, MC_LOGGED, MC_FROZEN };

struct mc_binder;
struct mc_row {
    const char *path;
    enum mc_row_type type;
    size_t off, size;  /* member of struct mc_recipe */
    double min, max;   /* numbers; quantities: of n */
    int above;         /* min itself is excluded */
    const char *unit;  /* of a bare number, in words */
    enum mc_unit base; /* unit of a bare number in a QUANTITY or TARGET */
    unsigned units;    /* QUANTITY: bits (1 << enum mc_unit) it may be in */
    const char *word;  /* I64: the word that stands for word_value */
    int64_t word_value;
    const char *const *words; /* ENUM: words[value], NULL-ended */
    const char *dfl;          /* default as text: a number, true, false, else a string */
    const char *dfl_doc;      /* default that depends on other keys, in words */
    int required;
    unsigned lr_kinds; /* lr.*: bits (1 << enum mc_lr_kind) of the kinds that have the key */
    int model_scalar;  /* part of mc_recipe_bind_model() */
    enum mc_row_resume resume;
    const char *form; /* OTHER: how it is written, in words */
    const char *doc;
    void (*bind)(struct mc_binder *b, const struct mc_value *v);
    void (*write)(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
};

extern const struct mc_row mc_rows[]; /* sorted by path */
extern const int mc_nrows;

/* Row index of a dotted path (an alias is one too), or -1. */
int mc_rows_find(const char *path);
int mc_rows_is_group(const char *path); /* "model", "parallel.overlap" */
/* Does the key mean anything in this recipe (lr.decay in lr.cosine does not)? */
int mc_rows_active(const struct mc_row *row, const struct mc_recipe *r);
/* Hint for an unknown key in group `prefix` ("" at the top): 'did you mean "x"?', or "". */
void mc_rows_hint(const char *prefix, const char *key, char hint[160]);
static inline void *mc_rows_at(const struct mc_row *row, const struct mc_recipe *r)
{
    return (char *)r + row->off; /* the caller knows whether it may write */
}

struct mc_origin {
    const char *text; /* "default", "recipe.lua:12"; NULL: never bound */
    const char *file;
    int line, bad;
};
struct mc_recipe_box {
    struct mc_recipe r;
    struct mc_values *pool;   /* texts of origins */
    const char *source;       /* file of the root */
    struct mc_origin *origin; /* [mc_nrows] */
};

struct mc_binder {
    struct mc_problems *problems;
    struct mc_recipe_box *box;
    const struct mc_value *root;
    int row;         /* being bound */
    char path[160];  /* of the value being bound: the row's, with "[2].weight" for inner ones */
    int npositional; /* entries of lr that were positional */
    int declared;    /* data came from m.data.declared */
    int untraced;
    int ncalls, nlayer_block; /* of the model so far */
    mc_status nomem;
};

/* ---- bind.c ---- */
void mc_bind_bad(struct mc_binder *b, const struct mc_value *at, const char *hint, const char *fmt,
                 ...) __attribute__((format(printf, 4, 5)));
/* A table of named keys; {} is both a table and a list. */
static inline int mc_bind_is_table(const struct mc_value *v)
{
    return v->kind == MC_V_MAP || (v->kind == MC_V_LIST && v->n == 0);
}
const char *mc_bind_kind(const struct mc_value *v); /* "a number", "a table" ... */
/* 0 ok, -1 said. */
int mc_bind_num(struct mc_binder *b, const struct mc_value *v, double min, double max, int above,
                double *out);
int mc_bind_int(struct mc_binder *b, const struct mc_value *v, int64_t min, int64_t max,
                int64_t *out);
int mc_bind_bool(struct mc_binder *b, const struct mc_value *v, int *out);
/* free_text: control characters are allowed. Empty text is refused unless free_text. */
int mc_bind_str(struct mc_binder *b, const struct mc_value *v, char *dst, size_t cap,
                int free_text);
int mc_bind_word(struct mc_binder *b, const struct mc_value *v, const char *const *words, int *out);
int mc_bind_quantity(struct mc_binder *b, const struct mc_value *v, enum mc_unit base,
                     unsigned units, struct mc_quantity *out);
/* Is v a list (an empty table is one too)? Says what is wrong otherwise. */
int mc_bind_is_list(struct mc_binder *b, const struct mc_value *v, const char *form, int max);
/* Appends to b->path; returns the length to restore with mc_bind_leave(). */
size_t mc_bind_enter(struct mc_binder *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void mc_bind_leave(struct mc_binder *b, size_t mark);
/* Keys of a map that are not in known[] (NULL-ended) are problems. Returns how many. */
int mc_bind_only(struct mc_binder *b, const struct mc_value *map, const char *const *known);
const struct mc_value *mc_bind_get(const struct mc_value *map, const char *key); /* NIL is absent */
int mc_text_ok(const char *s, int free_text); /* valid UTF-8 without control characters */

/* ---- bind_list.c, bind_model.c: rows of type OTHER, and their writers (write.c) ---- */
void mc_bind_batch_global(struct mc_binder *b, const struct mc_value *v);
void mc_bind_ramp(struct mc_binder *b, const struct mc_value *v);
void mc_bind_train(struct mc_binder *b, const struct mc_value *v);
void mc_bind_valid(struct mc_binder *b, const struct mc_value *v);
void mc_bind_split(struct mc_binder *b, const struct mc_value *v);
void mc_bind_phases(struct mc_binder *b, const struct mc_value *v); /* phase.c, with its writer */
void mc_bind_hooks(struct mc_binder *b, const struct mc_value *v);
void mc_bind_lr_kind(struct mc_binder *b, const struct mc_value *v);
void mc_bind_pieces(struct mc_binder *b, const struct mc_value *v);
void mc_bind_table(struct mc_binder *b, const struct mc_value *v);
void mc_bind_betas(struct mc_binder *b, const struct mc_value *v);
void mc_bind_no_decay(struct mc_binder *b, const struct mc_value *v);
void mc_bind_rules(struct mc_binder *b, const struct mc_value *v);
void mc_bind_recompute(struct mc_binder *b, const struct mc_value *v);
void mc_bind_schedule(struct mc_binder *b, const struct mc_value *v);
void mc_bind_stages(struct mc_binder *b, const struct mc_value *v); /* stage.c, with its writer */
void mc_bind_optim_kind(struct mc_binder *b, const struct mc_value *v);
void mc_bind_stem(struct mc_binder *b, const struct mc_value *v);
void mc_bind_head(struct mc_binder *b, const struct mc_value *v);
void mc_bind_blocks(struct mc_binder *b, const struct mc_value *v);
void mc_bind_layer_block(struct mc_binder *b, const struct mc_value *v);
/* After all keys: do layer_block, blocks and layers agree? */
void mc_bind_model_end(struct mc_binder *b);
void mc_model_free(struct mc_model_cfg *m);

void mc_write_batch_global(const struct mc_recipe *r, struct mc_json *j, const char *key,
                           int lines);
void mc_write_ramp(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
void mc_write_train(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
void mc_write_valid(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
void mc_write_split(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
void mc_write_phases(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
void mc_write_hooks(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
void mc_write_lr_kind(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
void mc_write_pieces(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
void mc_write_table(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
void mc_write_betas(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
void mc_write_no_decay(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
void mc_write_rules(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
void mc_write_recompute(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
void mc_write_schedule(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
void mc_write_stages(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
void mc_write_optim_kind(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
void mc_write_stem(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
void mc_write_head(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
void mc_write_blocks(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);
void mc_write_layer_block(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines);

/* One row's value. lines: call lists carry their line numbers. */
void mc_write_row(const struct mc_row *row, const struct mc_recipe *r, struct mc_json *j,
                  const char *key, int lines);
/* The same as text (a grown JSON buffer: mc_json_fini it); "-" where the key is not active. */
void mc_write_text(const struct mc_row *row, const struct mc_recipe *r, struct mc_json *j);

extern const char *const mc_lr_kind_words[], *const mc_lr_shape_words[];
