/* safetensors.h - tensors of a foreign model: one *.safetensors file, or the files that an index
 * names. Reading never runs code; a size is believed only when the bytes are there.
 *
 * Names and shapes are known after mc_safetensors_open(); data is read in pieces, by element. */
#pragma once
#include <stdint.h>
#include "../core/base/status.h"
#include "../core/tensor/tensor.h"

struct mc_safetensor {
    const char *name;  /* as stored */
    const char *dtype; /* "F32" ... as stored */
    struct mc_shape shape;
    int64_t count; /* elements */
};
struct mc_safetensors;

/* path: a file; an index (*.index.json); or a folder that holds model.safetensors or
 * model.safetensors.index.json. MC_E_FORMAT: not what it claims to be, and where. */
mc_status mc_safetensors_open(const char *path, struct mc_safetensors **s, struct mc_err *err);
/* The bytes of one file, kept by the caller. */
mc_status mc_safetensors_open_memory(const void *bytes, size_t n, struct mc_safetensors **s,
                                     struct mc_err *err);
void mc_safetensors_close(struct mc_safetensors *s);

int mc_safetensors_count(const struct mc_safetensors *s);
const struct mc_safetensor *mc_safetensors_at(const struct mc_safetensors *s, int i); /* by name */
int mc_safetensors_find(const struct mc_safetensors *s, const char *name);            /* -1: none */
const char *mc_safetensors_folder(const struct mc_safetensors *s); /* where the files lie */
/* Can elements be read as numbers? F32, F16, BF16, F64. */
int mc_safetensors_is_real(const struct mc_safetensor *t);
/* Elements first .. first + n of tensor i, exact. MC_E_FORMAT: a dtype that is not real. */
mc_status mc_safetensors_read(const struct mc_safetensors *s, int i, int64_t first, int64_t n,
                              double *out, struct mc_err *err);
