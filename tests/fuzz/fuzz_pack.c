/* fuzz_pack.c - any bytes as an input of pack: JSONL or a text, plain, gzip or zstd.
 * links: mc_data
 * Input: a byte that chooses, then the file. Accepted: every token belongs to a document, and the
 * blocks make the file again where it is a plain text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../core/data/pack_int.h"

static char base[64];

static void clean(void)
{
    char cmd[96];
    snprintf(cmd, sizeof cmd, "rm -rf %s", base);
    if (system(cmd))
        return;
}

static void check(const struct mc_pack_block *b, const uint8_t *file, size_t size, size_t *at)
{
    int64_t tokens = 0;
    if (b->st != MC_OK)
        return;
    for (int64_t d = 0; d < b->ndoc; d++)
        tokens += b->doc[d];
    if (b->jsonl ? tokens != b->ids.n || b->ids.n != b->text_bytes + b->ndoc
                 : b->ids.n != (int64_t)b->bytes + b->last)
        abort();
    if (file && (b->bytes > size - *at || memcmp(b->text, file + *at, b->bytes) != 0))
        abort();
    *at += b->bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const name[6] = {"x.jsonl", "x.jsonl.gz", "x.jsonl.zst",
                                        "x.txt",   "x.txt.gz",   "x.txt.zst"};
    if (!base[0]) {
        strcpy(base,
               access("/dev/shm", W_OK) == 0 ? "/dev/shm/mc-fuzz-XXXXXX" : "/tmp/mc-fuzz-XXXXXX");
        if (!mkdtemp(base))
            abort();
        atexit(clean);
    }
    if (size < 1)
        return 0;
    char path[96];
    int kind = data[0] % 6, filled;
    snprintf(path, sizeof path, "%s/%s", base, name[kind]);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data + 1, 1, size - 1, f) != size - 1 || fclose(f))
        abort();
    struct mc_pack_input in = {path, (int64_t)size - 1, mc_pack_is_jsonl(path)};
    struct mc_pack_reader r = {.in = &in, .nin = 1};
    struct mc_pack_job job = {.enc = &mc_pack_bytes, .key = "text", .append_eos = 1, .esize = 2};
    static struct mc_pack_block b[2];
    mc_status st = MC_OK;
    size_t at = 0;
    while (st == MC_OK && !r.done) {
        st = mc_pack_read(&r, b, 2, &filled, NULL);
        for (int i = 0; i < filled; i++) {
            mc_pack_encode(&job, &b[i]);
            check(&b[i], kind == 3 ? data + 1 : NULL, size - 1, &at);
        }
    }
    if (st == MC_OK && kind == 3 && at != size - 1)
        abort();
    mc_pack_reader_fini(&r);
    return 0;
}
