/* tensor.h - logical tensors: shape, where each mesh axis puts it, and boxes of it. No data lives
 * here.
 *
 * A tensor's meaning is its *logical* shape; ranks hold boxes of it. Per mesh axis a tensor is
 *   replicate         every coordinate holds the same
 *   shard(dim, how)   coordinate c holds part c of `dim`: contiguous | zigzag (context parallel) |
 *                     expert | padded: parts of ceil(extent / parts), the last ones short or empty.
 *                     In copies of n, coordinate c holds part c / n of size / n
 *   partial(sum)      the logical value is the sum over coordinates
 * Sequence parallel is shard(seq) on the tp axis. Axes that cut the same dimension cut in the order
 * of enum mc_axis: tp outermost. */
#pragma once
#include <stdint.h>
#include "dtype.h"

#define MC_MAX_DIMS 4
#define MC_NAME_MAX 96 /* "layers.127.attn.q.weight" */

enum mc_axis { MC_AXIS_TP, MC_AXIS_CP, MC_AXIS_EP, MC_AXIS_DP, MC_AXIS_PP, MC_NAXES };
enum mc_place_kind { MC_REPLICATE, MC_SHARD, MC_PARTIAL };
enum mc_shard_how { MC_CONTIGUOUS, MC_ZIGZAG, MC_EXPERT, MC_PADDED };
struct mc_place {
    uint8_t kind, dim, how;
    uint8_t copies; /* shard: neighbouring coordinates that hold the same part; 0 is 1 */
};
struct mc_sharding {
    struct mc_place on[MC_NAXES];
}; /* all zero: replicated everywhere */

struct mc_shape {
    int nd;
    int64_t dim[MC_MAX_DIMS];
};
struct mc_box {
    int nd;
    int64_t lo[MC_MAX_DIMS], n[MC_MAX_DIMS];
}; /* axis-aligned part of a logical tensor */

int64_t mc_shape_count(const struct mc_shape *s); /* product; 1 for nd 0; -1 on overflow of int64 */
struct mc_shape mc_shape_1(int64_t a);
struct mc_shape mc_shape_2(int64_t a, int64_t b);
int mc_shape_eq(const struct mc_shape *a, const struct mc_shape *b);
struct mc_box mc_box_whole(const struct mc_shape *s);
int64_t mc_box_count(const struct mc_box *b);
int mc_place_same(const struct mc_place *a, const struct mc_place *b);
/* Coordinates and copies divide: parts that a dimension is cut in, and which part `coord` holds. */
int mc_place_parts(const struct mc_place *p, int size);
int mc_place_part(const struct mc_place *p, int coord);
/* The part [*lo, *lo + *n) of an extent cut in `parts` of ceil(extent / parts). */
void mc_part_of(int64_t extent, int parts, int part, int64_t *lo, int64_t *n);
/* The box of `s` that coordinate `coord[a]` of `size[a]` holds, for contiguous and padded shards.
 * Dimensions must divide unless padded: else 0 is returned. */
int mc_box_of(const struct mc_shape *s, const struct mc_sharding *sh, const int coord[MC_NAXES],
              const int size[MC_NAXES], struct mc_box *box);
const char *mc_axis_name(enum mc_axis a); /* "tp" ... */
void mc_sharding_print(const struct mc_sharding *sh, char *dst,
                       int cap); /* "tp:shard(1) dp:partial" or "replicate" */

/* A piece of training state as others (ckpt, diff) see it: the logical tensor and the box of it
 * that lives at `data`, row-major. */
struct mc_state_tensor {
    char name[MC_NAME_MAX + 16]; /* "model/NAME", "adam_m/NAME", "adam_v/NAME" */
    enum mc_dtype dtype;
    struct mc_shape shape;
    struct mc_box box;
    void *data;
};
