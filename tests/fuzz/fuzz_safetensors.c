/* fuzz_safetensors.c - any bytes as a safetensors file: refused, or every tensor lies within its
 * data, no byte is two tensors', and every number can be read.
 * links: mc_ckpt
 * Input: the file. */
#include <stdlib.h>
#include <string.h>
#include "../../ckpt/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static double out[65536];
    uint8_t *own = malloc(size + !size); /* exact size: a step over the end is seen */
    struct mc_safetensors *s;
    struct mc_err err = {0};
    if (!own)
        abort();
    if (size > 0)
        memcpy(own, data, size);
    if (mc_safetensors_open_memory(own, size, &s, &err) == MC_OK) {
        int64_t total = 0;
        for (int i = 0; i < mc_safetensors_count(s); i++) {
            const struct mc_safetensor *t = mc_safetensors_at(s, i);
            if (mc_safetensors_find(s, t->name) != i || t->count < 0)
                abort();
            total += t->count; /* an element has a byte at least */
            for (int64_t at = 0; mc_safetensors_is_real(t) && at < t->count; at += 65536) {
                int64_t n = t->count - at < 65536 ? t->count - at : 65536;
                if (mc_safetensors_read(s, i, at, n, out, &err) != MC_OK)
                    abort();
            }
        }
        if (total > (int64_t)size)
            abort();
        mc_safetensors_close(s);
    } else if (!err.msg[0]) {
        abort(); /* refused without a word */
    }
    free(own);
    return 0;
}
