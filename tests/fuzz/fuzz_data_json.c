/* fuzz_data_json.c - any bytes as a sidecar of packed data, and as a data cursor.
 * links: mc_data
 * Input: the text. Accepted: what was read must be what its own rules say. */
#include <stdlib.h>
#include <string.h>
#include "../../core/data/data_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct mc_data d = {.ntrain = 2,
                               .seq = 10,
                               .block = 10,
                               .weight = {1, 2},
                               .train = {{.tokens = 501}, {.tokens = 77}}};
    struct mc_sidecar s;
    struct mc_cursor c;
    char *text = malloc(size + 1);
    if (!text)
        abort();
    memcpy(text, data, size);
    text[size] = 0;
    strcpy(d.train[0].name, "a/b");
    strcpy(d.train[1].name, "a/b#2");
    if (mc_sidecar_parse(text, size, "x.json", &s, NULL) == MC_OK) {
        if (s.nchunks < 0 || s.bin_bytes < 0 || s.chunk < 4096)
            abort();
        mc_sidecar_fini(&s);
    }
    if (mc_cursor_read(&d, text, &c, (int)(size & 1), NULL) == MC_OK)
        for (int i = 0; i < 2; i++)
            if (c.nsources != 2 || c.phase_base[i] > c.taken[i])
                abort();
    free(text);
    return 0;
}
