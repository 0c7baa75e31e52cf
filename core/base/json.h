/* json.h - writing JSON into a buffer of ours. (Reading is jansson's, in the files that read.)
 *
 * The writer never allocates when given a fixed buffer, so that the step loop can use it.
 * Numbers: integers exact; doubles by the shortest of %.15g %.16g %.17g that reads back bit for
 * bit; non-finite -> null. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct mc_json {
    char *buf;
    size_t cap, len;
    int grow;   /* buf is mc_alloc'd and may grow */
    int failed; /* out of room or memory: everything after is dropped; check once at the end */
    int depth, comma; /* writer's state */
    int pretty;       /* 2-space indent, one member a line */
};
void mc_json_init_fixed(struct mc_json *j, char *buf, size_t cap);
void mc_json_init_grow(struct mc_json *j);
void mc_json_fini(struct mc_json *j);  /* frees a grown buffer */
void mc_json_reset(struct mc_json *j); /* keep the buffer, start a new text */
/* key NULL inside arrays and at the top. */
void mc_json_open(struct mc_json *j, const char *key, char kind /* '{' or '[' */);
void mc_json_close(struct mc_json *j, char kind /* '}' or ']' */);
void mc_json_str(struct mc_json *j, const char *key,
                 const char *s); /* NULL -> null; invalid UTF-8 -> U+FFFD */
void mc_json_strn(struct mc_json *j, const char *key, const char *s, size_t n);
void mc_json_i64(struct mc_json *j, const char *key, int64_t v);
void mc_json_f64(struct mc_json *j, const char *key, double v);
void mc_json_bool(struct mc_json *j, const char *key, int v);
void mc_json_null(struct mc_json *j, const char *key);
void mc_json_raw(struct mc_json *j, const char *key, const char *json_text); /* trusted JSON */
void mc_fmt_f64(double v,
                char dst[32]); /* the rule for doubles above; "nan", "inf", "-inf" otherwise */
