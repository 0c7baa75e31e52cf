/* fuzz_table.c - any bytes as a writer's table of chunks, with a right checksum put into it, so
 * that the parser is reached: refused as damaged, or read, in which case what is written from it is
 * the same bytes.
 * links: mc_ckpt
 * Input: the table; its checksum is replaced. */
#include <stdlib.h>
#include <string.h>
#include "../../ckpt/ckpt_int.h"
#include "../../core/base/arena.h"
#include "../../core/base/hash.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mc_err e = {0};
    struct mc_manifest m = {0};
    unsigned char *p = malloc(size + 1);
    uint32_t writer = 0;
    if (!p)
        abort();
    if (size)
        memcpy(p, data, size);
    if (size >= 64) {
        uint64_t sum = mc_hash64(p, 56) ^ mc_mix64(mc_hash64(p + 64, size - 64));
        memcpy(p + 56, &sum, 8);
        memcpy(&writer, p + 12, 4);
    }
    mc_status st = mc_table_read(p, size, (int)writer, &m, &e);
    if (st == MC_OK) {
        void *again;
        size_t n;
        if (mc_table_write(&m, (int)writer, &again, &n, &e) != MC_OK || n != size ||
            memcmp(again, p, n) != 0)
            abort();
        mc_free(again);
        mc_manifest_fini(&m);
    } else if (st != MC_E_PEER || !e.msg[0]) {
        abort();
    }
    free(p);
    return 0;
}
