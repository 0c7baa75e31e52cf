/* profile.c - `--profile`: where the time of a segment's steps goes, told at its end. Floor 6
 * (train).
 *
 * The rows are those of the training graph (an op and verb each) and the parts of a step around it;
 * together they are the whole of the steps. A row's share of the ceiling is the time that its
 * operations would take at the rate of a large product, or its bytes at the rate of memory,
 * whichever is longer, over the time it took: above 1 where data were still in a cache. Both rates
 * are measured at the end, on the same pool.
 *
 * segments/NNN/profile.json: {"steps":..,"seconds":..,"gemm_gflops":..,"memory_gb_per_s":..,"rows":
 * [{"what":..,"verb":..,"calls":..,"seconds":..,"share":..,"flops":..,"bytes":..,
 * "of_ceiling":..}]}; flops, bytes and of_ceiling are null where they mean nothing.
 *
 * Of several ranks the first one's steps are told; its rates are measured when the others are done.
 *
 * I1  Without the option there is no profile, and no clock is read for one.
 * I2  The measuring at the end takes memory of its own and gives it back.
 * Memory: handle life. Threads: the trainer's; kernels use the pool. */
#include "train_int.h"
#include "../base/sysio.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const names[MC_NPARTS] = {"data, gradients cleared",
                                             "microbatches",
                                             "gradients summed, norm",
                                             "optimizer",
                                             "metrics",
                                             "evaluation",
                                             "checkpoint"};

struct mc_profile {
    struct mc_graph_profile graph;
    struct {
        int64_t calls, ns;
    } part[MC_NPARTS];
    double gemm, memory; /* FLOP/s, bytes/s */
};

mc_status mc_profile_begin(struct mc_trainer *t, struct mc_err *err)
{
    if (!t->cfg->profile || t->cfg->rank != 0) /* I1 */
        return MC_OK;
    t->profile = mc_alloc(sizeof *t->profile, "profile");
    if (!t->profile)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the profile");
    mc_graph_set_profile(t->graphs.train, &t->profile->graph);
    return MC_OK;
}

int64_t mc_profile_part(struct mc_trainer *t, enum mc_part part, int64_t since)
{
    if (!t->profile)
        return 0;
    int64_t now = mc_clock_ns();
    if (part < MC_NPARTS) {
        t->profile->part[part].calls++;
        t->profile->part[part].ns += now - since;
    }
    return now;
}

/* -- The ceilings ----------------------------------------------------------------------------- */

#define EDGE 1024 /* of a product: 2 GFLOP */
#define STREAM                                                                                     \
    ((int64_t)8 << 20) /* elements of each of AdamW's four operands: beyond the caches             \
                        */
#define TRIES 5

static double best_seconds(struct mc_trainer *t, void *buf, int memory)
{
    const struct mc_kern_ops *k = t->kern->wide;
    size_t elem = mc_dtype_size(k->dtype);
    char *p = buf;
    struct mc_gemm g = {.m = EDGE, .n = EDGE, .k = EDGE, .tb = 1, .alpha = 1};
    g.lda = g.ldb = g.ldc = EDGE;
    g.a = p, g.b = p + elem * EDGE * EDGE, g.c = p + 2 * elem * EDGE * EDGE;
    struct mc_adamw a = {.n = STREAM, .gscale = 1, .eps = 1e-8, .bias1 = 1, .bias2 = 1};
    a.w = p, a.m = p + elem * STREAM, a.v = p + 2 * elem * STREAM, a.g = p + 3 * elem * STREAM;
    double best = INFINITY;
    for (int i = 0; i < TRIES; i++) {
        int64_t t0 = mc_clock_ns();
        if (memory)
            k->adamw(t->pool, &a);
        else
            k->gemm(t->pool, &g);
        double s = (double)(mc_clock_ns() - t0) * 1e-9;
        best = s < best ? s : best;
    }
    return best;
}

static mc_status measure(struct mc_trainer *t, struct mc_err *err)
{
    struct mc_profile *p = t->profile;
    size_t bytes = 4 * (size_t)STREAM * mc_dtype_size(t->kern->wide->dtype);
    struct mc_arena arena; /* I2 */
    MC_TRY(mc_arena_init(&arena, "profile", bytes, err));
    void *buf = mc_arena_take(&arena, bytes);
    memset(buf, 0, bytes);
    p->gemm = 2.0 * EDGE * EDGE * EDGE / best_seconds(t, buf, 0);
    p->memory = 7.0 / 4 * (double)bytes / best_seconds(t, buf, 1); /* 4 read, 3 written */
    mc_arena_fini(&arena);
    return MC_OK;
}

/* -- The table -------------------------------------------------------------------------------- */

struct line { /* one row of the answer; bytes < 0: not known */
    const char *what, *verb;
    int64_t calls, ns;
    double flops, bytes;
};

static void tell(const struct mc_trainer *t, const struct line *r, double all, struct mc_json *j)
{
    const struct mc_profile *p = t->profile;
    double s = (double)r->ns * 1e-9, ceiling = NAN;
    if (r->bytes >= 0)
        ceiling = fmax(r->flops / p->gemm, r->bytes / p->memory) / s;
    mc_json_open(j, NULL, '{');
    mc_json_str(j, "what", r->what);
    mc_json_str(j, "verb", r->verb);
    mc_json_i64(j, "calls", r->calls);
    mc_json_f64(j, "seconds", s);
    mc_json_f64(j, "share", s / all);
    mc_json_f64(j, "flops", r->bytes >= 0 ? r->flops : NAN);
    mc_json_f64(j, "bytes", r->bytes >= 0 ? r->bytes : NAN);
    mc_json_f64(j, "of_ceiling", ceiling);
    mc_json_close(j, '}');
    if (t->cfg->quiet)
        return;
    char name[64], rate[64] = "";
    snprintf(name, sizeof name, "%s%s%s", r->what, *r->verb ? ", " : "", r->verb);
    if (r->bytes >= 0)
        snprintf(rate, sizeof rate, "%9.1f %9.2f %8.1f %7.1f %6.0f", r->flops * 1e-9,
                 r->bytes * 1e-9, r->flops / s * 1e-9, r->bytes / s * 1e-9, 100 * ceiling);
    mc_log(MC_LOG_INFO, "%-34s %8lld %10.1f %6.1f %s", name, (long long)r->calls, s * 1e3,
           100 * s / all, rate);
}

static void tell_all(const struct mc_trainer *t, struct mc_json *j)
{
    const struct mc_profile *p = t->profile;
    int64_t ns = 0, inside = 0;
    for (int i = 0; i < MC_NPARTS; i++)
        ns += p->part[i].ns;
    for (int i = 0; i < p->graph.n; i++)
        inside += p->graph.row[i].ns;
    double all = (double)ns * 1e-9, weights = 0;
    for (int i = 0; i < mc_graph_nparams(t->graphs.train); i++)
        weights += (double)mc_graph_param(t->graphs.train, i)->count;
    weights *= (double)mc_dtype_size(t->kern->wide->dtype);
    mc_json_open(j, NULL, '{');
    mc_json_i64(j, "steps", t->segment_steps);
    mc_json_f64(j, "seconds", all);
    mc_json_f64(j, "gemm_gflops", p->gemm * 1e-9);
    mc_json_f64(j, "memory_gb_per_s", p->memory * 1e-9);
    mc_json_open(j, "rows", '[');
    if (!t->cfg->quiet) {
        mc_log(MC_LOG_INFO,
               "profile of %lld steps%s, %.3f s; a product reaches %.1f GFLOP/s, memory %.1f GB/s",
               (long long)t->segment_steps, t->cfg->nranks > 1 ? " of rank 0" : "", all,
               p->gemm * 1e-9, p->memory * 1e-9);
        mc_log(MC_LOG_INFO, "%-34s %8s %10s %6s %9s %9s %8s %7s %6s", "", "calls", "ms", "%",
               "GFLOP", "GB", "GFLOP/s", "GB/s", "ceil %");
    }
    for (int i = 0; i < p->graph.n; i++) {
        const struct mc_profile_row *r = &p->graph.row[i];
        tell(t, &(struct line){r->op, r->verb, r->calls, r->ns, r->flops, r->bytes}, all, j);
    }
    for (int i = 0; i < MC_NPARTS; i++) {
        struct line r = {names[i], "", p->part[i].calls, p->part[i].ns, 0, -1};
        if (i == MC_PART_MICROBATCHES) {
            r.what = "between ops";
            r.ns -= inside + t->piped.waited_ns;
        } else if (i == MC_PART_OPTIMIZER) {
            r.bytes = 7 * weights * (double)r.calls;
        }
        if (r.calls > 0)
            tell(t, &r, all, j);
        if (i == MC_PART_MICROBATCHES && t->piped.ops > 0)
            tell(t,
                 &(struct line){"waits in the pipeline", "", t->piped.ops, t->piped.waited_ns, 0,
                                -1},
                 all, j);
    }
    mc_json_close(j, ']');
    mc_json_close(j, '}');
}

mc_status mc_profile_end(struct mc_trainer *t, struct mc_err *err)
{
    char path[1200];
    struct mc_json j;
    if (!t->profile || t->segment_steps == 0)
        return MC_OK;
    mc_graph_set_profile(t->graphs.train, NULL);
    MC_TRY(measure(t, err));
    mc_json_init_grow(&j);
    tell_all(t, &j);
    mc_status st =
        j.failed ? mc_err_set(err, MC_E_NOMEM, "no memory for the profile's text") : MC_OK;
    if (st == MC_OK)
        st = mc_rundir_segment_file(t->cfg->rd, t->cfg->rd->segment, "profile.json", path, err);
    if (st == MC_OK)
        st = mc_sys_replace_file(path, j.buf, j.len, err);
    mc_json_fini(&j);
    return st;
}

void mc_profile_destroy(struct mc_trainer *t)
{
    mc_free(t->profile);
    t->profile = NULL;
}
