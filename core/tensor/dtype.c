/* dtype.c - the table of element types. Floor 1 (tensor).
 * I1  Names are those of safetensors: files carry them. Threads: any. */
#include "dtype.h"
#include "../base/status.h"
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} types[MC_NDTYPES] = {
    [MC_F32] = {"F32", 4}, [MC_F64] = {"F64", 8}, [MC_BF16] = {"BF16", 2}, [MC_F16] = {"F16", 2},
    [MC_I32] = {"I32", 4}, [MC_I64] = {"I64", 8}, [MC_U16] = {"U16", 2},   [MC_U8] = {"U8", 1},
};

size_t mc_dtype_size(enum mc_dtype t)
{
    MC_ASSERT((unsigned)t < MC_NDTYPES);
    return types[t].bytes;
}

const char *mc_dtype_name(enum mc_dtype t)
{
    return (unsigned)t < MC_NDTYPES ? types[t].name : "?";
}

int mc_dtype_parse(const char *name)
{
    for (int t = 0; t < MC_NDTYPES; t++)
        if (strcmp(types[t].name, name) == 0) /* I1 */
            return t;
    return -1;
}
