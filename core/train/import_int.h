/* import_int.h - the inside of import.c, import_names.c and import_config.c. */
#pragma once
#include "import.h"
#include "../../ckpt/safetensors.h"

/* ---- import_names.c ---- */
struct mc_import_row {
    const char *theirs; /* '*': the layer's number */
    const char *ours;   /* NULL: computed here; not carried over */
    int transposed;     /* theirs is [in, out], ours [out, in] */
    int part, parts; /* ours is part `part` of `parts` along their last dimension; 0 parts: all */
};
struct mc_import_family {
    const char *model_type;              /* of config.json */
    const struct mc_import_row *rows[2]; /* each ends with theirs = NULL */
    const char *norm, *eps;              /* our op; their key of its epsilon */
    const char *gate;                    /* our op in the mlp */
    const char *act[2];                  /* what config.json may call it */
};
extern const struct mc_import_family mc_import_families[];
extern const int mc_import_nfamilies;
/* NULL: none of that name. */
const struct mc_import_family *mc_import_family_named(const char *model_type);
const struct mc_import_row *mc_import_row_at(const struct mc_import_family *f,
                                             int i); /* NULL: past the last */
/* Without "model." or "transformer.", which a model's base alone is saved without. */
const char *mc_import_plain(const char *name);
/* Does `name`, plain, follow the row? *layer: its number, -1 without one. */
int mc_import_follows(const struct mc_import_row *row, const char *name, int *layer);
void mc_import_expand(const char *pattern, int layer, char dst[MC_NAME_MAX]);

/* ---- import_config.c ---- */
/* Reads FOLDER/config.json where it is there, and compares; *family stays NULL where it is not. */
mc_status mc_import_config(const char *folder, const struct mc_recipe *r,
                           const struct mc_import_family **family, struct mc_problems *problems,
                           struct mc_err *err);
