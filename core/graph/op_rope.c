/* op_rope.c - rotary positions: their frequencies, and the op that turns heads by them.
 *
 * rope  x (M, H*D) -> y: of each head's first R columns (rotary_dim, all D by default) pair i is
 * turned by position * f_i, i = 0 .. R/2 - 1; the others pass. layout "half": pair (i, i + R/2);
 * "interleaved": pair (2i, 2i + 1). f_i follows from b_i = theta^(-2i/R) (RoFormer, Su et al. 2021)
 * and the scaling, with w_i = 2 pi / b_i its wavelength in positions and L = original_max, the
 * length that the frequencies were trained for:
 *
 *   none    f = b
 *   linear  f = b / factor                      (position interpolation, Chen et al. 2023)
 *   llama3  f = b where w < L / high_freq_factor; b / factor where w > L / low_freq_factor;
 *           between: (1 - s) b / factor + s b, s = (L / w - low) / (high - low)
 *                                               (Llama 3.1's released code; defaults 1 and 4)
 *   yarn    f = r b / factor + (1 - r) b, r = clamp((i - lo) / (hi - lo), 0, 1), where
 *           n(t) = R ln(L / (2 pi t)) / (2 ln theta) is the pair that turns t times in L positions,
 *           lo = max(floor n(beta_fast), 0), hi = min(ceil n(beta_slow), R - 1), hi = lo + 0.001
 *           where they are equal; cos and sin times attention_factor, 0.1 ln(factor) + 1 by default
 *                                               (YaRN, Peng et al. 2023; defaults 32 and 1)
 *
 * I1  Frequencies and angles are fp64, rounded once, in the table: no step computes them.
 * I2  An attribute that the scaling does not use is refused, not ignored.
 * I3  The factor on cos and sin is in the table: backward is the inverse turn times it, the
 *     transpose.
 * Memory: none. Threads: the one that builds or runs the graph; the kernel uses the pool. */
#include <math.h>
#include <string.h>
#include "graph_int.h"

enum { /* attr; MC_OPF_TABLE reads all but HEAD_DIM and PAIRS */
       THETA = MC_ROPE_THETA,
       HEAD_DIM = MC_ROPE_HEAD_DIM,
       TURNED = MC_ROPE_TURNED,
       PAIRS = MC_ROPE_PAIRS,
       SCALING,
       FACTOR,
       ORIGINAL,
       LOW,  /* low_freq_factor; yarn: lo */
       HIGH, /* high_freq_factor; yarn: hi */
       AMPLITUDE
};
enum { NONE, LINEAR, LLAMA3, YARN };

static const struct scaling {
    const char *word;
    const char *uses[5]; /* attributes beyond the plain ones; the first `needs` have no default */
    int needs;
} scalings[] = {
    [NONE] = {"none", {NULL}, 0},
    [LINEAR] = {"linear", {"factor"}, 1},
    [LLAMA3] = {"llama3", {"factor", "original_max", "low_freq_factor", "high_freq_factor"}, 2},
    [YARN] = {"yarn", {"factor", "original_max", "beta_fast", "beta_slow", "attention_factor"}, 2},
};
static const char *const of_scalings[] = {"factor",           "original_max", "low_freq_factor",
                                          "high_freq_factor", "beta_fast",    "beta_slow",
                                          "attention_factor"};

/* -- Frequencies ------------------------------------------------------------------------------ */

/* The pair, a real number, that turns `turns` times in L positions. */
static double pair_of(double turns, double rotary, double original, double theta)
{
    return rotary * log(original / (turns * 2 * M_PI)) / (2 * log(theta));
}

double mc_rope_frequency(const double *attr, int64_t i)
{
    double b = pow(attr[THETA], -2.0 * (double)i / attr[TURNED]), wave = 2 * M_PI / b, s;
    switch ((int)attr[SCALING]) {
    case LINEAR:
        return b / attr[FACTOR];
    case LLAMA3:
        if (wave < attr[ORIGINAL] / attr[HIGH])
            return b;
        if (wave > attr[ORIGINAL] / attr[LOW])
            return b / attr[FACTOR];
        s = (attr[ORIGINAL] / wave - attr[LOW]) / (attr[HIGH] - attr[LOW]);
        return (1 - s) * b / attr[FACTOR] + s * b;
    case YARN:
        s = fmin(fmax(((double)i - attr[LOW]) / (attr[HIGH] - attr[LOW]), 0), 1);
        return s * b / attr[FACTOR] + (1 - s) * b;
    default:
        return b;
    }
}

double mc_rope_amplitude(const double *attr)
{
    return attr[AMPLITUDE];
}

/* -- infer ------------------------------------------------------------------------------------ */

static mc_status scaling_kind(const struct mc_call *c, int *kind, struct mc_err *err)
{
    const char *word = mc_call_str(c, "scaling", "none");
    const struct scaling *k;
    for (*kind = NONE; *kind <= YARN && strcmp(word, scalings[*kind].word) != 0;)
        ++*kind;
    if (*kind > YARN)
        return mc_err_set(err, MC_E_RECIPE,
                          "scaling is \"%s\"; it is \"none\", \"linear\", \"llama3\" or \"yarn\"",
                          word);
    k = &scalings[*kind];
    for (int i = 0; i < k->needs; i++)
        if (!mc_call_attr(c, k->uses[i]))
            return mc_err_set(err, MC_E_RECIPE, "scaling \"%s\" needs %s", word, k->uses[i]);
    for (size_t i = 0; i < sizeof of_scalings / sizeof *of_scalings; i++) {
        int used = 0;
        for (int j = 0; j < 5 && k->uses[j]; j++)
            used |= strcmp(k->uses[j], of_scalings[i]) == 0;
        if (!used && mc_call_attr(c, of_scalings[i])) /* I2 */
            return mc_err_set(err, MC_E_RECIPE, "scaling \"%s\" does not use %s", word,
                              of_scalings[i]);
    }
    return MC_OK;
}

static mc_status scaling_numbers(struct mc_op_infer *io, struct mc_err *err)
{
    const struct mc_call *c = io->call;
    double *a = io->attr, factor = mc_call_num(c, "factor", 1);
    double original = mc_call_num(c, "original_max", 1);
    int yarn = a[SCALING] == YARN;
    double low = mc_call_num(c, yarn ? "beta_slow" : "low_freq_factor", 1);
    double high = yarn ? mc_call_num(c, "beta_fast", 32) : mc_call_num(c, "high_freq_factor", 4);
    if (!(factor >= 1) || !(original >= 1))
        return mc_err_set(err, MC_E_RECIPE,
                          "factor is %g and original_max %g; both must be at least 1", factor,
                          original);
    if (!(low > 0 && high > low))
        return mc_err_set(err, MC_E_RECIPE, "%s is %g and %s %g; 0 < the first < the second",
                          yarn ? "beta_slow" : "low_freq_factor", low,
                          yarn ? "beta_fast" : "high_freq_factor", high);
    a[FACTOR] = factor;
    a[ORIGINAL] = original;
    a[AMPLITUDE] = 1;
    a[LOW] = low;
    a[HIGH] = high;
    if (!yarn)
        return MC_OK;
    if (a[THETA] == 1)
        return mc_err_set(err, MC_E_RECIPE, "yarn needs a theta other than 1");
    a[LOW] = fmax(floor(pair_of(high, a[TURNED], original, a[THETA])), 0);
    a[HIGH] = fmin(ceil(pair_of(low, a[TURNED], original, a[THETA])), a[TURNED] - 1);
    if (a[LOW] == a[HIGH])
        a[HIGH] += 0.001;
    a[AMPLITUDE] = mc_call_num(c, "attention_factor", 0.1 * log(factor) + 1);
    if (!(a[AMPLITUDE] > 0))
        return mc_err_set(err, MC_E_RECIPE, "attention_factor is %g; it must be above 0",
                          a[AMPLITUDE]);
    return MC_OK;
}

static mc_status rope_infer(struct mc_op_infer *io, struct mc_err *err)
{
    int64_t d, turned, heads;
    int kind = NONE;
    double theta = mc_call_num(io->call, "theta", io->model->theta);
    const char *layout = mc_call_str(io->call, "layout", "half");
    MC_TRY(mc_op_whole_number(io, "head_dim", (double)io->model->head_dim, 1, 65536, &d, err));
    MC_TRY(mc_op_whole_number(io, "rotary_dim", (double)d, 2, d < 2 ? 2 : d, &turned, err));
    if (turned % 2 != 0)
        return mc_err_set(err, MC_E_RECIPE, "%s is %lld; rope turns pairs and needs an even one",
                          turned == d ? "head_dim" : "rotary_dim", (long long)turned);
    if (!(theta > 0))
        return mc_err_set(err, MC_E_RECIPE, "theta is %g; it must be above 0", theta);
    if (strcmp(layout, "half") != 0 && strcmp(layout, "interleaved") != 0)
        return mc_err_set(err, MC_E_RECIPE, "layout is \"%s\"; it is \"half\" or \"interleaved\"",
                          layout);
    MC_TRY(scaling_kind(io->call, &kind, err));
    MC_TRY(mc_op_heads(io, 0, d, "its input", &heads, err));
    io->out[0] = io->want[0];
    io->attr[THETA] = theta;
    io->attr[HEAD_DIM] = (double)d;
    io->attr[TURNED] = (double)turned;
    io->attr[PAIRS] = strcmp(layout, "interleaved") == 0;
    io->attr[SCALING] = kind;
    io->nout = 1;
    return scaling_numbers(io, err);
}

/* -- Verbs ------------------------------------------------------------------------------------ */

static void rope_run(const struct mc_node *n, const struct mc_op_ctx *cx, const struct mc_view *x,
                     const struct mc_view *y, int inverse)
{
    int64_t d = (int64_t)n->attr[HEAD_DIM];
    struct mc_rope r = {.b = cx->e.b,
                        .t = cx->e.t,
                        .heads = x->c / d,
                        .d = d,
                        .pos0 = cx->e.pos0,
                        .cos = n->cos,
                        .sin = n->sin,
                        .x = x->p,
                        .ldx = x->ld,
                        .y = y->p,
                        .ldy = y->ld,
                        .inverse = inverse,
                        .turned = (int64_t)n->attr[TURNED],
                        .interleaved = n->attr[PAIRS] != 0};
    cx->kern->rope(cx->pool, &r);
}

static void rope_forward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    rope_run(n, cx, &n->in[0], &n->out[0], 0);
}

static void rope_backward(const struct mc_node *n, const struct mc_op_ctx *cx)
{
    rope_run(n, cx, &n->d_out[0], &n->d_in[0], 1); /* I3 */
}

static const struct mc_op rope_row = {
    .name = "rope",
    .doc = "turns pairs of each head by position x frequency; frequencies may be scaled",
    .nin_min = 1,
    .nin_max = 1,
    .flags = MC_OPF_INPLACE | MC_OPF_DINPLACE | MC_OPF_TABLE | MC_OPF_TAKES_COLS,
    .infer = rope_infer,
    .forward = rope_forward,
    .backward_input = rope_backward,
    .attrs = {"theta", "head_dim", "rotary_dim", "layout", "scaling", "factor", "original_max",
              "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor"},
    .deterministic = 1};
const struct mc_op *const mc_ops_rope[] = {&rope_row, NULL};
