/* test_ckpt_writers.c - several writers, one checkpoint: what they wrote is read back in any cut,
 * one that fails fails all of them alike, and a table of chunks is believed in nothing.
 * links: mc_ckpt
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../../ckpt/ckpt_int.h"
#include "../fault/ckpt_group.h"
#include "../../core/base/arena.h"
#include "../../core/base/hash.h"

static char g_dir[64];
static struct fx_group g;
static struct fx_writer w[FX_WRITERS];

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

static void any_number_of_writers_any_cut_of_readers(void **state)
{
    (void)state;
    for (int n = 1; n <= FX_WRITERS; n++) {
        struct mc_err e = {0};
        char path[1100];
        struct mc_ckpt *c;
        ok(fx_save_by(n, g_dir, 10 + n, 1, n % 2, &e), &e);
        assert_int_equal(fx_newest(g_dir, &e), 10 + n); /* whole, by one reader */
        ok(mc_ckpt_resolve(g_dir, 10 + n, path, &e), &e);
        ok(mc_ckpt_open(path, &c, &e), &e);
        ok(mc_ckpt_verify(c, NULL, NULL, &e), &e);
        for (int readers = 1; readers <= FX_WRITERS; readers++)
            for (int me = 0; me < readers; me++) {
                struct fx part;
                fx_make_part(&part, 0, me, readers);
                ok(mc_ckpt_load(c, part.t, part.n, 0, &e), &e);
                assert_true(fx_all_right(&part, 10 + n));
                fx_free(&part);
            }
        mc_ckpt_close(c);
    }
}

static void a_writer_without_tensors_has_a_file(void **state)
{
    struct mc_err e = {0};
    char path[1100], file[1200];
    struct stat sb;
    (void)state;
    fx_group_init(&g, w, 3, g_dir, 5, 1, 0);
    /* all of it by writers 0 and 1; 2 has nothing */
    for (int i = 0; i < 3; i++) {
        fx_free(&w[i].state);
        if (i < 2)
            fx_make_part(&w[i].state, 5, i, 2);
        w[i].save.ntensors = w[i].state.n;
    }
    fx_group_run(&g, w);
    ok(w[2].st, &w[2].err);
    assert_int_equal(fx_newest(g_dir, &e), 5);
    ok(mc_ckpt_resolve(g_dir, 5, path, &e), &e);
    snprintf(file, sizeof file, "%s/data-00002.mcd", path);
    assert_int_equal(stat(file, &sb), 0);
    assert_int_equal(sb.st_size, MC_CKPT_HEADER);
}

static void all_fail_alike(mc_status want, const char *message)
{
    struct mc_err e = {0};
    for (int i = 0; i < g.n; i++) {
        assert_int_equal(w[i].st, want);
        if (!strstr(w[i].err.msg, message))
            fail_msg("writer %d: %s; wanted \"%s\"", i, w[i].err.msg, message);
    }
    assert_int_equal(fx_newest(g_dir, &e), 1); /* what was committed stands */
}

static void one_that_fails_fails_all(void **state)
{
    struct mc_err e = {0};
    char left[128];
    int cancel = 1;
    (void)state;
    ok(fx_save_by(2, g_dir, 1, 1, 0, &e), &e);
    for (int who = 0; who < 3; who++) {
        fx_group_init(&g, w, 3, g_dir, 2, 1, 0);
        w[who].save.cancel = &cancel;
        fx_group_run(&g, w);
        all_fail_alike(MC_E_FAILED, "given up on request");
        snprintf(left, sizeof left, "%s/step-000000002.e1", g_dir);
        assert_int_equal(access(left, F_OK), -1); /* it takes no space from the next one */

        fx_group_init(&g, w, 3, g_dir, 2, 1, 0);
        void *keep = w[who].state.t[0].data;
        w[who].state.t[0].data = NULL;
        fx_group_run(&g, w);
        free(keep);
        all_fail_alike(MC_E_BUG, "has no data");
    }
    /* the unfinished folder is no obstacle */
    ok(fx_save_by(3, g_dir, 2, 1, 0, &e), &e);
    assert_int_equal(fx_newest(g_dir, &e), 2);
}

static void parts_that_do_not_cover_are_refused(void **state)
{
    struct mc_err e = {0};
    (void)state;
    ok(fx_save_by(2, g_dir, 1, 1, 0, &e), &e);
    fx_group_init(&g, w, 2, g_dir, 2, 1, 0);
    w[1].save.ntensors--; /* adam_v/w */
    fx_group_run(&g, w);
    all_fail_alike(MC_E_CORRUPT, "adam_v/w");

    fx_group_init(&g, w, 2, g_dir, 2, 1, 0);
    fx_free(&w[1].state);
    fx_make_part(&w[1].state, 2, 0, 2); /* the same as writer 0 */
    w[1].save.ntensors = w[1].state.n;
    fx_group_run(&g, w);
    all_fail_alike(MC_E_CORRUPT, "overlap");

    fx_group_init(&g, w, 2, g_dir, 2, 1, 0);
    w[1].state.t[0].shape.dim[0]++;
    fx_group_run(&g, w);
    all_fail_alike(MC_E_BUG, "in another dtype or shape");
}

static void a_zombie_commits_nothing(void **state)
{
    struct mc_err e = {0};
    (void)state;
    ok(fx_save_by(2, g_dir, 1, 4, 0, &e), &e);
    fx_group_init(&g, w, 2, g_dir, 2, 3, 0);
    fx_group_run(&g, w);
    all_fail_alike(MC_E_MACHINE, "belongs to epoch 3");
    /* one of another epoch among those of this one */
    fx_group_init(&g, w, 2, g_dir, 2, 4, 0);
    w[1].save.epoch = 5;
    fx_group_run(&g, w);
    assert_int_not_equal(w[0].st, MC_OK);
    assert_int_equal(w[0].st, w[1].st);
    assert_int_equal(fx_newest(g_dir, &e), 1);
}

/* ---- the table ---- */

static struct mc_manifest part_of(struct mc_stored_tensor t[2], struct mc_stored_box b[3],
                                  struct mc_chunk c[4], int64_t *bytes)
{
    memset(t, 0, 2 * sizeof *t);
    memset(b, 0, 3 * sizeof *b);
    memset(c, 0, 4 * sizeof *c);
    snprintf(t[0].name, sizeof t[0].name, "model/a");
    t[0].dtype = MC_F32;
    t[0].shape = mc_shape_2(4, 6);
    t[0].nboxes = 2;
    snprintf(t[1].name, sizeof t[1].name, "model/b");
    t[1].dtype = MC_F64;
    t[1].first_box = 2;
    t[1].nboxes = 1;
    b[0] = (struct mc_stored_box){.box = {2, {0, 0}, {2, 6}}, .first_chunk = 0, .nchunks = 2};
    b[1] = (struct mc_stored_box){.box = {2, {2, 3}, {2, 3}}, .first_chunk = 2, .nchunks = 1};
    b[2] = (struct mc_stored_box){.box = {0, {0}, {0}}, .first_chunk = 3, .nchunks = 1};
    c[0] = (struct mc_chunk){64, 24, 24, 7, 7, MC_CODEC_RAW};
    c[1] = (struct mc_chunk){128, 11, 24, 8, 9, MC_CODEC_ZSTD};
    c[2] = (struct mc_chunk){192, 24, 24, 5, 5, MC_CODEC_RAW};
    c[3] = (struct mc_chunk){256, 8, 8, 3, 3, MC_CODEC_RAW};
    *bytes = 320;
    return (struct mc_manifest){.step = 3,
                                .epoch = 2,
                                .nfiles = 1,
                                .file_bytes = bytes,
                                .ntensors = 2,
                                .nboxes = 3,
                                .nchunks = 4,
                                .tensor = t,
                                .box = b,
                                .chunk = c};
}

static void tables_read_back_and_damage_is_refused(void **state)
{
    struct mc_stored_tensor t[2];
    struct mc_stored_box b[3];
    struct mc_chunk c[4];
    int64_t bytes;
    struct mc_err e = {0};
    struct mc_manifest m = part_of(t, b, c, &bytes), r;
    void *table;
    size_t n;
    (void)state;
    ok(mc_table_write(&m, 6, &table, &n, &e), &e);
    assert_int_equal(n, 64 + 3 * (216 + 8) + 4 * 40);
    ok(mc_table_read(table, n, 6, &r, &e), &e);
    assert_int_equal(r.step, 3);
    assert_int_equal(r.epoch, 2);
    assert_int_equal(r.file_bytes[0], 320);
    assert_int_equal(r.ntensors, 2);
    assert_memory_equal(r.tensor, t, sizeof t);
    assert_memory_equal(r.box, b, sizeof b);
    assert_memory_equal(r.chunk, c, sizeof c);
    mc_manifest_fini(&r);
    assert_int_equal(mc_table_read(table, n, 5, &r, &e), MC_E_PEER); /* another writer's */
    unsigned char *p = table;
    for (size_t i = 0; i < n; i++) { /* any byte */
        struct mc_err why = {0};
        p[i] ^= 0x10;
        assert_int_equal(mc_table_read(p, n, 6, &r, &why), MC_E_PEER);
        p[i] ^= 0x10;
    }
    for (size_t cut = 0; cut < n; cut++) { /* any length */
        struct mc_err why = {0};
        unsigned char *shorter = malloc(cut + 1);
        memcpy(shorter, p, cut);
        assert_int_equal(mc_table_read(shorter, cut, 6, &r, &why), MC_E_PEER);
        free(shorter);
    }
    mc_free(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(any_number_of_writers_any_cut_of_readers, make_dir,
                                        drop_dir),
        cmocka_unit_test_setup_teardown(a_writer_without_tensors_has_a_file, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(one_that_fails_fails_all, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(parts_that_do_not_cover_are_refused, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(a_zombie_commits_nothing, make_dir, drop_dir),
        cmocka_unit_test(tables_read_back_and_damage_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
