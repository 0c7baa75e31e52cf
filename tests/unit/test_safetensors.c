/* test_safetensors.c - the reader of safetensors against files made byte by byte here: the numbers
 * of every dtype, values by hand or by ldexp; each way in which a header can lie; an index and its
 * files.
 * links: mc_ckpt */
#include <math.h>
#include <sys/stat.h>
#include "dir_help.h"
#include "../../ckpt/safetensors.h"

static uint8_t file[1 << 16];
static size_t nfile;

/* A file of this header and data; say: the size of the header that it claims, -1: the true one. */
static void make(const char *header, const void *data, size_t n, int64_t say)
{
    uint64_t claimed = say < 0 ? strlen(header) : (uint64_t)say;
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)(claimed >> 8 * i);
    memcpy(file + 8, header, strlen(header));
    memcpy(file + 8 + strlen(header), data, n);
    nfile = 8 + strlen(header) + n;
}

static struct mc_safetensors *opened(void)
{
    struct mc_safetensors *s = NULL;
    struct mc_err err = {0};
    if (mc_safetensors_open_memory(file, nfile, &s, &err) != MC_OK)
        fail_msg("%s", err.msg);
    return s;
}

static void refused(const char *header, size_t n, const char *what)
{
    static const uint8_t zero[4096];
    struct mc_safetensors *s = NULL;
    struct mc_err err = {0};
    make(header, zero, n, -1);
    assert_int_equal(mc_safetensors_open_memory(file, nfile, &s, &err), MC_E_FORMAT);
    assert_null(s);
    if (!strstr(err.msg, what))
        fail_msg("%s: \"%s\" says nothing of \"%s\"", header, err.msg, what);
}

/* ---- numbers ---- */

/* binary16 by its definition: (-1)^s 2^(e - 15) (1 + f / 1024); e = 0: (-1)^s 2^-14 f / 1024. */
static double half(int bits)
{
    int e = bits >> 10 & 31, f = bits & 1023;
    double v = e == 31 ? (f ? NAN : INFINITY) : e == 0 ? ldexp(f, -24) : ldexp(1024 + f, e - 25);
    return bits & 0x8000 ? -v : v;
}

static void every_half(void **state)
{
    (void)state;
    static uint8_t data[2 * 20000];
    static double out[20000];
    for (int first = 0; first < 65536; first += 20000) {
        int n = first + 20000 < 65536 ? 20000 : 65536 - first;
        char header[200];
        for (int i = 0; i < n; i++) {
            data[2 * i] = (uint8_t)(first + i);
            data[2 * i + 1] = (uint8_t)((first + i) >> 8);
        }
        snprintf(header, sizeof header,
                 "{\"h\":{\"dtype\":\"F16\",\"shape\":[%d],\"data_offsets\":[0,%d]}}", n, 2 * n);
        make(header, data, 2 * (size_t)n, -1);
        struct mc_safetensors *s = opened();
        assert_int_equal(mc_safetensors_read(s, 0, 0, n, out, NULL), MC_OK);
        for (int i = 0; i < n; i++) {
            double want = half(first + i);
            if (isnan(want) ? !isnan(out[i]) : out[i] != want || signbit(out[i]) != signbit(want))
                fail_msg("half %04x: %g, want %g", first + i, out[i], want);
        }
        mc_safetensors_close(s);
    }
}

static void other_dtypes(void **state)
{
    (void)state;
    static const uint8_t data[] = {
        0x00, 0x00, 0xc0, 0x3f,                         /* F32 1.5 */
        0x00, 0x00, 0x80, 0xff,                         /* F32 -inf */
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0xc0, /* F64 -2.5 */
        0x80, 0x3f, 0x20, 0xc0, 0x01, 0x00,             /* BF16 1, -2.5, 2^-133 */
        0x2a,                                           /* U8 */
    };
    make("{\"d\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[8,16]},"
         "\"a\":{\"shape\":[1,2],\"dtype\":\"F32\",\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"BF16\",\"shape\":[3,1],\"data_offsets\":[16,22]},"
         "\"__metadata__\":{\"format\":\"pt\"},"
         "\"u\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1],\"data_offsets\":[22,23]},"
         "\"e\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[23,23]}}   ",
         data, sizeof data, -1);
    struct mc_safetensors *s = opened();
    double v[3];
    struct mc_err err = {0};
    assert_int_equal(mc_safetensors_count(s), 5);
    assert_string_equal(mc_safetensors_at(s, 0)->name, "a"); /* by name */
    assert_string_equal(mc_safetensors_at(s, 4)->name, "u");
    assert_int_equal(mc_safetensors_find(s, "__metadata__"), -1);
    assert_int_equal(mc_safetensors_read(s, 0, 0, 2, v, NULL), MC_OK);
    assert_true(v[0] == 1.5 && v[1] == -INFINITY);
    assert_int_equal(mc_safetensors_read(s, 1, 0, 3, v, NULL), MC_OK);
    assert_true(v[0] == 1 && v[1] == -2.5 && v[2] == ldexp(1, -133));
    assert_int_equal(mc_safetensors_read(s, 1, 1, 1, v, NULL), MC_OK);
    assert_true(v[0] == -2.5);
    assert_int_equal(mc_safetensors_at(s, 2)->shape.nd, 0);
    assert_int_equal(mc_safetensors_read(s, 2, 0, 1, v, NULL), MC_OK);
    assert_true(v[0] == -2.5);
    assert_int_equal(mc_safetensors_at(s, 3)->count, 0);
    assert_false(mc_safetensors_is_real(mc_safetensors_at(s, 4)));
    assert_int_equal(mc_safetensors_read(s, 4, 0, 1, v, &err), MC_E_FORMAT);
    assert_non_null(strstr(err.msg, "\"u\""));
    mc_safetensors_close(s);
}

/* More than one piece of the reader's buffer, from any element on. */
static void pieces(void **state)
{
    (void)state;
    enum { N = 10000 };
    static uint8_t data[4 * N];
    static double out[N];
    for (int i = 0; i < N; i++) {
        float f = (float)i / 8;
        memcpy(data + 4 * i, &f, 4);
    }
    make("{\"a\":{\"dtype\":\"F32\",\"shape\":[100,100],\"data_offsets\":[0,40000]}}", data,
         sizeof data, -1);
    struct mc_safetensors *s = opened();
    for (int first = 0; first < N; first += 3333) {
        assert_int_equal(mc_safetensors_read(s, 0, first, N - first, out, NULL), MC_OK);
        for (int i = first; i < N; i++)
            assert_true(out[i - first] == i / 8.0);
    }
    mc_safetensors_close(s);
}

/* ---- headers that lie ---- */

#define T(name, dtype, shape, range)                                                               \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" range "}"

static void lies(void **state)
{
    (void)state;
    refused("{" T("a", "F32", "[2]", "[0,8]") "}", 7, "cut short");
    refused("{" T("a", "F32", "[2]", "[0,8]") "}", 9, "belong to no tensor");
    refused("{" T("a", "F32", "[2]", "[1,9]") "}", 9, "belong to no tensor");
    refused("{" T("a", "F32", "[2]", "[8,0]") "}", 8, "cut short, or");
    refused("{" T("a", "F32", "[2]", "[-8,0]") "}", 8, "cut short, or");
    refused("{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[1]", "[4,8]") "}", 8, "overlap");
    refused("{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[8,12]") "}", 12,
            "bytes 4 to 8 belong to no tensor");
    refused("{" T("a", "F32", "[2]", "[0,8]") "," T("a", "F32", "[2]", "[0,8]") "}", 8,
            "duplicate");
    refused("{" T("a", "F32", "[3]", "[0,8]") "}", 8, "do not take the 8 bytes");
    refused("{" T("a", "F32", "[4611686018427387904,4]", "[0,8]") "}", 8, "past 2^63");
    refused("{" T("a", "F64", "[4611686018427387904]", "[0,8]") "}", 8, "do not take");
    refused("{" T("a", "F32", "[-1,-2]", "[0,8]") "}", 8, "something else than sizes");
    refused("{" T("a", "F32", "[2.0]", "[0,8]") "}", 8, "something else than sizes");
    refused("{" T("a", "F32", "[1,1,1,1,2]", "[0,8]") "}", 8, "4 dimensions");
    refused("{" T("a", "F32", "2", "[0,8]") "}", 8, "not a list");
    refused("{" T("a", "F32", "[2]", "[0]") "}", 8, "pair");
    refused("{" T("a", "F32", "[2]", "[0,8.5]") "}", 8, "pair");
    refused("{" T("a", "F32", "[2]", "[0,99999999999999999999]") "}", 8, "too big");
    refused("{" T("a", "f32", "[2]", "[0,8]") "}", 8, "not known");
    refused("{\"a\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "not known");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "other members");
    refused("{\"a\":[1,2,3]}", 8, "not described by an object");
    refused("[]", 0, "not a JSON object");
    refused("{", 0, "not a JSON object");
    refused("", 0, "not a JSON object");
    refused("{} x", 0, "not a JSON object");
    char name[700], header[900];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    snprintf(header, sizeof header, "{" T("%s", "F32", "[2]", "[0,8]") "}", name);
    refused(header, 8, "name past");
}

static void claimed_sizes(void **state)
{
    (void)state;
    struct mc_safetensors *s = NULL;
    static const int64_t say[] = {3, 100, INT64_MAX};
    for (size_t i = 0; i < sizeof say / sizeof *say; i++) {
        make("{}", "", 0, say[i]);
        assert_int_equal(mc_safetensors_open_memory(file, nfile, &s, NULL), MC_E_FORMAT);
    }
    make("{}", "", 0, -1);
    file[7] = 0x80; /* 2^63 + 2 */
    assert_int_equal(mc_safetensors_open_memory(file, nfile, &s, NULL), MC_E_FORMAT);
    file[7] = 0;
    for (size_t n = 0; n < 10; n++) /* cut anywhere */
        assert_int_equal(mc_safetensors_open_memory(file, n, &s, NULL), MC_E_FORMAT);
    s = opened();
    assert_int_equal(mc_safetensors_count(s), 0);
    mc_safetensors_close(s);
}

/* ---- files ---- */

static mc_status folder(const char *index, struct mc_safetensors **s, struct mc_err *err)
{
    write_bytes("model.safetensors.index.json", index, strlen(index));
    return mc_safetensors_open(dir, s, err);
}

static void an_index(void **state)
{
    (void)state;
    struct mc_safetensors *s = NULL;
    struct mc_err err = {0};
    float one[2] = {1, 2};
    double v[2];
    make("{" T("a", "F32", "[2]", "[0,8]") "}", one, 8, -1);
    write_bytes("x.safetensors", file, nfile);
    one[0] = 3;
    make("{" T("b", "F32", "[2]", "[0,8]") "}", one, 8, -1);
    write_bytes("y.safetensors", file, nfile);
    if (folder("{\"metadata\":{},\"weight_map\":{\"b\":\"y.safetensors\",\"a\":\"x.safetensors\"}}",
               &s, &err) != MC_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(mc_safetensors_count(s), 2);
    assert_int_equal(mc_safetensors_read(s, mc_safetensors_find(s, "a"), 0, 2, v, NULL), MC_OK);
    assert_true(v[0] == 1 && v[1] == 2);
    assert_int_equal(mc_safetensors_read(s, mc_safetensors_find(s, "b"), 0, 2, v, NULL), MC_OK);
    assert_true(v[0] == 3);
    assert_string_equal(mc_safetensors_folder(s), dir);
    mc_safetensors_close(s);
    static const char *const bad[][2] = {
        {"{\"weight_map\":{\"a\":\"y.safetensors\",\"b\":\"x.safetensors\"}}", "is not in"},
        {"{\"weight_map\":{\"a\":\"x.safetensors\",\"c\":\"y.safetensors\"}}", "does not know"},
        {"{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\",\"c\":\"y.safetensors\"}"
         "}",
         "is not in"},
        {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", "plain name"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "plain name"},
        {"{\"weight_map\":{\"a\":7}}", "plain name"},
        {"{\"weight_map\":[]}", "no index"},
        {"{}", "no index"},
        {"{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"z.safetensors\"}}", "z.safetensors"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mc_err why = {0};
        assert_int_not_equal(folder(bad[i][0], &s, &why), MC_OK);
        if (!strstr(why.msg, bad[i][1]))
            fail_msg("%s: %s", bad[i][0], why.msg);
    }
    /* the same name in two files */
    make("{" T("a", "F32", "[2]", "[0,8]") "}", one, 8, -1);
    write_bytes("y.safetensors", file, nfile);
    mc_err_clear(&err);
    assert_int_equal(
        folder("{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\"}}", &s, &err),
        MC_E_FORMAT);
    assert_non_null(strstr(err.msg, "is in"));
}

/* Nobody writes into it: an open that waited for a writer would never end. */
static void a_pipe_is_refused(void **state)
{
    (void)state;
    struct mc_safetensors *s = NULL;
    struct mc_err err = {0};
    assert_int_equal(mkfifo(in_dir("p.safetensors"), 0600), 0);
    alarm(20);
    assert_int_equal(mc_safetensors_open(in_dir("p.safetensors"), &s, &err), MC_E_FORMAT);
    alarm(0);
    assert_non_null(strstr(err.msg, "p.safetensors: 0 bytes are no safetensors file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half),
        cmocka_unit_test(other_dtypes),
        cmocka_unit_test(pieces),
        cmocka_unit_test(lies),
        cmocka_unit_test(claimed_sizes),
        cmocka_unit_test_setup_teardown(an_index, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(a_pipe_is_refused, make_dir, drop_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
