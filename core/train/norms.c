/* norms.c - gradient and activation norms of every layer, on the steps that log them. Floor 6
 * (train).
 *
 * norms.jsonl, one object a logged step:
 *     step, segment
 *     grad_norm  {stem, layers: [..], head}   L2 norm of the gradients of all parameters there, of
 *                the global batch, before clipping; a tied head's are the stem's
 *     act_rms    {stem, layers: [..]}         root of the mean square of the residual stream as the
 *                stem, or the block, gives it, over all tokens of the global batch
 * A file of its own: at 96 layers a line has some 4 KB, while lines of metrics.jsonl stay flat and
 * short for whoever reads them as a table, and wait in a fixed backlog when the disk refuses.
 *
 * I1  Gradients: the fp64 partial sums that the gradient norm was made of (core/optim), put
 *     together by layer; no pass over memory is added. Activations: graph_gauge.c.
 * I2  They are a function of the step alone: a replayed step writes the same numbers. A pipeline's
 *     schedule may run forwards in any order: microbatches are summed apart, and added in ascending
 *     order when all have run.
 * I3  A line is whole or absent. One that the disk refuses is told and dropped: unlike metrics, no
 *     checkpoint waits for it.
 * I4  A step without a valid token has no norms and no line. No allocation after open.
 *
 * Memory: owned by struct mc_norms. Threads: the trainer's. */
#include "train_int.h"
#include "../base/sysio.h"
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NUMBER = 32 }; /* bytes of a number and its comma, at most */

mc_status mc_norms_open(struct mc_norms *n, const struct mc_recipe *r, int microbatches,
                        const char *path, struct mc_err *err)
{
    int64_t size, end;
    memset(n, 0, sizeof *n);
    n->fd = -1;
    n->every = r->log_norms;
    n->nlayers = (int)r->model.layers;
    if (n->every == 0)
        return MC_OK;
    size_t places = (size_t)n->nlayers + 2;
    n->cap = 2 * places * NUMBER + 256;
    n->line = mc_alloc(n->cap, "line of norms");
    n->sum = mc_alloc((3 + (size_t)microbatches) * places * sizeof *n->sum, "norms");
    if (!n->line || !n->sum)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the norms of %d layers", n->nlayers);
    n->act = n->sum + places;
    n->grad = n->act + places;
    n->of = microbatches > 0 ? n->grad + places : NULL;
    if (!path)
        return MC_OK;
    if (snprintf(n->path, sizeof n->path, "%s", path) >= (int)sizeof n->path)
        return mc_err_set(err, MC_E_USAGE, "%s: path too long", path);
    MC_TRY(mc_sys_open(path, O_RDWR | O_CREAT | O_APPEND, 0644, &n->fd, err));
    MC_TRY(mc_sys_file_size(path, &size, err));
    MC_TRY(mc_sys_whole_lines(n->fd, path, size, &end, err));
    if (end < size) /* I3: a line that a crash cut short */
        MC_TRY(mc_sys_ftruncate(n->fd, end, path, err));
    n->size = end;
    return MC_OK;
}

void mc_norms_close(struct mc_norms *n)
{
    if (n->line && n->fd >= 0)
        mc_sys_close(n->fd, n->path, NULL);
    mc_free(n->line);
    mc_free(n->sum);
    memset(n, 0, sizeof *n);
}

void mc_norms_begin(struct mc_norms *n, struct mc_graph *g, int64_t step, int64_t valid)
{
    n->due = n->every > 0 && step % n->every == 0 && valid > 0; /* I4 */
    if (n->due)
        memset(n->sum, 0, (size_t)(n->nlayers + 1) * sizeof *n->sum);
    mc_graph_gauge(g, n->due ? n->sum : NULL);
}

void mc_norms_microbatch(struct mc_norms *n, struct mc_graph *g, int64_t mb)
{
    if (!n->due)
        return;
    mc_graph_gauge(g, n->of + mb * (n->nlayers + 1));
}

void mc_norms_microbatches(struct mc_norms *n, int64_t count)
{
    size_t places = (size_t)n->nlayers + 1;
    if (!n->due)
        return;
    for (size_t i = 0; i < (size_t)count * places; i++) { /* I2 */
        n->sum[i % places] += n->of[i];
        n->of[i] = 0;
    }
}

void mc_norms_judge(struct mc_norms *n, const struct mc_optim *o, const double *parts,
                    int64_t elements)
{
    if (!n->due)
        return;
    mc_optim_layer_norms(o, parts, n->grad); /* I1 */
    for (int i = 0; i <= n->nlayers; i++)
        n->act[i] = sqrt(n->sum[i] / (double)elements);
}

static void write_places(struct mc_json *j, const char *key, const double *x, int layers,
                         const double *head)
{
    mc_json_open(j, key, '{');
    mc_json_f64(j, "stem", x[0]);
    mc_json_open(j, "layers", '[');
    for (int l = 0; l < layers; l++)
        mc_json_f64(j, NULL, x[1 + l]);
    mc_json_close(j, ']');
    if (head)
        mc_json_f64(j, "head", *head);
    mc_json_close(j, '}');
}

void mc_norms_write(struct mc_norms *n, int64_t step, int segment)
{
    struct mc_json j;
    struct mc_err why = {0};
    if (!n->due || n->fd < 0)
        return;
    mc_json_init_fixed(&j, n->line, n->cap - 1);
    mc_json_open(&j, NULL, '{');
    mc_json_i64(&j, "step", step);
    mc_json_i64(&j, "segment", segment);
    write_places(&j, "grad_norm", n->grad, n->nlayers, &n->grad[n->nlayers + 1]);
    write_places(&j, "act_rms", n->act, n->nlayers, NULL);
    mc_json_close(&j, '}');
    MC_ASSERT(!j.failed);
    n->line[j.len] = '\n';
    if (mc_sys_append(n->fd, n->line, j.len + 1, n->path, &why) == MC_OK) {
        n->size += (int64_t)j.len + 1;
        n->warned = 0;
        return;
    }
    mc_sys_ftruncate(n->fd, n->size, n->path, NULL); /* I3 */
    if (!n->warned)
        mc_log(MC_LOG_ERROR, "%s; norms of such steps are not kept", why.msg);
    n->warned = 1;
}

/* "layer grad norm: 1.2E-02 (layer 7) to 3.1E-01 (layer 0) | layer act rms: ... |" */
static int extremes(const double *x, int layers, const char *what, char *dst, size_t cap)
{
    int lo = 0, hi = 0;
    for (int l = 1; l < layers; l++) {
        lo = x[1 + l] < x[1 + lo] ? l : lo;
        hi = !(x[1 + l] <= x[1 + hi]) ? l : hi; /* a NaN is the largest */
    }
    return snprintf(dst, cap, " %s: %.2E (layer %d) to %.2E (layer %d) |", what, x[1 + lo], lo,
                    x[1 + hi], hi);
}

void mc_norms_short(const struct mc_norms *n, char *dst, size_t cap)
{
    dst[0] = '\0';
    if (!n->due)
        return;
    int k = extremes(n->grad, n->nlayers, "layer grad norm", dst, cap);
    if (k > 0 && (size_t)k < cap)
        extremes(n->act, n->nlayers, "layer act rms", dst + k, cap - (size_t)k);
}
