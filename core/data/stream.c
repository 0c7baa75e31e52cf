/* stream.c - the bytes of a file from its start, unpacked when its name ends in .gz or .zst.
 * Floor 3 (data). Includes: base recipe.
 *
 * gzip files may have several members, zstd files several frames: they follow each other. Nothing
 * else may follow them. The file must end where a member or frame does.
 *
 * I1  What is foreign is bounded: the input buffer is 1 MiB, zlib's window 32 KiB, zstd's at most
 *     128 MiB (its own limit); output goes where the caller has room.
 * I2  A file that is cut short, damaged or of another kind than its name says is MC_E_FORMAT with
 *     its name, never a shorter text.
 * Memory: handle life; zlib and zstd keep their own. Threads: the one that reads. */
#include "pack_int.h"
#include <fcntl.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>
#include "../base/arena.h"

enum { IN_BYTES = 1 << 20 };
enum packing { PLAIN, GZIP, ZSTD };

struct mc_stream {
    char path[MC_PATH];
    int fd;
    int64_t bytes, at; /* of the file */
    enum packing packing;
    unsigned char *in;
    size_t have, used; /* of `in` */
    int inside;        /* a member or frame is open */
    int z_made;
    z_stream z;
    ZSTD_DStream *zstd;
};

static enum packing packing_of(const char *path)
{
    size_t n = strlen(path);
    if (n > 3 && !strcmp(path + n - 3, ".gz"))
        return GZIP;
    return n > 4 && !strcmp(path + n - 4, ".zst") ? ZSTD : PLAIN;
}

int mc_stream_packed(const char *path)
{
    return packing_of(path) != PLAIN;
}

mc_status mc_stream_open(const char *path, int64_t bytes, struct mc_stream **s, struct mc_err *err)
{
    mc_status st = MC_OK;
    if (strlen(path) >= MC_PATH)
        return mc_err_set(err, MC_E_NOTFOUND, "path is too long: %.80s...", path);
    struct mc_stream *y = mc_alloc(sizeof *y, "stream");
    if (!y)
        return mc_err_set(err, MC_E_NOMEM, "no memory to read %s", path);
    memcpy(y->path, path, strlen(path) + 1);
    y->fd = -1;
    y->bytes = bytes;
    y->packing = packing_of(path);
    MC_TRY_GOTO(st, mc_sys_open(path, O_RDONLY, 0, &y->fd, err), fail);
    if (y->packing != PLAIN && !(y->in = mc_alloc(IN_BYTES, "packed input"))) {
        st = mc_err_set(err, MC_E_NOMEM, "no memory to read %s", path);
        goto fail;
    }
    if (y->packing == GZIP) {
        if (inflateInit2(&y->z, 15 + 16) != Z_OK) { /* 16: gzip and nothing else */
            st = mc_err_set(err, MC_E_NOMEM, "no memory to unpack %s", path);
            goto fail;
        }
        y->z_made = 1;
    }
    if (y->packing == ZSTD && !(y->zstd = ZSTD_createDStream())) {
        st = mc_err_set(err, MC_E_NOMEM, "no memory to unpack %s", path);
        goto fail;
    }
    *s = y;
    return MC_OK;
fail:
    mc_stream_close(y);
    return st;
}

void mc_stream_close(struct mc_stream *s)
{
    if (!s)
        return;
    if (s->fd >= 0)
        (void)mc_sys_close(s->fd, s->path, NULL);
    if (s->z_made)
        inflateEnd(&s->z);
    ZSTD_freeDStream(s->zstd);
    mc_free(s->in);
    mc_free(s);
}

int64_t mc_stream_taken(const struct mc_stream *s)
{
    return s->at - (int64_t)(s->have - s->used);
}

static mc_status take(struct mc_stream *s, void *dst, size_t n, size_t *got, struct mc_err *err)
{
    if ((int64_t)n > s->bytes - s->at)
        n = (size_t)(s->bytes - s->at);
    MC_TRY(mc_sys_pread_all(s->fd, dst, n, s->at, s->path, err));
    s->at += (int64_t)n;
    *got = n;
    return MC_OK;
}

static mc_status damaged(const struct mc_stream *s, const char *why, struct mc_err *err)
{
    return mc_err_set(err, MC_E_FORMAT, "%s: not whole %s data, near byte %lld: %s", s->path,
                      s->packing == GZIP ? "gzip" : "zstd", (long long)mc_stream_taken(s),
                      why ? why : "damaged");
}

/* Unpacks from `in` to dst, *fill moves. */
static mc_status unpack(struct mc_stream *s, unsigned char *dst, size_t n, size_t *fill,
                        struct mc_err *err)
{
    if (s->packing == ZSTD) {
        ZSTD_inBuffer in = {s->in, s->have, s->used};
        ZSTD_outBuffer out = {dst, n, *fill};
        size_t left = ZSTD_decompressStream(s->zstd, &out, &in);
        s->used = in.pos;
        *fill = out.pos;
        if (ZSTD_isError(left))
            return damaged(s, ZSTD_getErrorName(left), err);
        s->inside = left != 0;
        return MC_OK;
    }
    size_t room = n - *fill < 1u << 30 ? n - *fill : 1u << 30;
    if (!s->inside && inflateReset(&s->z) != Z_OK)
        return mc_err_set(err, MC_E_BUG, "%s: zlib refuses to begin a member", s->path);
    s->inside = 1;
    s->z.next_in = s->in + s->used;
    s->z.avail_in = (uInt)(s->have - s->used);
    s->z.next_out = dst + *fill;
    s->z.avail_out = (uInt)room;
    int rc = inflate(&s->z, Z_NO_FLUSH);
    s->used = s->have - s->z.avail_in;
    *fill += room - s->z.avail_out;
    if (rc == Z_STREAM_END)
        s->inside = 0;
    else if (rc != Z_OK && rc != Z_BUF_ERROR)
        return damaged(s, s->z.msg, err); /* I2 */
    return MC_OK;
}

mc_status mc_stream_read(struct mc_stream *s, void *dst, size_t n, size_t *got, struct mc_err *err)
{
    size_t fill = 0;
    if (s->packing == PLAIN)
        return take(s, dst, n, got, err);
    while (fill < n) {
        size_t before = fill;
        if (s->used == s->have) {
            s->used = 0;
            MC_TRY(take(s, s->in, IN_BYTES, &s->have, err));
        }
        /* without input a decoder may still hold output */
        if (s->have > 0 || s->inside)
            MC_TRY(unpack(s, dst, n, &fill, err));
        if (s->have == 0 && fill == before) {
            if (s->inside || s->bytes == 0)
                return damaged(s, "it ends too early", err); /* I2 */
            break;
        }
    }
    *got = fill;
    return MC_OK;
}
