/* test_sched_fuzz.c - good schedules edited at random: what the verifier accepts runs to its end
 * and computes the right sums, what it refuses is wrong. links: mc_lua mc_pipe
 *
 * The judge knows no proof. It is a machine that does what the records say: ranks with a place in
 * their list, a real queue of bounded length for each pair of ranks and direction, a number for
 * each activation that depends on everything before it, and for each stage a sum whose value
 * depends on the order of what is added. It stands still, or ends; and then the sums are those of
 * one rank that runs F0 B0 F1 B1 ..., all messages are taken and all memory is given back, or
 * something is wrong. */
#include "lua_util.h"
#include "../../core/pipe/sched.h"

enum { RANKS = 4, STAGES = 12, MOST = 8, RECORDS = 200 };

static uint64_t g_seed = 2463534242u;
static int any(int n)
{
    g_seed ^= g_seed << 13, g_seed ^= g_seed >> 7, g_seed ^= g_seed << 17;
    return (int)(g_seed >> 20 & 0x7fffffff) % n;
}

static uint64_t mix(uint64_t x) /* 0 stays for "nothing" */
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (x ^ x >> 31) | 1;
}

/* -- The machine ------------------------------------------------------------------------------ */

enum end { RUNS, LOCKS, WRONG };
struct queue {
    uint64_t message[RECORDS * RANKS];
    int sent, taken;
};
struct machine {
    const struct mc_sched *s;
    int depth, rank_of[STAGES];
    struct queue queue[2][RANKS][RANKS]; /* of activations, of gradients */
    uint64_t local[2][STAGES][MOST];     /* between stages of one rank, by who takes it */
    uint64_t in[STAGES][MOST];           /* what a forward keeps */
    uint64_t d_out[STAGES][MOST];        /* what I keeps for W */
    uint64_t sum[STAGES];
    int64_t at[RANKS];
    int alive[RANKS], wrong;
    struct { /* a message that waits for room; to < 0: none */
        int to, kind;
        uint64_t message;
    } held[RANKS];
};

/* A stage knows the microbatch that it works on: its rows, of dropout and of targets. */
static uint64_t forward_of(int stage, int mb, uint64_t in)
{
    return mix(in + 1000u * (unsigned)stage + (unsigned)mb);
}
static uint64_t loss_of(uint64_t out)
{
    return mix(out ^ 0x5555);
}
static uint64_t input_gradient(int stage, uint64_t in, uint64_t d_out)
{
    return mix((in ^ d_out) + (unsigned)stage);
}
static uint64_t added(uint64_t sum, uint64_t in, uint64_t d_out)
{
    return mix(sum ^ mix(in + 3 * d_out));
}

/* One rank, microbatch after microbatch. */
static void right_sums(int stages, int m, uint64_t *sum)
{
    memset(sum, 0, STAGES * sizeof *sum);
    for (int mb = 0; mb < m; mb++) {
        uint64_t in[STAGES + 1] = {mix((unsigned)mb)}, d;
        for (int s = 0; s < stages; s++)
            in[s + 1] = forward_of(s, mb, in[s]);
        d = loss_of(in[stages]);
        for (int s = stages - 1; s >= 0; s--) {
            sum[s] = added(sum[s], in[s], d);
            d = input_gradient(s, in[s], d);
        }
    }
}

/* Takes the input of (kind, stage, mb) on rank r; 0: it is not there. */
static uint64_t take(struct machine *x, int kind, int r, int stage, int mb)
{
    int from = x->rank_of[kind ? stage + 1 : stage - 1];
    if (from < 0)
        return 0; /* nobody has that stage: it waits for ever */
    if (from == r) {
        uint64_t v = x->local[kind][stage][mb];
        x->local[kind][stage][mb] = 0;
        return v;
    }
    struct queue *q = &x->queue[kind][from][r];
    return q->taken < q->sent ? q->message[q->taken++] : 0;
}

static void give(struct machine *x, int kind, int r, int stage, int mb, uint64_t v)
{
    int to = x->rank_of[stage];
    if (to == r) {
        x->wrong |= x->local[kind][stage][mb] != 0; /* over one that nobody took */
        x->local[kind][stage][mb] = v;
    } else if (to < 0) {
        x->wrong = 1;
    } else {
        x->held[r].to = to;
        x->held[r].kind = kind;
        x->held[r].message = v;
    }
}

/* The next record of rank r; 0: it cannot begin yet. */
static int step(struct machine *x, int r)
{
    const struct mc_sched *s = x->s;
    int last = mc_sched_stages(s) - 1;
    if (x->held[r].to >= 0) {
        struct queue *q = &x->queue[x->held[r].kind][r][x->held[r].to];
        if (q->sent - q->taken >= x->depth)
            return 0;
        q->message[q->sent++] = x->held[r].message;
        x->held[r].to = -1;
        return 1;
    }
    if (x->at[r] == s->first[r + 1])
        return 0;
    const struct mc_sched_rec *rec = &s->rec[x->at[r]];
    int stage = s->place[r * s->chunks + rec->chunk], mb = rec->mb;
    uint64_t *in = &x->in[stage][mb], *d_out = &x->d_out[stage][mb], v;
    if (rec->op == MC_SCHED_F) {
        v = stage == 0 ? mix((unsigned)mb) : take(x, 0, r, stage, mb);
        if (!v)
            return 0;
        *in = v;
        x->alive[r]++;
        if (stage < last)
            give(x, 0, r, stage + 1, mb, forward_of(stage, mb, v));
    } else if (rec->op != MC_SCHED_W) {
        v = stage == last ? loss_of(forward_of(stage, mb, *in)) : take(x, 1, r, stage, mb);
        if (!v)
            return 0;
        *d_out = v;
        if (stage > 0)
            give(x, 1, r, stage - 1, mb, input_gradient(stage, *in, v));
    }
    if (rec->op == MC_SCHED_B || rec->op == MC_SCHED_W) {
        x->sum[stage] = added(x->sum[stage], *in, *d_out);
        *in = *d_out = 0;
        x->alive[r]--;
    }
    x->at[r]++;
    return 1;
}

static int names_what_is_there(const struct mc_sched *s)
{
    for (int64_t k = 0; k < s->first[s->ranks]; k++)
        if (s->rec[k].op < 0 || s->rec[k].op > MC_SCHED_W || s->rec[k].chunk < 0 ||
            s->rec[k].chunk >= s->chunks || s->rec[k].mb < 0 || s->rec[k].mb >= s->microbatches)
            return 0;
    for (int i = 0; i < mc_sched_stages(s); i++)
        if (s->place[i] < 0 || s->place[i] >= mc_sched_stages(s))
            return 0;
    return 1;
}

static enum end judge(const struct mc_sched *s, int depth, const int64_t *room)
{
    static struct machine x;
    uint64_t want[STAGES];
    int stages = mc_sched_stages(s), stands = 0;
    if (!names_what_is_there(s))
        return WRONG;
    memset(&x, 0, sizeof x);
    x.s = s;
    x.depth = depth;
    memset(x.rank_of, -1, sizeof x.rank_of);
    for (int i = 0; i < stages; i++)
        x.rank_of[s->place[i]] = i / s->chunks;
    for (int r = 0; r < s->ranks; r++) {
        x.at[r] = s->first[r];
        x.held[r].to = -1;
    }
    while (stands < s->ranks && !x.wrong) { /* whoever can go on, from a rank that chance picks */
        int r = any(s->ranks), moved = 0;
        for (stands = 0; stands < s->ranks && !moved; r = (r + 1) % s->ranks) {
            moved = step(&x, r);
            stands += !moved;
            x.wrong |= room && x.alive[r] > room[r];
        }
    }
    for (int r = 0; r < s->ranks && !x.wrong; r++)
        if (x.at[r] < s->first[r + 1] || x.held[r].to >= 0)
            return LOCKS;
    right_sums(stages, s->microbatches, want);
    x.wrong |= memcmp(x.sum, want, (size_t)stages * sizeof *want) != 0;
    for (int r = 0; r < s->ranks; r++) {
        x.wrong |= x.alive[r] != 0;
        for (int q = 0; q < s->ranks; q++)
            for (int kind = 0; kind < 2; kind++)
                x.wrong |= x.queue[kind][r][q].sent != x.queue[kind][r][q].taken;
    }
    return x.wrong ? WRONG : RUNS;
}

/* -- Edits ------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    int p, v, m;
} base[] = {{"one_f_one_b", 3, 1, 5}, {"interleaved", 2, 2, 4}, {"zb_h1", 3, 1, 4},
            {"zb_v", 2, 2, 4},        {"gpipe", 3, 1, 3},       {"interleaved", 3, 3, 3},
            {"zb_v", 4, 2, 7},        {"gpipe", 2, 3, 4},       {"zb_h1", 4, 1, 8}};
enum { BASES = sizeof base / sizeof *base };

static struct mc_sched *bundled(int b)
{
    static struct loaded x;
    char set[300];
    const char *sets[1] = {set};
    struct mc_sched *s = NULL;
    snprintf(set, sizeof set, "parallel.schedule=%s", base[b].name);
    load_file(&x, MC_SOURCE_HOME "/recipes/tiny_llama.lua", sets, 1);
    assert_int_equal(x.st, MC_OK);
    const struct mc_sched_ask ask = {
        .ranks = base[b].p, .chunks = base[b].v, .microbatches = base[b].m};
    assert_int_equal(mc_lua_schedule(&x.l, &ask, &s, NULL), MC_OK);
    mc_lua_loaded_fini(&x.l);
    mc_problems_fini(&x.problems);
    return s;
}

struct lists {
    int64_t n[RANKS];
    struct mc_sched_rec rec[RANKS][RECORDS];
    int place[STAGES];
};
static void swap(struct mc_sched_rec *a, struct mc_sched_rec *b)
{
    struct mc_sched_rec t = *a;
    *a = *b;
    *b = t;
}
static void insert(struct lists *x, int r, int at, struct mc_sched_rec rec)
{
    memmove(&x->rec[r][at + 1], &x->rec[r][at], (size_t)(x->n[r] - at) * sizeof rec);
    x->rec[r][at] = rec;
    x->n[r]++;
}
static void drop(struct lists *x, int r, int at)
{
    memmove(&x->rec[r][at], &x->rec[r][at + 1], (size_t)(x->n[r] - at - 1) * sizeof x->rec[r][0]);
    x->n[r]--;
}

static void edit(struct lists *x, const struct mc_sched *s)
{
    int p = s->ranks, r = any(p), n = (int)x->n[r], i = any(n), j = any(n), q = any(p);
    struct mc_sched_rec *rec = &x->rec[r][i], was = *rec;
    switch (any(24)) {
    case 0: /* names of things, there or not */
        rec->mb = any(s->microbatches + 2) - 1;
        break;
    case 1:
        rec->chunk = (int16_t)(any(s->chunks + 2) - 1);
        break;
    case 2:
        rec->op = (int8_t)(any(6) - 1);
        break;
    case 3:
        if (n > 1)
            drop(x, r, i);
        break;
    case 4:
        insert(x, r, j, was);
        break;
    case 5:
        x->place[any(mc_sched_stages(s))] = any(mc_sched_stages(s) + 1);
        break;
    case 6: { /* two stages change places */
        int a = any(mc_sched_stages(s)), b = any(mc_sched_stages(s)), t = x->place[a];
        x->place[a] = x->place[b];
        x->place[b] = t;
        break;
    }
    case 7: /* to another rank */
        if (n > 1) {
            drop(x, r, i);
            insert(x, q, any((int)x->n[q]), was);
        }
        break;
    case 8: /* B into I and W, the W anywhere after */
        if (was.op == MC_SCHED_B) {
            rec->op = MC_SCHED_I;
            insert(x, r, i + 1 + any(n - i), (struct mc_sched_rec){was.mb, was.chunk, MC_SCHED_W});
        }
        break;
    case 9: /* anywhere else */
        drop(x, r, i);
        insert(x, r, j, was);
        break;
    case 10:
        swap(rec, &x->rec[r][j]);
        break;
    default: /* neighbours: most of what is sound */
        if (i + 1 < n)
            swap(rec, rec + 1);
    }
}

static struct mc_sched *edited(const struct mc_sched *from, int edits)
{
    static struct lists x;
    struct mc_sched *s;
    for (int r = 0; r < from->ranks; r++) {
        x.n[r] = from->first[r + 1] - from->first[r];
        memcpy(x.rec[r], &from->rec[from->first[r]], (size_t)x.n[r] * sizeof x.rec[r][0]);
    }
    memcpy(x.place, from->place, (size_t)mc_sched_stages(from) * sizeof *x.place);
    while (edits-- > 0)
        edit(&x, from);
    assert_int_equal(
        mc_sched_create("edited", from->ranks, from->chunks, from->microbatches, x.n, &s, NULL),
        MC_OK);
    for (int r = 0; r < s->ranks; r++)
        memcpy(&s->rec[s->first[r]], x.rec[r], (size_t)x.n[r] * sizeof x.rec[r][0]);
    memcpy(s->place, x.place, (size_t)mc_sched_stages(s) * sizeof *x.place);
    return s;
}

static void print_records(const struct mc_sched *s)
{
    for (int r = 0; r < s->ranks; r++) {
        print_message("rank %d:", r);
        for (int64_t k = s->first[r]; k < s->first[r + 1]; k++)
            print_message(" %s%d'%d", mc_sched_op_name(s->rec[k].op), s->rec[k].mb,
                          s->rec[k].chunk);
        print_message("\n");
    }
}

/* What a refusal says, by the points of verify.c; each must come up. */
static const char *const words[] = {
    "place puts", "is none of",          "chunks are",     "microbatches are",
    "does again", "never does",          "its forward",    "gradient that it needs",
    "ascending",  "both must go in one", "the ranks lock", "memory allows"};
enum { LOCK = 10, WORDS = sizeof words / sizeof *words };

static void edited_schedules_are_judged_as_the_machine_does(void **state)
{
    (void)state;
    struct mc_sched *good[BASES];
    int seen[WORDS] = {0}, accepted = 0, changed = 0;
    int rounds = getenv("MC_TEST_LONG") ? 1000000 : 60000;
    for (int b = 0; b < BASES; b++) {
        good[b] = bundled(b);
        assert_int_equal(judge(good[b], 8, NULL), RUNS);
    }
    for (int round = 0; round < rounds; round++) {
        const struct mc_sched *from = good[round % BASES];
        struct mc_sched *s = edited(from, 1 + any(1 + any(5)));
        int64_t room[RANKS];
        struct mc_err err = {0};
        struct mc_sched_limits lim = {.depth = 1 + any(4)};
        for (int r = 0; r < s->ranks; r++)
            room[r] = 1 + any(2 * mc_sched_stages(s));
        if (any(4) == 0)
            lim.alive = room;
        mc_status st = mc_sched_verify(s, &lim, NULL, NULL, &err);
        enum end is = judge(s, lim.depth, lim.alive);
        int why = WORDS;
        for (int w = 0; w < WORDS && st != MC_OK; w++)
            if (strstr(err.msg, words[w]))
                why = w;
        int fits = is != RUNS && why < WORDS;
        if (st == MC_OK)
            fits = is == RUNS;
        else if (why == LOCK) /* or memory runs out before that */
            fits = is == LOCKS || (lim.alive && is == WRONG);
        if (!fits) {
            print_records(s);
            fail_msg("%s with depth %d: the verifier says \"%s\", the machine %s",
                     base[round % BASES].name, lim.depth, st == MC_OK ? "sound" : err.msg,
                     is == RUNS    ? "runs it to the right end"
                     : is == LOCKS ? "stands still"
                                   : "computes something wrong");
        }
        accepted += st == MC_OK;
        changed += st == MC_OK &&
                   (s->first[s->ranks] != from->first[s->ranks] ||
                    memcmp(s->rec, from->rec, (size_t)s->first[s->ranks] * sizeof *s->rec) != 0);
        if (st != MC_OK)
            seen[why]++;
        mc_sched_destroy(s);
    }
    print_message("%d accepted, %d of them no bundled one; refused:\n", accepted, changed);
    for (int w = 0; w < WORDS; w++) {
        print_message("  %6d  %s\n", seen[w], words[w]);
        assert_true(seen[w] > rounds / 1000);
    }
    assert_true(changed > rounds / 20);
    for (int b = 0; b < BASES; b++)
        mc_sched_destroy(good[b]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edited_schedules_are_judged_as_the_machine_does),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
