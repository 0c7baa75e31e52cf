/* fuzz_idx.c - any bytes as .idx, over a .bin of any small size: refused, or read to the last token
 * without leaving either buffer.
 * links: mc_data
 * Input: 2 bytes, the size of .bin; the rest is the index. */
#include <stdlib.h>
#include <string.h>
#include "../../core/data/data_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    int64_t nbin = data[0] | (data[1] & 15) << 8, nidx = (int64_t)size - 2;
    unsigned char *idx = malloc((size_t)nidx + 1), *bin = malloc((size_t)nbin + 1);
    struct mc_indexed *x;
    if (!idx || !bin)
        abort();
    idx = realloc(idx, (size_t)nidx + !nidx); /* exact sizes: a step over the end is seen */
    bin = realloc(bin, (size_t)nbin + !nbin);
    memcpy(idx, data + 2, (size_t)nidx);
    for (int64_t i = 0; i < nbin; i++)
        bin[i] = (unsigned char)(i * 89);
    if (mc_indexed_open_memory(idx, nidx, bin, nbin, &x, NULL) == MC_OK) {
        int64_t n = mc_indexed_tokens(x);
        if (n > nbin)
            abort(); /* a token read twice */
        int32_t id[64];
        for (int64_t at = 0; at < n; at += 64)
            (void)mc_indexed_read(x, at, n - at < 64 ? n - at : 64, id, NULL);
        for (int64_t i = 0; i < mc_indexed_sequences(x); i++) {
            int64_t off, len;
            if (mc_indexed_sequence(x, i, &off, &len, NULL) != MC_OK || off < 0 || len < 0)
                abort();
        }
        mc_indexed_close(x);
    }
    free(idx);
    free(bin);
    return 0;
}
