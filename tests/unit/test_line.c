/* test_line.c - a run's pipelines as data: parts, slots and channels against plain counting; the
 * text read back, and refused where it is not one.
 * links: mc_lua mc_pipe */
#include "lua_util.h"
#include "../../core/base/arena.h"
#include "../../core/base/clock.h"
#include "../../core/graph/graph.h"
#include "../../core/pipe/line.h"

static struct loaded g_x;

static struct mc_sched *get(const char *name, int p, int v, int m)
{
    char set[300];
    const char *sets[1] = {set};
    struct mc_sched *s = NULL;
    struct mc_err err = {0};
    snprintf(set, sizeof set, "parallel.schedule=%s", name);
    load_file(&g_x, MC_SOURCE_HOME "/recipes/tiny_llama.lua", sets, 1);
    assert_int_equal(g_x.st, MC_OK);
    const struct mc_sched_ask ask = {.ranks = p, .chunks = v, .microbatches = m};
    if (mc_lua_schedule(&g_x.l, &ask, &s, &err) != MC_OK)
        fail_msg("%s", err.msg);
    mc_lua_loaded_fini(&g_x.l);
    mc_problems_fini(&g_x.problems);
    return s;
}

static void even_cut(int stages, int each, int *cut)
{
    for (int s = 0; s <= stages; s++)
        cut[s] = s * each;
}

static struct mc_line *line_of(const char *name, int p, int v, const int *m, int n, int depth)
{
    struct mc_sched *s[8];
    struct mc_line *line = NULL;
    struct mc_err err = {0};
    int *cut = calloc((size_t)(p * v + 1), sizeof *cut);
    even_cut(p * v, 2, cut);
    for (int k = 0; k < n; k++)
        s[k] = get(name, p, v, m[k]);
    if (mc_line_create(p, v, cut, s, n, depth, &line, &err) != MC_OK)
        fail_msg("%s", err.msg);
    free(cut);
    return line;
}

static const struct {
    const char *name;
    int v, split;
} all[] = {{"gpipe", 1, 0},       {"gpipe", 2, 0}, {"one_f_one_b", 1, 0}, {"interleaved", 2, 0},
           {"interleaved", 3, 0}, {"zb_h1", 1, 1}, {"zb_v", 2, 1}};

/* Counting over the records themselves: who is alive, who talks to whom. */
static void check_rank(const struct mc_line *line, int r)
{
    int stages = line->ranks * line->chunks, before = -1;
    struct mc_line_channel ch[4 * MC_LINE_MAX_CHUNKS];
    int n = mc_line_channels(line, r, ch);
    const struct mc_sched *last = line->sched[line->nsched - 1];
    for (int c = 0; c < line->chunks; c++) {
        int most = 1, pending = 1;
        for (int k = 0; k < line->nsched; k++)
            for (int64_t i = last ? line->sched[k]->first[r] : 0; i < line->sched[k]->first[r + 1];
                 i++) {
                int alive = 0, waits = 0;
                for (int64_t j = line->sched[k]->first[r]; j <= i; j++) {
                    const struct mc_sched_rec *x = &line->sched[k]->rec[j];
                    int begins = x->op == MC_SCHED_B || x->op == MC_SCHED_I,
                        ends = x->op == MC_SCHED_B || x->op == MC_SCHED_W;
                    alive += x->chunk == c && x->op == MC_SCHED_F;
                    waits += x->chunk == c && begins;
                    alive -= j < i && x->chunk == c && ends;
                    waits -= j < i && x->chunk == c && ends;
                }
                most = alive > most ? alive : most;
                pending = waits > pending ? waits : pending;
            }
        assert_int_equal(mc_line_slots(line, r, c), most);
        assert_int_equal(mc_line_pending(line, r, c), pending);
    }
    for (int k = 0; k < line->chunks; k++) {
        struct mc_graph_part part;
        int c = mc_line_chunk(line, r, k), s = last->place[r * line->chunks + c];
        assert_true(s > before);
        before = s;
        mc_line_part(line, r, k, &part);
        assert_int_equal(part.first_layer, line->cut[s]);
        assert_int_equal(part.end_layer, line->cut[s + 1]);
        assert_int_equal(part.has_stem, s == 0);
        assert_int_equal(part.has_head, s == stages - 1);
        assert_int_equal(part.slots, mc_line_slots(line, r, c));
        assert_int_equal(part.pending, mc_line_pending(line, r, c));
    }
    assert_int_equal(mc_line_chunk(line, r, line->chunks), -1);
    for (int q = 0; q < line->ranks; q++)
        for (int kind = 0; kind < 2; kind++)
            for (int sends = 0; sends < 2; sends++) {
                int want = 0, got = 0, room = 0;
                for (int s = 0; s + 1 < stages && q != r; s++) {
                    int lo = line->at[s] / line->chunks, hi = line->at[s + 1] / line->chunks;
                    int from = kind ? hi : lo, to = kind ? lo : hi;
                    want += from == (sends ? r : q) && to == (sends ? q : r);
                }
                for (int i = 0; i < n; i++)
                    if (ch[i].peer == q && ch[i].sends == sends &&
                        ch[i].kind == (kind ? MC_SCHED_I : MC_SCHED_F)) {
                        got += ch[i].per_mb;
                        room = ch[i].room;
                    }
                assert_int_equal(got, want);
                int most = sends ? line->depth : line->depth < 2 ? line->depth : 2;
                if (want * last->microbatches < most)
                    most = want * last->microbatches;
                assert_int_equal(room, most);
            }
}

static void same(const struct mc_line *a, const struct mc_line *b)
{
    int stages = a->ranks * a->chunks;
    assert_int_equal(a->ranks, b->ranks);
    assert_int_equal(a->chunks, b->chunks);
    assert_int_equal(a->depth, b->depth);
    assert_int_equal(a->nsched, b->nsched);
    assert_memory_equal(a->cut, b->cut, (size_t)(stages + 1) * sizeof *a->cut);
    assert_memory_equal(a->at, b->at, (size_t)stages * sizeof *a->at);
    for (int k = 0; k < a->nsched; k++) {
        const struct mc_sched *s = a->sched[k], *t = b->sched[k];
        assert_string_equal(s->name, t->name);
        assert_int_equal(s->microbatches, t->microbatches);
        assert_memory_equal(s->first, t->first, (size_t)(s->ranks + 1) * sizeof *s->first);
        assert_memory_equal(s->place, t->place, (size_t)stages * sizeof *s->place);
        for (int64_t i = 0; i < s->first[s->ranks]; i++)
            assert_true(s->rec[i].op == t->rec[i].op && s->rec[i].mb == t->rec[i].mb &&
                        s->rec[i].chunk == t->rec[i].chunk);
    }
}

static void what_follows_is_what_counting_gives(void **state)
{
    (void)state;
    for (size_t a = 0; a < sizeof all / sizeof *all; a++)
        for (int p = 1; p <= 4; p++) {
            const int m[3] = {p, 2 * p, 3 * p};
            struct mc_err err = {0};
            struct mc_line *line = line_of(all[a].name, p, all[a].v, m, 3, 20), *back = NULL;
            char *text;
            for (int r = 0; r < p; r++)
                check_rank(line, r);
            assert_int_equal(mc_line_stem(line), 0);
            assert_int_equal(mc_line_head(line), strcmp(all[a].name, "zb_v") ? p - 1 : 0);
            assert_int_equal(mc_line_split(line), all[a].split);
            assert_ptr_equal(mc_line_sched(line, 2 * p), line->sched[1]);
            assert_null(mc_line_sched(line, 5 * p));
            assert_int_equal(mc_line_text(line, &text, &err), MC_OK);
            if (mc_line_parse(text, strlen(text), &back, &err) != MC_OK)
                fail_msg("%s\n%s", err.msg, text);
            same(line, back);
            mc_free(text);
            mc_line_destroy(line);
            mc_line_destroy(back);
        }
}

/* A map whose chunk 0 is the later stage: parts are in the order of the model all the same. */
static void parts_are_in_the_order_of_the_model(void **state)
{
    (void)state;
    struct mc_sched *s = get("gpipe", 2, 2, 2);
    struct mc_line *line;
    struct mc_err err = {0};
    static const int map[4] = {3, 0, 2, 1}, cut[5] = {0, 1, 3, 4, 4};
    struct mc_graph_part part;
    memcpy(s->place, map, sizeof map);
    if (mc_line_create(2, 2, cut, &s, 1, 4, &line, &err) != MC_OK)
        fail_msg("%s", err.msg);
    for (int r = 0; r < 2; r++)
        check_rank(line, r);
    assert_int_equal(mc_line_chunk(line, 0, 0), 1);
    assert_int_equal(mc_line_stem(line), 0);
    assert_int_equal(mc_line_head(line), 0);
    mc_line_part(line, 0, 1, &part);
    assert_int_equal(part.first_layer, 4); /* no layer, but the head */
    assert_int_equal(part.end_layer, 4);
    assert_true(part.has_head && !part.has_stem);
    mc_line_part(line, 1, 0, &part);
    assert_int_equal(part.first_layer, 1);
    mc_line_destroy(line);
}

static void forward_alone(void **state)
{
    (void)state;
    struct mc_line *line;
    struct mc_line_channel ch[4 * MC_LINE_MAX_CHUNKS];
    static const int cut[4] = {0, 2, 4, 5};
    assert_int_equal(mc_line_forward(3, cut, 6, &line, NULL), MC_OK);
    assert_int_equal(mc_line_split(line), 0);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(mc_line_slots(line, r, 0), 1);
        assert_int_equal(mc_line_channels(line, r, ch), r == 1 ? 2 : 1);
        for (int i = 0; i < (r == 1 ? 2 : 1); i++)
            assert_int_equal(ch[i].kind, MC_SCHED_F);
    }
    assert_int_equal(line->sched[0]->first[3], 18);
    mc_line_destroy(line);
}

static void refused(struct mc_sched **s, int n, int p, int v, const int *cut, int depth,
                    const char *word)
{
    struct mc_err err = {0};
    struct mc_line *line = NULL;
    size_t before = mc_mem_stats().alloc_bytes;
    (void)before;
    assert_int_equal(mc_line_create(p, v, cut, s, n, depth, &line, &err), MC_E_RECIPE);
    assert_null(line);
    if (!strstr(err.msg, word))
        fail_msg("\"%s\" is not in: %s", word, err.msg);
}

static void lines_that_do_not_hold_together(void **state)
{
    (void)state;
    static const int good[5] = {0, 1, 2, 3, 4}, empty[5] = {0, 1, 1, 3, 4},
                     back[5] = {0, 2, 1, 3, 4}, late[5] = {1, 2, 3, 4, 5};
    size_t live = mc_mem_stats().alloc_bytes;
    struct mc_sched *s[2] = {get("gpipe", 2, 2, 4), get("gpipe", 2, 2, 4)};
    refused(s, 2, 2, 2, good, 4, "ascend");
    s[0] = get("gpipe", 2, 2, 4);
    s[1] = get("gpipe", 2, 2, 5);
    s[1]->place[0] = 3;
    s[1]->place[3] = 0;
    refused(s, 2, 2, 2, good, 4,
            "rank 0 chunk 0 is stage 0 with 4 microbatches, but stage 3 with 5");
    s[0] = get("gpipe", 2, 2, 4);
    s[0]->place[0] = 3;
    refused(s, 1, 2, 2, good, 4, "one to one");
    s[0] = get("gpipe", 4, 1, 4);
    refused(s, 1, 2, 2, good, 4, "4 ranks and 1 chunks in a line of 2 and 2");
    s[0] = get("gpipe", 2, 2, 4);
    refused(s, 1, 2, 2, empty, 4, "stage 1 of 4 would have 0 layers");
    s[0] = get("gpipe", 2, 2, 4);
    refused(s, 1, 2, 2, back, 4, "-1 layers");
    s[0] = get("gpipe", 2, 2, 4);
    refused(s, 1, 2, 2, late, 4, "begins with layer 1");
    s[0] = get("gpipe", 2, 2, 400);
    refused(s, 1, 2, 2, good, 400, "under way at once");
    assert_int_equal(mc_mem_stats().alloc_bytes,
                     live); /* a refused line takes its schedules along */
}

/* -- Text ------------------------------------------------------------------------------------- */

static const char g_good[] = "mascon-pipeline 1\n"
                             "ranks 2 chunks 1 depth 2 schedules 2\n"
                             "cut 0 1 3\n"
                             "place 0 1\n"
                             "microbatches 1 my.lua:1\n"
                             "0 F0 B0\n"
                             "1 F0 I0 W0\n"
                             "microbatches 2 my.lua:1\n"
                             "0 F0 F1 B0 B1\n"
                             "1 F0 B0 F1 B1\n"
                             "end\n";

static void text_is_refused_by_its_line(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        mc_status code;
        const char *say[2];
    } edit[] = {
        {"mascon-pipeline 1", "mascon-pipeline 2", MC_E_FORMAT, {"line 1", "mascon-pipeline 2"}},
        {"ranks 2", "ranks 0", MC_E_FORMAT, {"line 2", "from 1 to 4096"}},
        {"ranks 2", "ranks 02", MC_E_FORMAT, {"line 2", "from 1 to 4096"}},
        {"ranks 2", "ranks 4000", MC_E_FORMAT, {"line 3", "too short"}},
        {"chunks 1", "chunks 99999999999999999999", MC_E_FORMAT, {"line 2", "from 1 to 64"}},
        {"depth 2", "depth -2", MC_E_FORMAT, {"line 2", "\"-2"}},
        {"depth 2 ", "depth 2  ", MC_E_FORMAT, {"line 2", "expected"}},
        {"schedules 2", "schedules 3", MC_E_FORMAT, {"line 11", "\"microbatches\" is expected"}},
        {"schedules 2", "schedules 1", MC_E_FORMAT, {"line 8", "\"end\" is expected"}},
        {"cut 0 1 3", "cut 0 1", MC_E_FORMAT, {"line 3", "3 numbers"}},
        {"cut 0 1 3", "cut 0 1 3 4", MC_E_FORMAT, {"line 3", "3 numbers"}},
        {"cut 0 1 3", "cut 0 9 3", MC_E_RECIPE, {"stage 1", "-6 layers"}},
        {"place 0 1", "place 0 2", MC_E_FORMAT, {"line 4", "from 0 to 1"}},
        {"place 0 1", "place 1 1", MC_E_RECIPE, {"line 5", "stage 1 on rank 0"}},
        {"microbatches 1 ", "microbatches 0 ", MC_E_FORMAT, {"line 5", "from 1"}},
        {"microbatches 1 ", "microbatches 2 ", MC_E_FORMAT, {"line 5", "at least 8 records"}},
        {"microbatches 2 ", "microbatches 60000000 ", MC_E_FORMAT, {"line 8", "240000000"}},
        {"microbatches 2 my", "microbatches 2 \tmy", MC_E_FORMAT, {"line 8", "control"}},
        {"\n0 F0 F1", "\n1 F0 F1", MC_E_FORMAT, {"line 9", "each rank has a line"}},
        {"0 F0 F1", "0 F0 F2", MC_E_FORMAT, {"line 9", "a microbatch is a number from 0 to 1"}},
        {"0 F0 F1", "0 F0 F1.1", MC_E_FORMAT, {"line 9", "a chunk other than 0"}},
        {"0 F0 F1", "0 F0 X1", MC_E_FORMAT, {"line 9", "F, B, I or W"}},
        {"0 F0 F1", "0 F0  F1", MC_E_FORMAT, {"line 9", "F, B, I or W"}},
        {"0 F0 F1 B0 B1", "0 F0F1 B0 B1", MC_E_FORMAT, {"line 9", "F, B, I or W"}},
        {"F1 B0 B1", "F1 B1 B0", MC_E_RECIPE, {"line 8", "ascending"}},
        {"B0 F1 B1", "B0 B1 F1", MC_E_RECIPE, {"line 8", "before its forward"}},
        {"F0 I0 W0", "F0 W0 I0", MC_E_RECIPE, {"line 5", "rank 1 slot 1"}},
        {"end\n", "end", MC_E_FORMAT, {"line 11", "\"end\" is expected"}},
        {"end\n", "end\nend\n", MC_E_FORMAT, {"line 12", "nothing comes after"}},
        {"end\n", "", MC_E_FORMAT, {"line 11", "there is the end"}},
    };
    struct mc_line *line;
    struct mc_err ok = {0};
    char text[600];
    size_t live = mc_mem_stats().alloc_bytes;
    if (mc_line_parse(g_good, strlen(g_good), &line, &ok) != MC_OK)
        fail_msg("%s", ok.msg);
    assert_int_equal(line->cut[2], 3);
    assert_int_equal(mc_line_split(line), 1);
    mc_line_destroy(line);
    for (size_t k = 0; k < sizeof edit / sizeof *edit; k++) {
        struct mc_err err = {0};
        const char *at = strstr(g_good, edit[k].from);
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - g_good), g_good, edit[k].to,
                 at + strlen(edit[k].from));
        mc_status st = mc_line_parse(text, strlen(text), &line, &err);
        if (st != edit[k].code || !strstr(err.msg, edit[k].say[0]) ||
            !strstr(err.msg, edit[k].say[1]))
            fail_msg("%s -> %s: %s: %s", edit[k].from, edit[k].to, mc_status_name(st), err.msg);
    }
    for (size_t n = 0; n + 1 < sizeof g_good; n++) /* cut anywhere */
        assert_int_equal(mc_line_parse(g_good, n, &line, NULL), MC_E_FORMAT);
    assert_int_equal(mc_mem_stats().alloc_bytes, live);
}

/* What a run on thousands of devices writes and every rank of it reads. */
static void large_ones_are_quick(void **state)
{
    (void)state;
    const int m[1] = {512};
    struct mc_line *line = line_of("interleaved", 64, 4, m, 1, 2), *back;
    char *text;
    int64_t at = mc_clock_ns();
    assert_int_equal(mc_line_text(line, &text, NULL), MC_OK);
    double wrote = (double)(mc_clock_ns() - at) * 1e-9;
    at = mc_clock_ns();
    assert_int_equal(mc_line_parse(text, strlen(text), &back, NULL), MC_OK);
    double read = (double)(mc_clock_ns() - at) * 1e-9;
    same(line, back);
    print_message("%.2f MB, written in %.3f s, read and proven in %.3f s\n",
                  (double)strlen(text) * 1e-6, wrote, read);
    assert_true(strlen(text) < 4000000);
    mc_free(text);
    mc_line_destroy(line);
    mc_line_destroy(back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_follows_is_what_counting_gives),
        cmocka_unit_test(parts_are_in_the_order_of_the_model),
        cmocka_unit_test(forward_alone),
        cmocka_unit_test(lines_that_do_not_hold_together),
        cmocka_unit_test(text_is_refused_by_its_line),
        cmocka_unit_test(large_ones_are_quick),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
