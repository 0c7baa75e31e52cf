/* fuzz_manifest.c - any bytes as the body of a manifest, with a right hash put behind them, so that
 * the parser is reached and not only its checksum: refused as damaged, or structurally whole, in
 * which case what is written from it reads back the same.
 * links: mc_ckpt
 * Input: the text before `,"hash":`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../ckpt/ckpt_int.h"
#include "../../core/base/arena.h"
#include "../../core/base/hash.h"

static void same(const struct mc_manifest *a, const struct mc_manifest *b)
{
    if (a->step != b->step || a->epoch != b->epoch || a->nfiles != b->nfiles ||
        a->ntensors != b->ntensors || a->nboxes != b->nboxes || a->nchunks != b->nchunks ||
        strcmp(a->books, b->books) || strcmp(a->weights_hash, b->weights_hash) ||
        memcmp(a->chunk, b->chunk, (size_t)a->nchunks * sizeof *a->chunk) ||
        memcmp(a->box, b->box, (size_t)a->nboxes * sizeof *a->box) ||
        memcmp(a->tensor, b->tensor, (size_t)a->ntensors * sizeof *a->tensor))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mc_err e = {0};
    struct mc_manifest m = {0}, again = {0};
    struct mc_json j;
    char *text = malloc(size + 64), hex[17];
    if (!text)
        abort();
    if (size)
        memcpy(text, data, size);
    mc_hash_hex(mc_hash64(text, size), hex);
    size_t n = size + (size_t)sprintf(text + size, ",\"hash\":\"%s\"}\n", hex);
    mc_status st = mc_manifest_read(text, n, "fuzz", &m, &e);
    if (st == MC_OK) {
        mc_json_init_grow(&j);
        mc_manifest_write(&m, &j);
        if (j.failed)
            abort();
        j.buf[j.len] = '\n';
        if (mc_manifest_read(j.buf, j.len + 1, "again", &again, &e) != MC_OK)
            abort();
        same(&m, &again);
        mc_json_fini(&j);
        mc_manifest_fini(&again);
        mc_manifest_fini(&m);
    } else if (st != MC_E_CORRUPT || !e.msg[0]) {
        abort();
    }
    free(text);
    return 0;
}
