/* check.c - a recipe against the world it is meant for, before anything is started.
 * Floor 6 (plan). Includes: base, recipe, par, train's memory plan (through the caller's
 * pointer).
 *
 * Order: the layout against the ranks (dp "auto" is resolved first, because the batch needs it),
 * the recipe's own cross-checks, the machine, what this version does not do, data. Memory comes by
 * a call of its own: with a pipeline it depends on the schedule, which is made after all that.
 * I1  All problems come in one run; a later check is left out only where an earlier problem took
 *     its ground away.
 * I2  A key that this version would not follow is refused for training and noted otherwise;
 *     legal no-ops are noted. Nothing is silent.
 * I3  Nothing is started, allocated or written; files are only asked whether they exist.
 * Memory: none. Threads: pure, but for the box that it resolves. */
#include "check.h"
#include "place.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "../base/pool.h"
#include "../base/sysio.h"
#include "../data/tokenizer.h"
#include "../pipe/line.h"
#include "../train/train.h"

enum { MAX_RANKS = 1 << 22 };

struct check {
    struct mc_recipe_box *box;
    struct mc_recipe *r;
    const struct mc_check_cfg *cfg;
    struct mc_problems *problems;
    struct mc_check_notes *notes;
    int world, per_node; /* per_node 0: unknown */
    int laid_out;        /* the layout holds: dp is known */
    int machine;         /* problems that are the machine's alone */
};

static void say(struct check *c, const char *path, const char *hint, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void say(struct check *c, const char *path, const char *hint, const char *fmt, ...)
{
    char text[512], file[256];
    va_list ap;
    int line;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    mc_recipe_where(c->box, path, file, &line);
    mc_problems_add(c->problems, path, file, line, hint, "%s", text);
}

static void note(struct check *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(struct check *c, const char *fmt, ...)
{
    struct mc_check_notes *t = c->notes;
    char text[240];
    va_list ap;

    if (!t)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->note[i], text) == 0)
            return;
    if (t->n == MC_CHECK_NOTES) {
        snprintf(t->note[MC_CHECK_NOTES - 1], sizeof text, "... and more notes");
        return;
    }
    memcpy(t->note[t->n++], text, sizeof text);
}

/* What this version does not do (I2). */
static void refuse(struct check *c, const char *path, const char *hint, const char *what)
{
    if (c->cfg->for_train)
        say(c, path, hint, "%s", what);
    else
        note(c, "%s: %s", path, what);
}

static int given(const struct check *c, const char *path)
{
    const char *o = mc_recipe_origin(c->box, path);

    return o && strncmp(o, "default", 7) != 0;
}

/* ---- Layout --------------------------------------------------------------------------------- */

/* Ranks of the whole job; 0 with a problem said. */
static int64_t world_of(struct check *c, int64_t model_ranks)
{
    const struct mc_check_cfg *cfg = c->cfg;
    const struct mc_cluster_cfg *k = &c->r->cluster;
    int64_t world;

    c->per_node = cfg->per_node > 0 ? cfg->per_node : (int)k->per_node;
    if (cfg->ranks > 0)
        return cfg->ranks;
    if (cfg->nodes > 0 || k->nodes > 0) {
        int64_t nodes = cfg->nodes > 0 ? cfg->nodes : k->nodes;
        if (c->per_node == 0) {
            say(c, "cluster.per_node", "or --per-node",
                "required with %" PRId64 " nodes: ranks of one node", nodes);
            return 0;
        }
        world = nodes * c->per_node;
        if (cfg->nodes == 0)
            note(c, "ranks: %" PRId64 ", from cluster: %" PRId64 " nodes x %d", world, nodes,
                 c->per_node);
        return world;
    }
    world = model_ranks * (c->r->parallel.dp > 0 ? c->r->parallel.dp : 1);
    if (cfg->for_train && world == 1) /* as everybody expects */
        return world;
    if (c->r->parallel.dp == 0)
        note(c,
             "ranks: %" PRId64
             ", as neither --ranks, --nodes nor cluster says otherwise: parallel.dp = 1",
             world);
    else
        note(c, "ranks: %" PRId64 ", from parallel", world);
    return world;
}

static void check_nodes(struct check *c, const struct mc_layout *l)
{
    struct mc_place_counts place;
    struct mc_err why = {0};
    int per_node = c->cfg->for_train ? l->world : c->per_node; /* train: this machine */

    if (per_node == 0 && !c->cfg->node_of)
        return;
    if (mc_place_check(l, c->cfg->node_of, per_node, &place, &why) != MC_OK)
        say(c, "parallel.tp", "", "%s", why.msg);
    else if (l->size[MC_AXIS_PP] > 1 && place.pipelines_of_node > 1)
        note(c, "parallel: a node has ranks of %d pipelines: its loss stops as many",
             place.pipelines_of_node);
}

mc_status mc_check_layout(const struct mc_recipe *r, int world, struct mc_layout *l,
                          struct mc_err *err)
{
    const struct mc_parallel_cfg *p = &r->parallel;
    const int size[MC_NAXES] = {[MC_AXIS_TP] = (int)p->tp,
                                [MC_AXIS_CP] = (int)p->cp,
                                [MC_AXIS_EP] = (int)p->ep,
                                [MC_AXIS_DP] = (int)p->dp,
                                [MC_AXIS_PP] = (int)p->pp};
    int64_t product = p->tp * p->cp * p->ep * p->pp * p->dp; /* each at most 2^22, checked */

    return mc_layout_init(l, p->order, size, world > 0 ? world : (int)product, err);
}

static void check_layout(struct check *c)
{
    struct mc_parallel_cfg *p = &c->r->parallel;
    int64_t model_ranks = 1, world, f[4] = {p->tp, p->cp, p->ep, p->pp};
    struct mc_layout l;
    struct mc_err why = {0};
    char origin[64];

    for (int i = 0; i < 4; i++) {
        if (f[i] > MAX_RANKS / model_ranks) {
            say(c, "parallel", "", "tp x cp x ep x pp is beyond %d ranks", MAX_RANKS);
            return;
        }
        model_ranks *= f[i];
    }
    if (p->dp > MAX_RANKS / model_ranks) {
        say(c, "parallel", "", "tp x cp x ep x dp x pp is beyond %d ranks", MAX_RANKS);
        return;
    }
    world = world_of(c, model_ranks);
    if (world == 0)
        return;
    if (world > MAX_RANKS) {
        say(c, "cluster", "", "%" PRId64 " ranks, at most %d", world, MAX_RANKS);
        return;
    }
    if (mc_check_layout(c->r, (int)world, &l, &why) != MC_OK) {
        say(c, "parallel", "", "%s", why.msg + (strncmp(why.msg, "parallel: ", 10) == 0 ? 10 : 0));
        return;
    }
    c->world = l.world;
    c->laid_out = 1;
    if (p->dp == 0) {
        p->dp = l.size[MC_AXIS_DP];
        snprintf(origin, sizeof origin, "auto: of %d rank%s", l.world, l.world == 1 ? "" : "s");
        mc_recipe_set_origin(c->box, "parallel.dp", origin);
    }
    check_nodes(c, &l);
}

/* ---- The machine and this version ------------------------------------------------------------ */

static void check_numbers(struct check *c)
{
    const struct mc_recipe *r = c->r;

    if (r->device == MC_DEVICE_CUDA)
        refuse(c, "device", "device = \"cpu\"",
               "this build computes on CPUs; \"cuda\" can be checked and planned only");
    if (r->device == MC_DEVICE_CUDA && r->precision == MC_F64)
        say(c, "precision", "", "fp64 is the proof precision of CPUs, not of cuda");
    if (r->checkpoint.weights == MC_WEIGHTS_REBUILD && r->precision != MC_BF16)
        say(c, "checkpoint.weights", "weights = \"store\"",
            "weights are rebuilt from masters at bf16; here they are the masters themselves");
}

static void check_version(struct check *c)
{
    const struct mc_recipe *r = c->r;
    const struct mc_parallel_cfg *p = &r->parallel;

    if (p->ep > 1)
        refuse(c, "parallel.ep", "", "this version has no expert parallel");
    if (p->cp > 1)
        refuse(c, "parallel.cp", "", "this version has no context parallel");
    if (r->checkpoint.async)
        refuse(c, "checkpoint.async", "async = false",
               "this version writes checkpoints while training waits");
    if (r->restart.max > 0)
        refuse(c, "restart.max", "max = \"auto\"",
               "this version does not restart by itself: run the command again with --resume auto");
    if (r->restart.confirm)
        refuse(c, "restart.mode", "mode = \"auto\"",
               "this version does not restart by itself, so there is nothing to confirm");
    for (int i = 0; i < r->nhooks; i++)
        for (int k = 0; k < r->hook[i].nallow; k++) {
            char path[32], what[200];
            if (strcmp(r->hook[i].allow[k], "append:run") == 0)
                continue;
            snprintf(path, sizeof path, "hooks[%d].allow", i + 1);
            snprintf(what, sizeof what,
                     "this version grants hooks only \"append:run\" (\"%.90s\" asked)",
                     r->hook[i].allow[k]);
            refuse(c, path, "", what);
        }
}

/* ---- Legal no-ops, said ---------------------------------------------------------------------- */

static int calls_op(const struct mc_func *f, const char *op)
{
    for (int i = 0; i < f->ncalls; i++)
        if (strcmp(f->call[i].op, op) == 0)
            return 1;
    return 0;
}

static void note_noops(struct check *c)
{
    const struct mc_recipe *r = c->r;
    const struct mc_parallel_cfg *p = &r->parallel;
    const struct mc_model_cfg *m = &r->model;
    int drops = calls_op(&m->stem, "dropout") || calls_op(&m->head, "dropout");

    for (int i = 0; i < m->nblocks; i++)
        drops |= calls_op(&m->block[i], "dropout");
    if (m->dropout > 0 && !drops)
        note(c, "model.dropout has no effect: the model's functions call no dropout");
    if (p->sp && p->tp == 1)
        note(c, "parallel.sp has no effect at tp 1");
    for (int i = 0; i < p->nrecompute_ops; i++)
        if (p->tp == 1 && strcmp(p->recompute_ops[i], MC_RECOMPUTE_GATHER) == 0)
            note(c, "parallel.recompute: \"%s\" has no effect at tp 1", MC_RECOMPUTE_GATHER);
    if (c->laid_out && p->dp == 1 && p->shard_optimizer)
        note(c, "parallel.shard_optimizer has no effect at dp 1");
    if (c->laid_out && p->dp == 1 && (p->overlap_grads || p->overlap_params))
        note(c, "parallel.overlap has no effect at dp 1");
    if (p->pp == 1 && p->chunks > 1)
        note(c, "parallel.chunks has no effect at pp 1");
    if (p->pp == 1 && strcmp(p->stages, "even") != 0)
        note(c, "parallel.stages (%.60s) has no effect at pp 1", p->stages);
    if (p->pad_f + p->pad_i + p->pad_w > 0 && p->pp == 1)
        note(c, "parallel.pad has no effect at pp 1");
    else if (p->pad_f + p->pad_i + p->pad_w > 0)
        note(c,
             "parallel.pad: the run is slowed on purpose: a microbatch takes a rank at least F %g "
             "s, I %g s, W %g s",
             p->pad_f, p->pad_i, p->pad_w);
    if (p->pp == 1 && strcmp(p->schedule, "one_f_one_b") != 0)
        note(c, "parallel.schedule (%.60s) has no effect at pp 1", p->schedule);
    if (r->anomaly.spike_factor == 0 &&
        (given(c, "anomaly.spike") || given(c, "anomaly.spike_window")) &&
        (r->anomaly.spike != MC_ANOMALY_SKIP || r->anomaly.spike_window != 128))
        note(c, "anomaly.spike has no effect: spike_factor is 0");
    if (r->checkpoint.stall_s > 0)
        note(c, "checkpoint.stall is declared for the planner; training does not use it");
    if (r->cluster.mtbf_h > 0)
        note(c, "cluster.mtbf is declared for the planner; training does not use it");
    if (r->batch.function && r->batch.global == 0)
        note(c, "batch.global is a function: its values are checked once it has been evaluated");
}

/* ---- Data ------------------------------------------------------------------------------------ */

static int data_exists(const char *base, const char *path)
{
    static const char *const ends[] = {"", ".bin",
                                       ".idx"}; /* a token file is named without its end */
    char full[2 * MC_PATH], name[MC_PATH + 8];

    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s%s", path, ends[i]);
        if (mc_path_join(full, sizeof full, base, name, NULL) == MC_OK && mc_sys_exists(full))
            return 1;
    }
    return 0;
}

static void check_sources(struct check *c, const char *key, const struct mc_source_cfg *s, int n)
{
    char path[48];

    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s[%d]", key, i + 1);
        if (!data_exists(c->cfg->base_dir, s[i].path))
            say(c, path, "", "no such file or folder: %.200s (from %.200s)", s[i].path,
                c->cfg->base_dir);
    }
}

static void check_data(struct check *c)
{
    const struct mc_data_cfg *d = &c->r->data;

    if (d->required)
        refuse(c, "data.train", "--set data.train=FILE", "the recipe wants a text of yours");
    if (d->declared_tokens > 0)
        refuse(c, "data.train", "--set data.train=FILE",
               "the data is only declared (m.data.declared): such a recipe can be planned, not "
               "trained");
    if (strcmp(d->tokenizer, "bytes") != 0 && !mc_tokenizer_is_file(d->tokenizer) &&
        d->declared_tokens == 0)
        note(c,
             "data.tokenizer \"%.60s\" is kept as a name: give the path of its tokenizer.json, and "
             "its vocabulary, EOS and text are known",
             d->tokenizer);
    if (c->cfg->base_dir) {
        check_sources(c, "data.train", d->train, d->ntrain);
        check_sources(c, "data.valid", d->valid, d->nvalid);
    }
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* MemAvailable of this host, bytes; 0: unknown. */
static int64_t mem_available(void)
{
    char line[256];
    long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");

    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1)
            break;
    fclose(f);
    return (int64_t)kib * 1024;
}

/* The last two are small with most recipes, and said where they are not. */
static void memory_text(const struct mc_train_memory *m, char dst[240])
{
    const struct {
        const char *name;
        size_t bytes;
    } part[] = {{"weights", m->params},
                {"gradients", m->grads + m->extra_grads},
                {"optimizer", m->master + m->optim},
                {"activations", m->activations},
                {"temporary", m->temp},
                {"messages", m->pipe},
                {"data", m->batch + m->tables + m->kv}};
    const size_t always = 5;
    size_t n = 0;
    char b[32];

    mc_units_print_bytes((int64_t)m->total, b);
    n = (size_t)snprintf(dst, 240, "%s (", b);
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++) {
        if (i >= always && part[i].bytes < m->total / 50)
            continue;
        mc_units_print_bytes((int64_t)part[i].bytes, b);
        n += (size_t)snprintf(dst + n, 240 - n, "%s%s %s", i ? ", " : "", part[i].name, b);
    }
    snprintf(dst + n, 240 - n, ")");
}

static int threads_of(const struct check *c)
{
    int here = c->per_node > 0 && c->per_node < c->world ? c->per_node : c->world;
    if (c->cfg->threads > 0)
        return c->cfg->threads;
    return mc_pool_default_threads(c->cfg->for_train ? c->world : here);
}

static int splits(const struct check *c)
{
    return c->cfg->line && mc_line_split(c->cfg->line);
}

static const char *less_memory(const struct check *c)
{
    return splits(c) ? "a smaller batch.micro, or a schedule without I and W"
                     : "a smaller batch.micro, or parallel.recompute = \"block\"";
}

/* Where backward is split, what I computes again is kept for W: a rank of whose microbatches many
 * are between the two gains nothing by recomputation. Asked of the plan, and said. */
static void note_recompute(struct check *c, const struct mc_layout *l,
                           const struct mc_train_memory *m)
{
    struct mc_parallel_cfg *p = &c->r->parallel;
    struct mc_train_memory plain = {0};
    struct mc_err why = {0};
    char with[32], without[32];
    const enum mc_recompute asked = p->recompute;
    if (asked == MC_RECOMPUTE_NONE)
        return;
    p->recompute = MC_RECOMPUTE_NONE;
    mc_status st = c->cfg->memory(c->r, l, c->cfg->line, threads_of(c), &plain, &why);
    p->recompute = asked;
    if (st != MC_OK || plain.total > m->total)
        return;
    mc_units_print_bytes((int64_t)m->total, with);
    mc_units_print_bytes((int64_t)plain.total, without);
    note(c, "parallel.recompute saves no memory here: %s a rank with it, %s without%s", with,
         without, splits(c) ? "; the schedule's I and W keep what it would compute again" : "");
}

static mc_status check_memory(struct check *c, struct mc_err *err)
{
    const struct mc_recipe *r = c->r;
    struct mc_train_memory m = {0};
    struct mc_err why = {0};
    struct mc_layout l;
    int64_t have;
    char need[240], all[300], b[32];
    mc_status st;

    if (!c->cfg->memory || r->batch.global == 0)
        return MC_OK;
    if (r->parallel.cp > 1 || r->parallel.ep > 1) {
        note(c, "memory: not planned for cp and ep in this version");
        return MC_OK;
    }
    MC_TRY(mc_check_layout(r, c->world, &l, err));
    st = c->cfg->memory(r, &l, c->cfg->line, threads_of(c), &m, &why);
    if (st == MC_E_RECIPE || st == MC_E_USAGE) {
        /* The graph's faults are the model's; the optimizer's rules name their own key. */
        say(c, strncmp(why.msg, "optim.", 6) == 0 ? "optim" : "model", "", "%s", why.msg);
        return MC_OK;
    }
    if (st != MC_OK)
        return mc_err_set(err, st, "%s", why.msg);
    if (c->cfg->planned)
        *c->cfg->planned = m;
    memory_text(&m, need);
    note_recompute(c, &l, &m);
    if (r->cluster.mem_bytes > 0 && m.total > (size_t)r->cluster.mem_bytes) {
        mc_units_print_bytes(r->cluster.mem_bytes, b);
        say(c, "cluster.mem", less_memory(c), "one rank needs %s, cluster.mem is %s", need, b);
    }
    have = c->cfg->for_train && r->device == MC_DEVICE_CPU ? mem_available() : 0;
    if (have > 0 && m.total > (size_t)have / (size_t)c->world) {
        if (c->world > 1)
            snprintf(all, sizeof all, "%d ranks need %s each", c->world, need);
        else
            snprintf(all, sizeof all, "needs %s", need);
        mc_units_print_bytes(have, b);
        c->machine++;
        say(c, "batch.micro", less_memory(c), "%s, this machine has %s available", all, b);
    }
    if (!c->cfg->for_train && c->world > 1)
        note(c, "memory of the fullest of %d ranks: %s", c->world, need);
    else if (!c->cfg->for_train) /* training says what it took */
        note(c, "memory of one rank: %s", need);
    return MC_OK;
}

/* The verdict on n problems. */
static mc_status found(const struct check *c, int n, struct mc_err *err)
{
    const struct mc_problems *ps = c->problems;

    return mc_err_set(err, c->machine == n ? MC_E_MACHINE : MC_E_RECIPE, "%s%s%s",
                      ps->n ? ps->p[ps->n - 1].path : "the recipe", ps->n ? ": " : " has problems",
                      ps->n ? ps->p[ps->n - 1].message : "");
}

mc_status mc_check(struct mc_recipe_box *box, const struct mc_check_cfg *cfg,
                   struct mc_problems *problems, struct mc_check_notes *notes, struct mc_err *err)
{
    struct check c = {
        .box = box, .r = mc_recipe_of(box), .cfg = cfg, .problems = problems, .notes = notes};
    int before = problems->said;

    check_layout(&c);
    mc_recipe_cross(box, problems);
    check_numbers(&c);
    check_version(&c);
    note_noops(&c);
    check_data(&c);
    if (problems->said > before)
        return found(&c, problems->said - before, err);
    mc_recipe_resolve_lr(box);
    return MC_OK;
}

mc_status mc_check_memory(struct mc_recipe_box *box, const struct mc_check_cfg *cfg,
                          struct mc_problems *problems, struct mc_check_notes *notes,
                          struct mc_err *err)
{
    struct check c = {
        .box = box, .r = mc_recipe_of(box), .cfg = cfg, .problems = problems, .notes = notes};
    struct mc_layout l;
    int before = problems->said;

    MC_TRY(mc_check_layout(c.r, 0, &l, err));
    c.world = l.world;
    c.per_node = cfg->per_node > 0 ? cfg->per_node : (int)c.r->cluster.per_node;
    MC_TRY(check_memory(&c, err));
    return problems->said > before ? found(&c, problems->said - before, err) : MC_OK;
}
