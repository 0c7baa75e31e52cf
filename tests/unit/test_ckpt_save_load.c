/* test_ckpt_save_load.c - what is saved comes back, in any cut of boxes; what does not fit is
 * named. The expected bytes are a function of the logical index (ckpt_fixture.h), never of what was
 * saved. links: mc_ckpt
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../../ckpt/ckpt_int.h"
#include "../fault/ckpt_fixture.h"
#include "../../core/base/arena.h"

static char g_dir[64];

static int make_dir(void **state)
{
    (void)state;
    snprintf(g_dir, sizeof g_dir, "/tmp/mc_ckpt_XXXXXX");
    return mkdtemp(g_dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    char cmd[128];
    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", g_dir);
    return system(cmd);
}

static void ok(mc_status st, const struct mc_err *e)
{
    if (st != MC_OK)
        fail_msg("%s: %s [%s]", mc_status_name(st), e->msg, e->trail);
}

static void save_then_load_gives_every_byte(void **state)
{
    (void)state;
    for (int compress = 0; compress < 2; compress++) {
        struct mc_err e = {0};
        struct fx f;
        fx_make(&f, 7 + compress);
        ok(fx_save(g_dir, &f, 7 + compress, 1, compress, &e), &e);
        assert_int_equal(fx_newest(g_dir, &e), 7 + compress);
        fx_free(&f);
    }
}

static void compression_stores_less_and_verifies(void **state)
{
    struct mc_err e = {0};
    struct fx f;
    struct mc_ckpt_info *l;
    struct mc_ckpt *c;
    int n;
    (void)state;
    fx_make(&f, 1);
    ok(fx_save(g_dir, &f, 1, 1, 0, &e), &e);
    ok(fx_save(g_dir, &f, 1, 2, 1, &e), &e);
    ok(mc_ckpt_list(g_dir, &l, &n, &e), &e);
    assert_int_equal(n, 2);
    assert_true(l[1].bytes < l[0].bytes - 10000); /* adam_m is 15/16 zeros: 16 KiB */
    ok(mc_ckpt_open(l[1].path, &c, &e), &e);
    ok(mc_ckpt_verify(c, NULL, NULL, &e), &e);
    mc_ckpt_close(c);
    mc_free(l);
    fx_free(&f);
}

static void books_come_back_and_weights_hash_is_shown(void **state)
{
    struct mc_err e = {0};
    struct fx f;
    struct mc_ckpt *c;
    struct mc_json j;
    char path[1100], books[256], want[64];
    (void)state;
    fx_make(&f, 3);
    ok(fx_save(g_dir, &f, 3, 1, 0, &e), &e);
    ok(mc_ckpt_resolve(g_dir, -1, path, &e), &e);
    ok(mc_ckpt_open(path, &c, &e), &e);
    fx_books(3, books);
    assert_int_equal(mc_ckpt_step(c), 3);
    assert_int_equal(mc_ckpt_epoch(c), 1);
    assert_non_null(strstr(mc_ckpt_books(c), "\"cursors\":[1,2,3]"));
    assert_non_null(strstr(mc_ckpt_books(c), "\"lr\":0.1")); /* 17 digits, but 0.1 again */
    snprintf(want, sizeof want, "\"weights_hash\":\"%016llx\"",
             (unsigned long long)fx_bits("w", 3, 0));
    mc_json_init_grow(&j);
    mc_ckpt_show(c, &j);
    assert_int_equal(j.failed, 0);
    assert_non_null(strstr(j.buf, want));
    mc_json_fini(&j);
    mc_ckpt_close(c);
    fx_free(&f);
}

/* Saved in pieces along every axis, loaded in other pieces. */
static void boxes_map_to_other_boxes(void **state)
{
    enum { A = 6, B = 10, C = 7 };
    struct mc_err e = {0};
    struct mc_state_tensor t[8], part;
    int n = 0, checked = 0;
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++)
            for (int m = 0; m < 2; m++) {
                int64_t lo[3] = {i * 2, k * 7, m * 3};
                int64_t hi[3] = {i ? A : 2, k ? B : 7, m ? C : 3};
                t[n] = fx_tensor("model/x", MC_F32, 3, (int64_t[]){A, B, C});
                for (int d = 0; d < 3; d++) {
                    t[n].box.lo[d] = lo[d];
                    t[n].box.n[d] = hi[d] - lo[d];
                }
                fx_fill(&t[n], 5);
                n++;
            }
    struct mc_ckpt_save s = {
        .ckpt_dir = g_dir, .step = 5, .epoch = 1, .tensor = t, .ntensors = n, .books = "{}"};
    ok(mc_ckpt_save(&s, &e), &e);
    char path[1100];
    struct mc_ckpt *c;
    ok(mc_ckpt_resolve(g_dir, 5, path, &e), &e);
    ok(mc_ckpt_open(path, &c, &e), &e);
    part = fx_tensor("model/x", MC_F32, 3, (int64_t[]){A, B, C});
    for (int64_t a = 0; a < A; a++)
        for (int64_t b = 0; b < B; b += 3)
            for (int64_t x = 0; x < C; x += 2) {
                part.box.lo[0] = a;
                part.box.lo[1] = b;
                part.box.lo[2] = x;
                part.box.n[0] = 1 + (a * 5 + b) % (A - a);
                part.box.n[1] = 1 + (a + b * 3) % (B - b);
                part.box.n[2] = 1 + (a + x * 7) % (C - x);
                memset(part.data, 0xee, A * B * C * 4);
                ok(mc_ckpt_load(c, &part, 1, 0, &e), &e);
                assert_int_equal(fx_wrong(&part, 5), -1);
                checked++;
            }
    assert_true(checked > 90);
    /* all = 1: the eight halves cover it; seven do not. */
    ok(mc_ckpt_load(c, t, n, 1, &e), &e);
    assert_int_equal(mc_ckpt_load(c, t, n - 1, 1, &e), MC_E_BUG);
    assert_non_null(strstr(e.msg, "model/x"));
    mc_ckpt_close(c);
    free(part.data);
    for (int i = 0; i < n; i++)
        free(t[i].data);
}

/* Rows below and above a chunk: 3 rows of 5.2 MB, 700000 rows of 8 bytes, one row of 9.6 MB. */
static void large_tensors_are_cut_into_chunks(void **state)
{
    struct mc_err e = {0};
    struct mc_state_tensor t[3];
    (void)state;
    t[0] = fx_tensor("model/wide", MC_F32, 2, (int64_t[]){3, 1300001});
    t[1] = fx_tensor("model/tall", MC_F32, 2, (int64_t[]){700000, 2});
    t[2] = fx_tensor("model/flat", MC_F64, 2, (int64_t[]){1, 1200000});
    for (int i = 0; i < 3; i++)
        fx_fill(&t[i], 9);
    struct mc_ckpt_save s = {.ckpt_dir = g_dir,
                             .step = 9,
                             .epoch = 1,
                             .tensor = t,
                             .ntensors = 3,
                             .books = "{\"step\":9}"};
    ok(mc_ckpt_save(&s, &e), &e);
    char path[1100], *text;
    struct mc_ckpt *c;
    struct mc_manifest m;
    size_t n;
    ok(mc_ckpt_resolve(g_dir, -1, path, &e), &e);
    ok(mc_store_posix.manifest(path, &text, &n, &e), &e);
    ok(mc_manifest_read(text, n, "m", &m, &e), &e);
    int64_t big = 0, rows = 0;
    for (int64_t k = 0; k < m.nchunks; k++)
        big = m.chunk[k].raw_bytes > big ? m.chunk[k].raw_bytes : big;
    const struct mc_stored_tensor *tall = &m.tensor[mc_manifest_find(&m, "model/tall")];
    for (int64_t k = 0; k < m.box[tall->first_box].nchunks; k++)
        rows += m.chunk[m.box[tall->first_box].first_chunk + k].raw_bytes % 8 == 0;
    assert_true(big <= 4 << 20);
    assert_int_equal(m.box[tall->first_box].nchunks, 2); /* 5.6 MB */
    assert_int_equal(rows, 2);
    /* 5.2 MB rows: two pieces each, none across a row */
    assert_int_equal(m.box[m.tensor[mc_manifest_find(&m, "model/wide")].first_box].nchunks, 6);
    mc_manifest_fini(&m);
    mc_free(text);
    ok(mc_ckpt_open(path, &c, &e), &e);
    size_t before = mc_mem_stats().alloc_bytes;
    for (int i = 0; i < 3; i++)
        memset(t[i].data, 0, (size_t)fx_count(&t[i]) * fx_elem(&t[i]));
    ok(mc_ckpt_load(c, t, 3, 1, &e), &e);
    assert_true(mc_mem_stats().alloc_bytes - before < 9 << 20); /* two chunks, not 30 MB */
    for (int i = 0; i < 3; i++)
        assert_int_equal(fx_wrong(&t[i], 9), -1);
    mc_ckpt_close(c);
    for (int i = 0; i < 3; i++)
        free(t[i].data);
}

static void load_expects(struct mc_ckpt *c, struct mc_state_tensor *t, int n, int all,
                         mc_status want, const char *a, const char *b)
{
    struct mc_err e = {0};
    assert_int_equal(mc_ckpt_load(c, t, n, all, &e), want);
    if (want != MC_OK && (!strstr(e.msg, a) || !strstr(e.msg, b)))
        fail_msg("%s: lacks %s or %s", e.msg, a, b);
}

static void mismatches_are_named(void **state)
{
    struct mc_err e = {0};
    struct fx f;
    struct mc_ckpt *c;
    char path[1100];
    (void)state;
    fx_make(&f, 4);
    ok(fx_save(g_dir, &f, 4, 1, 0, &e), &e);
    ok(mc_ckpt_resolve(g_dir, -1, path, &e), &e);
    ok(mc_ckpt_open(path, &c, &e), &e);
    fx_clear(&f);
    load_expects(c, f.t, f.n - 1, 1, MC_E_RECIPE, "adam_v/w", "does not have");
    load_expects(c, f.t, f.n - 1, 0, MC_OK, "", "");
    snprintf(f.t[0].name, sizeof f.t[0].name, "model/embad");
    load_expects(c, f.t, f.n, 1, MC_E_RECIPE, "model/embad", "no tensor");
    snprintf(f.t[0].name, sizeof f.t[0].name, "model/embed");
    f.t[0].shape.dim[1] = f.t[0].box.n[1] = 15;
    load_expects(c, f.t, f.n, 1, MC_E_RECIPE, "[257, 16]", "[257, 15]");
    f.t[0].shape.dim[1] = f.t[0].box.n[1] = 16;
    f.t[1].dtype = MC_I32;
    load_expects(c, f.t, f.n, 1, MC_E_RECIPE, "model/layers.0.w", "I32");
    f.t[1].dtype = MC_F32;
    /* Not a byte was written by the refusals. */
    const unsigned char *p = f.t[1].data;
    assert_int_equal(p[0], fx_value(&f.t[1], 4, 0) & 255);
    load_expects(c, f.t, f.n, 1, MC_OK, "", "");
    assert_true(fx_all_right(&f, 4));
    mc_ckpt_close(c);
    fx_free(&f);
}

static void save_expects(struct mc_ckpt_save *s, const char *want)
{
    struct mc_err e = {0};
    assert_int_not_equal(mc_ckpt_save(s, &e), MC_OK);
    if (!strstr(e.msg, want))
        fail_msg("%s: lacks %s", e.msg, want);
}

static void bad_saves_are_refused_before_a_byte(void **state)
{
    struct fx f;
    char dir[96], books[256];
    struct stat sb;
    (void)state;
    fx_make(&f, 1);
    snprintf(dir, sizeof dir, "%s/none", g_dir);
    struct mc_ckpt_save s = {.ckpt_dir = dir,
                             .step = 1,
                             .epoch = 1,
                             .tensor = f.t,
                             .ntensors = f.n,
                             .books = fx_books(1, books)};
    f.t[0].box.n[0]--;
    save_expects(&s, "model/embed"); /* a hole */
    f.t[0].box.n[0] += 2;
    save_expects(&s, "model/embed"); /* outside */
    f.t[0].box.n[0]--;
    f.t[0].shape.dim[0] = f.t[0].box.n[0] = INT64_MAX / 2;
    save_expects(&s, "model/embed"); /* overflow */
    f.t[0].shape.dim[0] = f.t[0].box.n[0] = 257;
    snprintf(f.t[4].name, sizeof f.t[4].name, "model/embed");
    save_expects(&s, "overlap");
    snprintf(f.t[4].name, sizeof f.t[4].name, "adam_m/embed");
    s.books = "{\"step\":2}";
    save_expects(&s, "step");
    s.books = "[1]";
    save_expects(&s, "object");
    s.books = "{\"a\":1,\"a\":2}";
    save_expects(&s, "books");
    assert_int_not_equal(stat(dir, &sb), 0);
    fx_free(&f);
}

static void cancel_leaves_no_checkpoint(void **state)
{
    struct mc_err e = {0};
    struct fx f;
    static volatile int stop = 1;
    (void)state;
    fx_make(&f, 1);
    struct mc_ckpt_save s = {.ckpt_dir = g_dir,
                             .step = 1,
                             .epoch = 1,
                             .tensor = f.t,
                             .ntensors = f.n,
                             .books = "{}",
                             .cancel = &stop};
    assert_int_equal(mc_ckpt_save(&s, &e), MC_E_FAILED);
    memset(&e, 0, sizeof e);
    assert_int_equal(fx_newest(g_dir, &e), -1);
    stop = 0;
    memset(&e, 0, sizeof e);
    ok(mc_ckpt_save(&s, &e), &e); /* the unfinished folder is no obstacle */
    assert_int_equal(fx_newest(g_dir, &e), 1);
    fx_free(&f);
}

/* The copy and the cover, against loops over single elements. */
static void box_copy_agrees_with_element_loops(void **state)
{
    uint64_t r = 1;
    (void)state;
    for (int round = 0; round < 3000; round++) {
        struct mc_box a, b;
        int64_t na = 1, nb = 1;
        a.nd = b.nd = 1 + round % 4;
        for (int d = 0; d < a.nd; d++) {
            r = r * 6364136223846793005u + 1442695040888963407u;
            a.lo[d] = (int64_t)(r >> 60) % 3;
            a.n[d] = 1 + (int64_t)(r >> 40) % 4;
            b.lo[d] = (int64_t)(r >> 50) % 3;
            b.n[d] = 1 + (int64_t)(r >> 30) % 4;
            na *= a.n[d];
            nb *= b.n[d];
        }
        uint16_t src[256], dst[256], want[256];
        int64_t first = (int64_t)(r >> 20) % na, count = 1 + (int64_t)(r >> 10) % (na - first);
        for (int i = 0; i < 256; i++) {
            src[i] = (uint16_t)(r + (uint64_t)i * 40503u);
            dst[i] = want[i] = 7;
        }
        for (int64_t i = first; i < first + count; i++) {
            int64_t rest = i, at = 0, stride = 1;
            int in = 1;
            for (int d = a.nd - 1; d >= 0; d--) {
                int64_t x = a.lo[d] + rest % a.n[d];
                rest /= a.n[d];
                in &= x >= b.lo[d] && x < b.lo[d] + b.n[d];
                at += (x - b.lo[d]) * stride;
                stride *= b.n[d];
            }
            if (in)
                want[at] = src[i - first];
        }
        mc_box_copy(dst, &b, src, &a, first, count, 2);
        assert_memory_equal(dst, want, sizeof dst);
    }
}

static void cover_is_exactly_once(void **state)
{
    struct mc_shape s = {.nd = 2, .dim = {4, 6}};
    uint64_t r = 99;
    int good = 0;
    (void)state;
    for (int round = 0; round < 20000; round++) {
        struct mc_box b[4];
        int hits[24] = {0}, exact = 1;
        int n = 1 + round % 4;
        for (int i = 0; i < n; i++) {
            r = r * 6364136223846793005u + 1442695040888963407u;
            b[i].nd = 2;
            b[i].lo[0] = (int64_t)(r >> 60) % 2 * 2;
            b[i].n[0] = 2 + (b[i].lo[0] == 0 && (r >> 50) % 2 ? 2 : 0);
            b[i].lo[1] = (int64_t)(r >> 40) % 2 * 3;
            b[i].n[1] = 3 + (b[i].lo[1] == 0 && (r >> 30) % 2 ? 3 : 0);
            for (int64_t y = b[i].lo[0]; y < b[i].lo[0] + b[i].n[0]; y++)
                for (int64_t x = b[i].lo[1]; x < b[i].lo[1] + b[i].n[1]; x++)
                    hits[y * 6 + x]++;
        }
        for (int i = 0; i < 24; i++)
            exact &= hits[i] == 1;
        assert_int_equal(mc_box_cover(b, n, &s, "t", "x", NULL) == MC_OK, exact);
        good += exact;
    }
    assert_true(good > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(save_then_load_gives_every_byte, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(compression_stores_less_and_verifies, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(books_come_back_and_weights_hash_is_shown, make_dir,
                                        drop_dir),
        cmocka_unit_test_setup_teardown(boxes_map_to_other_boxes, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(large_tensors_are_cut_into_chunks, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(mismatches_are_named, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(bad_saves_are_refused_before_a_byte, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(cancel_leaves_no_checkpoint, make_dir, drop_dir),
        cmocka_unit_test(box_copy_agrees_with_element_loops),
        cmocka_unit_test(cover_is_exactly_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
