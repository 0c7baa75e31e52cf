/* fuzz_data_file.c - any bytes as the one chunk of a checkpoint whose manifest vouches for them, or
 * as its whole data file: open, verify and load refuse it by name, or what is loaded is what the
 * checksum of the raw bytes says.
 * links: mc_ckpt dep_zstd
 * Input: byte 0: bit 0 zstd, bit 1 the bytes replace the file, bit 2 the checksum of the raw bytes
 * is a right one where there is one; byte 1: elements of the tensor; the rest: stored bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>
#include "../../ckpt/ckpt_int.h"
#include "../../core/base/arena.h"
#include "../../core/base/hash.h"
#include "../../core/base/log.h"

static char g_dir[64];

static void clean(void)
{
    char cmd[100];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", g_dir);
    if (system(cmd))
        _exit(1);
}

static void spill(const char *name, const void *a, size_t na, const void *b, size_t nb, size_t pad)
{
    char path[128];
    static const unsigned char zero[64];
    snprintf(path, sizeof path, "%s/%s", g_dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(a, 1, na, f) != na || fwrite(b, 1, nb, f) != nb ||
        fwrite(zero, 1, pad, f) != pad || fclose(f))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!g_dir[0]) {
        snprintf(g_dir, sizeof g_dir, "/dev/shm/mc_fuzz.XXXXXX");
        if (!mkdtemp(g_dir))
            abort();
        atexit(clean);
        mc_log_init(MC_LOG_ERROR, -1);
    }
    if (size < 3 || size > 60000)
        return 0;
    int zstd = data[0] & 1, whole = data[0] & 2, count = 1 + data[1];
    size_t n = size - 2, raw_bytes = (size_t)count * 4;
    const uint8_t *stored = data + 2;
    unsigned char raw[1024], out[1024], header[MC_CKPT_HEADER];
    memset(raw, 0, sizeof raw);
    if (zstd && data[0] & 4)
        ZSTD_decompress(raw, raw_bytes, stored, n);
    if (!zstd)
        memcpy(raw, stored, n < raw_bytes ? n : raw_bytes);
    struct mc_chunk c = {.off = 64,
                         .stored_bytes = (uint32_t)(zstd ? n : raw_bytes),
                         .raw_bytes = (uint32_t)raw_bytes,
                         .raw_hash = mc_hash64(raw, raw_bytes),
                         .codec = zstd ? MC_CODEC_ZSTD : MC_CODEC_RAW};
    c.stored_hash = zstd ? mc_hash64(stored, n) : c.raw_hash;
    size_t pad = mc_align_up(c.stored_bytes, 64) - c.stored_bytes;
    int64_t bytes = whole ? (int64_t)n : (int64_t)(64 + c.stored_bytes + pad);
    struct mc_stored_tensor t = {
        .name = "x", .dtype = MC_F32, .shape = mc_shape_1(count), .nboxes = 1};
    struct mc_stored_box b = {.box = mc_box_whole(&t.shape), .nchunks = 1};
    struct mc_manifest m = {.step = 1,
                            .epoch = 1,
                            .books = (char[]){"{}"},
                            .nfiles = 1,
                            .file_bytes = &bytes,
                            .ntensors = 1,
                            .nboxes = 1,
                            .nchunks = 1,
                            .tensor = &t,
                            .box = &b,
                            .chunk = &c};
    struct mc_json j;
    mc_json_init_grow(&j);
    mc_manifest_write(&m, &j);
    spill("manifest.json", j.buf, j.len, "\n", 1, 0);
    mc_json_fini(&j);
    mc_data_header(header, 1, 1, 0);
    if (whole)
        spill("data-00000.mcd", stored, n, "", 0, 0);
    else
        spill("data-00000.mcd", header, 64, zstd ? stored : raw, c.stored_bytes, pad);
    struct mc_err e = {0};
    struct mc_ckpt *k;
    mc_status st = mc_ckpt_open(g_dir, &k, &e);
    if (st == MC_OK) {
        struct mc_state_tensor s = {
            .name = "x", .dtype = MC_F32, .shape = t.shape, .box = b.box, .data = out};
        struct mc_err e2 = {0};
        st = mc_ckpt_load(k, &s, 1, 1, &e);
        if ((mc_ckpt_verify(k, NULL, NULL, &e2) == MC_OK) != (st == MC_OK))
            abort(); /* the two must agree */
        if (st == MC_OK && (memcmp(out, raw, raw_bytes) != 0) &&
            mc_hash64(out, raw_bytes) != c.raw_hash)
            abort();
        mc_ckpt_close(k);
    }
    if (st != MC_OK && (st != MC_E_CORRUPT || !strstr(e.msg, g_dir)))
        abort();
    return 0;
}
