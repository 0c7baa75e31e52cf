/* dtype.h - element types. Names are those of safetensors. */
#pragma once
#include <stddef.h>

enum mc_dtype { MC_F32, MC_F64, MC_BF16, MC_F16, MC_I32, MC_I64, MC_U16, MC_U8, MC_NDTYPES };
size_t mc_dtype_size(enum mc_dtype t);
const char *mc_dtype_name(enum mc_dtype t); /* "F32" ... */
int mc_dtype_parse(const char *name);       /* -1: unknown */
