/* record.c - `--record STEP` and `--trace STEP`: one step of this rank, op by op, as lines of a
 * file. Floor 6 (train).
 *
 * segments/NNN/record-STEP.RANK.jsonl: what each op gave, as a sketch (tensor/sketch.h).
 * segments/NNN/trace-STEP.RANK.jsonl: when each op and transfer began and ended, milliseconds from
 * the end of the step's first exchange, which all ranks leave at about the same time. Apart,
 * because sketching takes time that the trace must not show. Each line is an object, by `at`:
 *   "head"   step rank ranks tp dp  coord {tp dp}  stages (a hash of the pipeline's cut and map)
 *            precision micro first own samples
 *   "data"   mb n what k SKETCH                            what: "tokens", "targets"
 *   "pipe"   op chunk stage mb first begin wait input end  of a trace, with a pipeline: an op of
 * the schedule; mb: which microbatch, from 0; first: its first sample; wait: what of it was spent
 * waiting, input: at its begin (core/pipe/exec.h); milliseconds "op"     mb n name op verb layer
 * nth tick, then of a record what k counts partial SKETCH (one line each), of a trace comm begin
 * end "grad"   what SKETCH       a parameter's gradient, summed over ranks: the part owned here
 *   "state"  what SKETCH       model/NAME, adam_m/NAME ... after the update: the part owned here
 *   "span"   kind bucket begin wait end                    a transfer, or the last backward
 *   "end"    loss grad_norm update                         without it the file is not whole
 * SKETCH: count nonfinite sum squares max p[8] hash (16 hex digits). mb: the first sample of the
 * microbatch, counted over the run; n: its samples. What each member of "op" means, and how ranks'
 * shares add up: graph/graph_record.c.
 *
 * I1  Nothing but a comparison a step when neither was asked for; no bit of the run changes.
 * I2  Failing to write is told once and ends nothing; the file is then without its end.
 * I3  The step allocates nothing: one buffer, made at the start.
 * Memory: handle life. Threads: the trainer's. */
#include "train_int.h"
#include "../base/hash.h"
#include "../base/sysio.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

enum { BUFFER = 256 * 1024, LINE = 4096 };
struct mc_recorder {
    struct mc_graph_record hook;
    int fd, sketch, done[2]; /* [sketch] */
    int64_t zero_ns, mb, n;
    size_t used;
    char path[1100], buf[BUFFER];
};

static void give_up(struct mc_recorder *r, const struct mc_err *why)
{
    mc_log(MC_LOG_WARN, "%s is not whole: %s", r->path, why->msg); /* I2 */
    (void)mc_sys_close(r->fd, r->path, NULL);
    r->fd = -1;
}

static void flush(struct mc_recorder *r)
{
    struct mc_err why = {0};
    if (r->fd >= 0 && r->used > 0 &&
        mc_sys_write_all(r->fd, r->buf, r->used, r->path, &why) != MC_OK)
        give_up(r, &why);
    r->used = 0;
}

/* A line begins in the buffer, and ends there. */
static void open_line(struct mc_recorder *r, struct mc_json *j, const char *at)
{
    if (r->used + LINE > BUFFER)
        flush(r);
    mc_json_init_fixed(j, r->buf + r->used, LINE - 1);
    mc_json_open(j, NULL, '{');
    mc_json_str(j, "at", at);
}

static void close_line(struct mc_recorder *r, struct mc_json *j)
{
    mc_json_close(j, '}');
    MC_ASSERT(!j->failed);
    r->used += j->len;
    r->buf[r->used++] = '\n';
}

static void sketch(struct mc_json *j, const struct mc_sketch *s)
{
    char hex[17];
    mc_hash_hex(s->hash, hex);
    mc_json_i64(j, "count", s->count);
    mc_json_i64(j, "nonfinite", s->nonfinite);
    mc_json_f64(j, "sum", s->sum);
    mc_json_f64(j, "squares", s->squares);
    mc_json_f64(j, "max", s->max);
    mc_json_open(j, "p", '[');
    for (int k = 0; k < MC_SKETCH; k++)
        mc_json_f64(j, NULL, s->p[k]);
    mc_json_close(j, ']');
    mc_json_str(j, "hash", hex);
}

static double ms(const struct mc_recorder *r, int64_t ns)
{
    return (double)(ns - r->zero_ns) * 1e-6;
}

static void open_op(struct mc_recorder *r, struct mc_json *j, const struct mc_graph_note *n)
{
    open_line(r, j, "op");
    mc_json_i64(j, "mb", r->mb);
    mc_json_i64(j, "n", r->n);
    mc_json_str(j, "name", n->name);
    mc_json_str(j, "op", n->op);
    mc_json_str(j, "verb", n->verb);
    mc_json_i64(j, "layer", n->layer);
    mc_json_i64(j, "nth", n->nth);
    mc_json_i64(j, "tick", n->tick);
}

static void on_op(void *arg, const struct mc_graph_note *n)
{
    struct mc_recorder *r = arg;
    struct mc_json j;
    if (!r->sketch) {
        open_op(r, &j, n);
        mc_json_bool(&j, "comm", n->comm);
        mc_json_f64(&j, "begin", ms(r, n->begin_ns));
        mc_json_f64(&j, "end", ms(r, n->end_ns));
        close_line(r, &j);
    }
    for (int k = 0; k < n->ntold; k++) {
        open_op(r, &j, n);
        mc_json_str(&j, "what", n->told[k].what);
        mc_json_i64(&j, "k", n->told[k].k);
        mc_json_bool(&j, "counts", n->told[k].counts);
        mc_json_bool(&j, "partial", n->told[k].partial);
        sketch(&j, &n->told[k].is);
        close_line(r, &j);
    }
}

mc_status mc_record_create(struct mc_trainer *t, struct mc_err *err)
{
    if (t->cfg->record_step <= 0 && t->cfg->trace_step <= 0)
        return MC_OK;
    t->recorder = mc_alloc(sizeof *t->recorder, "record of a step");
    if (!t->recorder)
        return mc_err_set(err, MC_E_NOMEM, "no memory for the record of a step");
    t->recorder->fd = -1;
    return MC_OK;
}

/* Which rank has which layers. 0: all have all of them. */
static uint64_t stages(const struct mc_line *line)
{
    if (!line)
        return 0;
    size_t n = (size_t)(line->ranks * line->chunks);
    uint64_t cut = mc_hash64(line->cut, (n + 1) * sizeof *line->cut);
    return mc_hash64_seed(line->at, n * sizeof *line->at, cut);
}

static void head(struct mc_trainer *t)
{
    struct mc_recorder *r = t->recorder;
    const struct mc_mesh *m = t->world.mesh;
    const struct mc_step *s = &t->step;
    struct mc_json j;
    char hex[17];
    open_line(r, &j, "head");
    mc_json_i64(&j, "step", s->after.steps);
    mc_json_i64(&j, "rank", t->world.rank);
    mc_json_i64(&j, "ranks", t->world.size);
    for (int a = 0; a < MC_NAXES; a++)
        mc_json_i64(&j, mc_axis_name((enum mc_axis)a), m ? m->layout.size[a] : 1);
    mc_json_open(&j, "coord", '{');
    for (int a = 0; a < MC_NAXES; a++)
        mc_json_i64(&j, mc_axis_name((enum mc_axis)a), m ? m->coord[a] : 0);
    mc_json_close(&j, '}');
    mc_hash_hex(stages(t->cfg->line), hex);
    mc_json_str(&j, "stages", hex);
    mc_json_str(&j, "precision", mc_dtype_name(t->recipe->precision));
    mc_json_i64(&j, "micro", t->recipe->batch.micro);
    mc_json_i64(&j, "first", s->before.samples + s->first);
    mc_json_i64(&j, "own", s->own);
    mc_json_i64(&j, "samples", s->global);
    close_line(r, &j);
}

void mc_record_begin(struct mc_trainer *t)
{
    struct mc_recorder *r = t->recorder;
    struct mc_err why = {0};
    char name[80];
    int64_t step = t->step.after.steps;
    if (!r || (step != t->cfg->record_step && step != t->cfg->trace_step)) /* I1 */
        return;
    r->sketch = step == t->cfg->record_step;
    r->zero_ns = mc_clock_ns();
    r->used = 0;
    snprintf(name, sizeof name, "%s-%lld.%d.jsonl", r->sketch ? "record" : "trace", (long long)step,
             t->world.rank);
    if (mc_rundir_segment_file(t->cfg->rd, t->cfg->rd->segment, name, r->path, &why) != MC_OK ||
        mc_sys_open(r->path, O_WRONLY | O_CREAT | O_TRUNC, 0644, &r->fd, &why) != MC_OK) {
        r->fd = -1;
        mc_log(MC_LOG_WARN, "no %s: %s", name, why.msg); /* I2 */
        return;
    }
    r->hook = (struct mc_graph_record){r, r->sketch, on_op};
    mc_graph_record(t->graphs.train, &r->hook);
    head(t);
}

static void data(struct mc_recorder *r, const char *what, const int32_t *ids, int64_t b,
                 int64_t seq)
{
    struct mc_json j;
    struct mc_sketch s = {0};
    mc_sketch_add(&s, ids, MC_I32, r->mb * seq, b * seq);
    open_line(r, &j, "data");
    mc_json_i64(&j, "mb", r->mb);
    mc_json_i64(&j, "n", b);
    mc_json_str(&j, "what", what);
    sketch(&j, &s);
    close_line(r, &j);
}

void mc_record_microbatch(struct mc_trainer *t, int64_t first, const struct mc_microbatch *mb)
{
    struct mc_recorder *r = t->recorder;
    if (!r || r->fd < 0)
        return;
    r->mb = t->step.before.samples + t->step.first + first;
    r->n = mb->b;
}

void mc_record_data(struct mc_trainer *t)
{
    struct mc_recorder *r = t->recorder;
    int64_t own = t->step.own, seq = t->step.seq;
    if (!r || r->fd < 0 || !r->sketch || t->step.valid == 0)
        return;
    for (int64_t first = 0; first < own; first += t->recipe->batch.micro) {
        int64_t left = own - first,
                b = left < t->recipe->batch.micro ? left : t->recipe->batch.micro;
        r->mb = t->step.before.samples + t->step.first + first;
        data(r, "tokens", t->batch.tokens + first * seq, b, seq);
        data(r, "targets", t->batch.targets + first * seq, b, seq);
    }
}

void mc_record_pipe(struct mc_trainer *t, const struct mc_pipe_note *n)
{
    struct mc_recorder *r = t->recorder;
    struct mc_json j;
    if (!r || r->fd < 0 || r->sketch)
        return;
    open_line(r, &j, "pipe");
    mc_json_str(&j, "op", mc_sched_op_name(n->op));
    mc_json_i64(&j, "chunk", n->chunk);
    mc_json_i64(&j, "stage", n->stage);
    mc_json_i64(&j, "mb", n->mb);
    mc_json_i64(&j, "first", r->mb);
    mc_json_f64(&j, "begin", ms(r, n->begin_ns));
    mc_json_f64(&j, "wait", (double)n->wait_ns * 1e-6);
    mc_json_f64(&j, "input", (double)n->input_ns * 1e-6);
    mc_json_f64(&j, "end", ms(r, n->end_ns));
    close_line(r, &j);
}

static void owned(struct mc_recorder *r, const char *at, const char *what,
                  const struct mc_shape *shape, const struct mc_box *box, const void *p,
                  enum mc_dtype dtype)
{
    struct mc_json j;
    struct mc_sketch s = {0};
    mc_graph_sketch_box(shape, box, p, dtype, &s);
    open_line(r, &j, at);
    mc_json_str(&j, "what", what);
    sketch(&j, &s);
    close_line(r, &j);
}

void mc_record_grads(struct mc_trainer *t)
{
    struct mc_recorder *r = t->recorder;
    const struct mc_shard *s = t->graphs.shard;
    enum mc_dtype wide = mc_optim_dtype(t->recipe->precision);
    if (!r || r->fd < 0 || !r->sketch)
        return;
    for (int i = 0; i < s->npieces; i++) {
        const struct mc_param *p = mc_graph_param(t->graphs.train, s->piece[i].param);
        struct mc_box box = mc_shard_box(p, s->piece[i].row, s->piece[i].rows);
        const char *g = (const char *)t->arena[MC_ARENA_GRADS].base +
                        (size_t)s->piece[i].flat * mc_dtype_size(wide);
        if (p->owned)
            owned(r, "grad", p->name, &p->shape, &box, g, wide);
    }
}

static void spans(struct mc_trainer *t)
{
    struct mc_recorder *r = t->recorder;
    const struct mc_span *s;
    int n = mc_transfer_spans(t->transfer, &s);
    for (int i = 0; i < n; i++) {
        struct mc_json j;
        open_line(r, &j, "span");
        mc_json_str(&j, "kind", mc_span_name(s[i].kind));
        mc_json_i64(&j, "bucket", s[i].bucket);
        mc_json_f64(&j, "begin", ms(r, s[i].begin_ns));
        if (s[i].wait_ns)
            mc_json_f64(&j, "wait", ms(r, s[i].wait_ns));
        mc_json_f64(&j, "end", ms(r, s[i].end_ns));
        close_line(r, &j);
    }
}

void mc_record_end(struct mc_trainer *t)
{
    struct mc_recorder *r = t->recorder;
    struct mc_err why = {0};
    struct mc_json j;
    if (!r || r->fd < 0)
        return;
    mc_graph_record(t->graphs.train, NULL);
    for (int i = 0; i < t->nowned && r->sketch; i++)
        owned(r, "state", t->owned[i].name, &t->owned[i].shape, &t->owned[i].box, t->owned[i].data,
              t->owned[i].dtype);
    if (!r->sketch)
        spans(t);
    open_line(r, &j, "end");
    mc_json_f64(&j, "loss", t->step.loss);
    mc_json_f64(&j, "grad_norm", t->step.norm);
    mc_json_bool(&j, "update", t->step.update);
    close_line(r, &j);
    flush(r);
    r->done[r->sketch] = r->fd >= 0;
    if (r->fd >= 0 && mc_sys_close(r->fd, r->path, &why) != MC_OK)
        mc_log(MC_LOG_WARN, "%s may not be whole: %s", r->path, why.msg);
    r->fd = -1;
}

void mc_record_destroy(struct mc_trainer *t)
{
    struct mc_recorder *r = t->recorder;
    if (!r)
        return;
    if (r->fd >= 0)
        (void)mc_sys_close(r->fd, r->path, NULL);
    for (int k = 0; k < 2; k++) {
        int64_t step = k ? t->cfg->record_step : t->cfg->trace_step;
        if (step > 0 && !r->done[k] && t->world.rank == 0)
            mc_log(MC_LOG_WARN, "--%s %lld: that step was not completed in this segment",
                   k ? "record" : "trace", (long long)step);
    }
    mc_free(r);
    t->recorder = NULL;
}
