/* test_ckpt_manage.c - list, resolve, retain, fences; and every kind of damage found and named.
 * links: mc_ckpt dep_jansson
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../../ckpt/ckpt_int.h"
#include "../fault/ckpt_fixture.h"
#include "../../core/base/arena.h"
#include "../../core/base/hash.h"
#include "../../core/base/log.h"

static char g_dir[64];

static int make_dir(void **state)
{
    (void)state;
    mc_log_init(MC_LOG_ERROR, -1);
    snprintf(g_dir, sizeof g_dir, "/tmp/mc_ckpt_XXXXXX");
    return mkdtemp(g_dir) ? 0 : -1;
}

static void shell(const char *fmt, ...)
{
    char cmd[2400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(cmd, sizeof cmd, fmt, ap);
    va_end(ap);
    assert_int_equal(system(cmd), 0);
}

static int drop_dir(void **state)
{
    (void)state;
    shell("rm -rf '%s'", g_dir);
    return 0;
}

static void ok(mc_status st, const struct mc_err *e)
{
    if (st != MC_OK)
        fail_msg("%s: %s [%s]", mc_status_name(st), e->msg, e->trail);
}

static void save(int64_t step, int epoch)
{
    struct mc_err e = {0};
    struct fx f;
    fx_make(&f, step);
    ok(fx_save(g_dir, &f, step, epoch, step % 2 == 0, &e), &e);
    fx_free(&f);
}

static int count(void)
{
    struct mc_err e = {0};
    struct mc_ckpt_info *l;
    int n;
    ok(mc_ckpt_list(g_dir, &l, &n, &e), &e);
    mc_free(l);
    return n;
}

static int there(const char *name)
{
    char path[256];
    struct stat sb;
    snprintf(path, sizeof path, "%s/%s", g_dir, name);
    return stat(path, &sb) == 0;
}

static void newest_is_highest_epoch_then_step(void **state)
{
    struct mc_err e = {0};
    struct mc_ckpt_info *l;
    char path[1100];
    int n;
    (void)state;
    save(10, 1);
    save(20, 1);
    save(15, 2); /* rolled back to before 20 */
    ok(mc_ckpt_list(g_dir, &l, &n, &e), &e);
    assert_int_equal(n, 3);
    assert_int_equal(l[0].step, 10);
    assert_int_equal(l[1].step, 20);
    assert_int_equal(l[2].step, 15);
    assert_true(l[2].whole && l[2].bytes > 1000 && l[2].unix_time > 1e9);
    mc_free(l);
    assert_int_equal(fx_newest(g_dir, &e), 15);
    ok(mc_ckpt_resolve(g_dir, 20, path, &e), &e);
    assert_non_null(strstr(path, "step-000000020.e1"));
    assert_int_equal(mc_ckpt_resolve(g_dir, 21, path, &e), MC_E_NOTFOUND);
    assert_non_null(strstr(e.msg, "no checkpoint of step 21; there are: 10, 15, 20"));
}

static void resolve_takes_run_folder_and_checkpoint(void **state)
{
    struct mc_err e = {0};
    char run[64], path[1100], one[1200];
    (void)state;
    snprintf(run, sizeof run, "%s", g_dir);
    snprintf(g_dir + strlen(g_dir), sizeof g_dir - strlen(g_dir), "/ckpt");
    assert_int_equal(mc_ckpt_resolve(run, -1, path, &e), MC_E_NOTFOUND);
    save(3, 1);
    memset(&e, 0, sizeof e);
    ok(mc_ckpt_resolve(run, -1, path, &e), &e);
    ok(mc_ckpt_resolve(g_dir, -1, one, &e), &e);
    assert_string_equal(path, one);
    ok(mc_ckpt_resolve(path, -1, one, &e), &e);
    assert_string_equal(path, one);
    snprintf(one, sizeof one, "%s//", path);
    ok(mc_ckpt_resolve(one, 3, path, &e), &e);
    assert_int_equal(mc_ckpt_resolve(path, 4, one, &e), MC_E_NOTFOUND);
    memset(&e, 0, sizeof e);
    assert_int_equal(mc_ckpt_resolve("/nowhere/at/all", -1, one, &e), MC_E_NOTFOUND);
    /* A copy under any name is a checkpoint; a folder without a manifest is none. */
    shell("cp -r '%s' '%s/mine'", path, run);
    snprintf(one, sizeof one, "%s/mine", run);
    memset(&e, 0, sizeof e);
    ok(mc_ckpt_resolve(one, -1, path, &e), &e);
    shell("mkdir '%s/step-000000009.e1'", run);
    snprintf(one, sizeof one, "%s/step-000000009.e1", run);
    assert_int_equal(mc_ckpt_resolve(one, -1, path, &e), MC_E_NOTFOUND);
    assert_non_null(strstr(e.msg, "unfinished"));
    snprintf(g_dir, sizeof g_dir, "%s", run);
}

static void names_are_strict(void **state)
{
    int64_t step;
    int epoch;
    char name[MC_CKPT_NAME];
    static const char *const bad[] = {"step-1.e1",
                                      "step-000000001.e01",
                                      "step-0000000001.e1",
                                      "step-000000001.e",
                                      "step-000000001",
                                      "step--00000001.e1",
                                      "step-000000001.e1 ",
                                      "step-000000001.e1.tmp",
                                      "step-99999999999999999999.e1",
                                      "step-000000001.e99999999999",
                                      "Step-000000001.e1",
                                      "step-+00000001.e1",
                                      ""};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (mc_ckpt_name_parse(bad[i], &step, &epoch))
            fail_msg("accepted %s", bad[i]);
    mc_ckpt_name_print(INT64_MAX, INT32_MAX, name);
    assert_int_equal(mc_ckpt_name_parse(name, &step, &epoch), 1);
    assert_true(step == INT64_MAX && epoch == INT32_MAX);
    mc_ckpt_name_print(120, 3, name);
    assert_string_equal(name, "step-000000120.e3");
}

static void a_damaged_newest_gives_way_by_name(void **state)
{
    struct mc_err e = {0};
    struct mc_ckpt_info *l;
    char path[1100];
    int n;
    (void)state;
    save(1, 1);
    save(2, 1);
    shell("truncate -s -64 '%s/step-000000002.e1/data-00000.mcd'", g_dir);
    ok(mc_ckpt_list(g_dir, &l, &n, &e), &e);
    assert_int_equal(l[1].whole, 0);
    assert_non_null(strstr(l[1].why, "data-00000.mcd"));
    mc_free(l);
    assert_int_equal(fx_newest(g_dir, &e), 1);
    shell("rm '%s/step-000000001.e1/data-00000.mcd'", g_dir);
    assert_int_equal(mc_ckpt_resolve(g_dir, -1, path, &e), MC_E_CORRUPT); /* not "none exists" */
    assert_non_null(strstr(e.msg, "2 checkpoints are there, but none is whole"));
    shell("mv '%s/step-000000001.e1' '%s/step-000000007.e1'", g_dir, g_dir);
    memset(&e, 0, sizeof e);
    ok(mc_ckpt_list(g_dir, &l, &n, &e), &e);
    assert_int_equal(n, 2);
    mc_free(l);
}

static void a_renamed_folder_is_damage(void **state)
{
    struct mc_err e = {0};
    struct mc_ckpt_info *l;
    int n;
    (void)state;
    save(1, 1);
    shell("mv '%s/step-000000001.e1' '%s/step-000000005.e1'", g_dir, g_dir);
    ok(mc_ckpt_list(g_dir, &l, &n, &e), &e);
    assert_true(n == 1 && !l[0].whole && strstr(l[0].why, "step 1"));
    mc_free(l);
}

static void zombies_are_fenced(void **state)
{
    struct mc_err e = {0};
    struct fx f;
    (void)state;
    save(5, 3);
    fx_make(&f, 6);
    assert_int_equal(fx_save(g_dir, &f, 6, 2, 0, &e), MC_E_MACHINE);
    assert_non_null(strstr(e.msg, "epoch 3"));
    assert_false(there("step-000000006.e2"));
    memset(&e, 0, sizeof e);
    assert_int_equal(mc_ckpt_retain(g_dir, 2, 2, &e), MC_E_MACHINE);
    /* An unfinished folder of a later start fences as well. */
    memset(&e, 0, sizeof e);
    shell("mkdir '%s/step-000000006.e4'", g_dir);
    assert_int_equal(fx_save(g_dir, &f, 6, 3, 0, &e), MC_E_MACHINE);
    memset(&e, 0, sizeof e);
    ok(fx_save(g_dir, &f, 6, 4, 0, &e), &e);
    fx_free(&f);
}

static int g_planted;
static void plant_epoch(void *arg, int64_t done, int64_t all)
{
    (void)arg, (void)done, (void)all;
    if (!g_planted++)
        shell("mkdir '%s/step-000000001.e9'", g_dir);
}

static void a_takeover_during_the_save_stops_its_commit(void **state)
{
    struct mc_err e = {0};
    struct fx f;
    (void)state;
    g_planted = 0;
    fx_make(&f, 1);
    struct mc_ckpt_save s = {.ckpt_dir = g_dir,
                             .step = 1,
                             .epoch = 1,
                             .tensor = f.t,
                             .ntensors = f.n,
                             .books = "{}",
                             .progress = plant_epoch};
    assert_int_equal(mc_ckpt_save(&s, &e), MC_E_MACHINE);
    assert_int_equal(count(), 0);
    fx_free(&f);
}

static struct mc_state_tensor *g_moving;
static void scribble(void *arg, int64_t done, int64_t all)
{
    (void)arg, (void)done, (void)all;
    ((unsigned char *)g_moving->data)[0] ^= 1;
}

static void a_committed_one_is_never_overwritten(void **state)
{
    struct mc_err e = {0};
    struct fx f;
    (void)state;
    save(5, 1);
    fx_make(&f, 77);
    assert_int_equal(fx_save(g_dir, &f, 5, 1, 0, &e), MC_E_FAILED);
    assert_int_equal(fx_newest(g_dir, &e), 5);
    fx_free(&f);
    /* Live state that changes between chunks is its owner's doing; each chunk is still true. */
    fx_make(&f, 6);
    g_moving = &f.t[0];
    struct mc_ckpt_save s = {.ckpt_dir = g_dir,
                             .step = 6,
                             .epoch = 1,
                             .tensor = f.t,
                             .ntensors = f.n,
                             .books = "{}",
                             .progress = scribble};
    memset(&e, 0, sizeof e);
    ok(mc_ckpt_save(&s, &e), &e);
    fx_free(&f);
}

static void retain_keeps_the_newest_and_sweeps(void **state)
{
    struct mc_err e = {0};
    (void)state;
    for (int i = 1; i <= 5; i++)
        save(i, 1);
    shell("mkdir '%s/step-000000009.e1' && touch '%s/step-000000009.e1/data-00000.mcd' "
          "'%s/step-000000009.e1/manifest.json.tmp' '%s/step-000000005.e1/manifest.json.tmp'",
          g_dir, g_dir, g_dir, g_dir);
    shell("mkdir '%s/other' && touch '%s/step-000000008.e1'", g_dir, g_dir);
    assert_int_equal(mc_ckpt_retain(g_dir, 1, 1, &e), MC_E_BUG);
    memset(&e, 0, sizeof e);
    ok(mc_ckpt_retain(g_dir, 3, 1, &e), &e);
    assert_int_equal(count(), 3);
    assert_true(there("step-000000003.e1") && !there("step-000000002.e1"));
    assert_false(there("step-000000009.e1"));
    assert_false(there("step-000000005.e1/manifest.json.tmp"));
    assert_true(there("other") && there("step-000000008.e1"));
    assert_int_equal(fx_newest(g_dir, &e), 5);
    ok(mc_ckpt_retain(g_dir, 3, 1, &e), &e); /* nothing to do */
    assert_int_equal(count(), 3);
}

static void retain_counts_only_what_it_has_read_back(void **state)
{
    struct mc_err e = {0};
    (void)state;
    for (int i = 1; i <= 4; i++)
        save(i, 1);
    /* Sizes hold, bytes do not: only a full read finds it. */
    shell("printf '\\377' | dd of='%s/step-000000004.e1/data-00000.mcd' bs=1 seek=300 "
          "conv=notrunc 2>/dev/null",
          g_dir);
    ok(mc_ckpt_retain(g_dir, 3, 1, &e), &e);
    assert_int_equal(count(), 4); /* 3, 2 and 1 are needed */
    save(5, 1);
    ok(mc_ckpt_retain(g_dir, 3, 1, &e), &e);
    assert_int_equal(count(), 4); /* 5, 4 (damaged, left to look at), 3, 2 */
    assert_false(there("step-000000001.e1"));
    assert_true(there("step-000000004.e1"));
}

static void sweep_leaves_foreign_files_and_later_epochs(void **state)
{
    struct mc_err e = {0};
    (void)state;
    save(1, 2);
    shell("mkdir '%s/step-000000002.e2' && touch '%s/step-000000002.e2/data-00000.mcd' "
          "'%s/step-000000002.e2/precious.txt'",
          g_dir, g_dir, g_dir);
    ok(mc_ckpt_retain(g_dir, 2, 2, &e), &e);
    assert_true(there("step-000000002.e2/precious.txt"));
    assert_false(there("step-000000002.e2/data-00000.mcd"));
    shell("mkdir '%s/step-000000002.e3'", g_dir);
    assert_int_equal(mc_ckpt_retain(g_dir, 2, 2, &e), MC_E_MACHINE);
    assert_true(there("step-000000002.e3"));
}

/* ---- damage ---- */

static unsigned char *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    unsigned char *b = malloc(1 << 20);
    *n = fread(b, 1, 1 << 20, f);
    fclose(f);
    return b;
}

static void spill(const char *path, const unsigned char *b, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b, 1, n, f), n);
    fclose(f);
}

/* Open, load all, verify: did something object, and did it name `file`? */
static int caught(const char *folder, const char *file)
{
    struct mc_err e = {0};
    struct mc_ckpt *c = NULL;
    struct fx f;
    fx_make(&f, 0);
    mc_status st = mc_ckpt_open(folder, &c, &e);
    if (st == MC_OK) {
        struct mc_err e2 = {0};
        st = mc_ckpt_verify(c, NULL, NULL, &e);
        mc_status st2 = mc_ckpt_load(c, f.t, f.n, 1, &e2);
        if (st == MC_OK || st2 == MC_OK)
            st = MC_OK; /* both must object */
    }
    mc_ckpt_close(c);
    fx_free(&f);
    return st == MC_E_CORRUPT && strstr(e.msg, file) != NULL;
}

static void every_flipped_bit_is_caught(void **state)
{
    char folder[256], path[300];
    size_t n, tried = 0;
    (void)state;
    save(2, 1); /* even: chunks of both codecs */
    snprintf(folder, sizeof folder, "%s/step-000000002.e1", g_dir);
    static const char *const file[] = {"manifest.json", "data-00000.mcd"};
    for (int k = 0; k < 2; k++) {
        snprintf(path, sizeof path, "%s/%s", folder, file[k]);
        unsigned char *b = slurp(path, &n);
        assert_true(n > 1000);
        /* Every byte of the manifest; of the data its header, then one in five. */
        for (size_t i = 0; i < n; i += k == 0 || i < 64 ? 1 : 5) {
            b[i] ^= (unsigned char)(1 << i % 8);
            spill(path, b, n);
            if (!caught(folder, file[k]))
                fail_msg("%s: flipped bit %zu of byte %zu went unnoticed or unnamed", file[k],
                         i % 8, i);
            b[i] ^= (unsigned char)(1 << i % 8);
            tried++;
        }
        for (size_t cut = 0; cut < n; cut += cut < 100 || cut > n - 100 ? 1 : 997) {
            spill(path, b, cut);
            if (!caught(folder, file[k]))
                fail_msg("%s: cut to %zu of %zu bytes went unnoticed", file[k], cut, n);
        }
        spill(path, b, n);
        free(b);
    }
    print_message("%zu bits flipped\n", tried);
    assert_false(caught(folder, "")); /* and now it is whole again */
}

/* Wrong manifests with a right hash: structure is checked for itself. */
static void forged_structure_is_caught(void **state)
{
    static const struct {
        const char *from, *to, *want;
    } forge[] = {
        {"\"lo\":[0,0],\"n\":[257,16]", "\"lo\":[1,0],\"n\":[256,16]", "adam_m/embed"},
        {"\"lo\":[0,0],\"n\":[257,16]", "\"lo\":[1,0],\"n\":[257,16]", "outside"},
        {"\"lo\":[0,0],\"n\":[257,16]", "\"lo\":[9223372036854775807,0],\"n\":[257,16]", "outside"},
        {"\"shape\":[257,16]", "\"shape\":[4611686018427387904,4611686018427387904]", "shape"},
        {"\"shape\":[257,16]", "\"shape\":[257,0]", "shape"},
        {"\"shape\":[257,16]", "\"shape\":[1,1,1,257,16]", "shape"},
        {"\"dtype\":\"F32\"", "\"dtype\":\"F31\"", "dtype"},
        {"\"file\":0", "\"file\":1", "box"},
        {"\"file\":0", "\"file\":-1", "box"},
        {"\"name\":\"data-00000.mcd\"", "\"name\":\"../../x\"", "files"},
        {"\"name\":\"adam_v/w\"", "\"name\":\"adam_m/embed\"", "twice"},
        {"\"version\":1", "\"version\":2", "version 2"},
        {"\"step\":2", "\"step\":-2", "member"},
        {"\"epoch\":1", "\"epoch\":1,\"extra\":1", "member"},
        {"[64,", "[128,", "gap"},
        {"[64,", "[9223372036854775807,", "chunk"},
        {"\"format\":\"mascon-checkpoint\"", "\"format\":\"other\"", "format"},
        {"\"raw\"", "\"zip\"", "codec"},
        {"\"zstd\"", "\"raw\"", "codec"},
        {"\"books\":{", "\"books\":{\"step\":1,\"step\":2,", "JSON"},
        {"\"weights_hash\":\"", "\"weights_hash\":\"x", "weights_hash"},
    };
    char folder[256], path[300];
    size_t n;
    (void)state;
    save(2, 1);
    snprintf(folder, sizeof folder, "%s/step-000000002.e1", g_dir);
    snprintf(path, sizeof path, "%s/manifest.json", folder);
    unsigned char *b = slurp(path, &n);
    b[n] = 0;
    for (size_t i = 0; i < sizeof forge / sizeof *forge; i++) {
        struct mc_err e = {0};
        struct mc_ckpt *c = NULL;
        char text[65536], hex[17];
        char *at = strstr((char *)b, forge[i].from);
        if (!at)
            fail_msg("no %s in the manifest", forge[i].from);
        int len = snprintf(text, sizeof text, "%.*s%s%s", (int)(at - (char *)b), (char *)b,
                           forge[i].to, at + strlen(forge[i].from));
        char *tail = strstr(text, ",\"hash\":");
        assert_non_null(tail);
        mc_hash_hex(mc_hash64(text, (size_t)(tail - text)), hex);
        memcpy(tail + 9, hex, 16);
        spill(path, (unsigned char *)text, (size_t)len);
        assert_int_equal(mc_ckpt_open(folder, &c, &e), MC_E_CORRUPT);
        if (!strstr(e.msg, forge[i].want))
            fail_msg("%s -> %s: message lacks %s: %s", forge[i].from, forge[i].to, forge[i].want,
                     e.msg);
    }
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(newest_is_highest_epoch_then_step, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(resolve_takes_run_folder_and_checkpoint, make_dir,
                                        drop_dir),
        cmocka_unit_test(names_are_strict),
        cmocka_unit_test_setup_teardown(a_damaged_newest_gives_way_by_name, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(a_renamed_folder_is_damage, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(zombies_are_fenced, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(a_takeover_during_the_save_stops_its_commit, make_dir,
                                        drop_dir),
        cmocka_unit_test_setup_teardown(a_committed_one_is_never_overwritten, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(retain_keeps_the_newest_and_sweeps, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(retain_counts_only_what_it_has_read_back, make_dir,
                                        drop_dir),
        cmocka_unit_test_setup_teardown(sweep_leaves_foreign_files_and_later_epochs, make_dir,
                                        drop_dir),
        cmocka_unit_test_setup_teardown(every_flipped_bit_is_caught, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(forged_structure_is_caught, make_dir, drop_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
