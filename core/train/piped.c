/* piped.c - a step's microbatches through the pipeline, and what they tell on the way. Floor 6
 * (train).
 *
 * core/pipe runs this rank's records; here is what an op needs of the step (tokens, rows, whom to
 * tell of its buckets), and what is made of it: the loss, the trace, the step's bubble.
 *
 * I1  The sums of token losses of the microbatches, and those of the norms, are added in ascending
 *     order, as without a pipeline, whatever the schedule.
 * I2  All ranks of a pipeline have the same samples, so the same microbatches; a replica without
 *     samples runs nothing, and a step without a label nothing anywhere.
 * I3  Once a step has begun its ops it ends: a rank that stopped between them would leave its
 *     neighbours waiting. Stop signals are looked at before a step.
 *
 * The bubble of a step, as a schedule's simulation counts it: the makespan is the longest time that
 * a rank took from the first exchange of the step to the end of its last op; what it did not
 * compute of that it stood idle. Of several replicas the mean of each pipeline rank.
 *
 * Memory: the trainer's. Threads: the trainer's; kernels use the pool. */
#include "train_int.h"

static mc_status before_op(void *arg, int64_t first, int64_t b, int op, int last,
                           struct mc_microbatch *mb, struct mc_err *err)
{
    struct mc_trainer *t = arg;
    (void)err;
    (void)op;
    mc_step_tokens(t, first, b, last, mb);
    mc_record_microbatch(t, first, mb);
    mc_norms_microbatch(&t->norms, t->graphs.train, first / t->recipe->batch.micro);
    t->piped.last = last;
    return MC_OK;
}

static void after_op(void *arg, const struct mc_pipe_note *n)
{
    struct mc_trainer *t = arg;
    struct mc_piped *p = &t->piped;
    p->busy_ns += n->end_ns - n->begin_ns - n->wait_ns;
    p->waited_ns += n->wait_ns;
    p->ops++;
    if (p->last)
        mc_transfer_mark(t->transfer, MC_SPAN_BACKWARD, n->begin_ns + n->input_ns, n->end_ns);
    mc_record_pipe(t, n);
    mc_step_beat(t);
}

void mc_piped_pads(const struct mc_recipe *r, double pad[MC_SCHED_NOPS])
{
    const struct mc_parallel_cfg *p = &r->parallel;
    double chunks = (double)p->chunks;
    pad[MC_SCHED_F] = p->pad_f / chunks;
    pad[MC_SCHED_I] = p->pad_i / chunks;
    pad[MC_SCHED_W] = p->pad_w / chunks;
    pad[MC_SCHED_B] = (p->pad_i + p->pad_w) / chunks;
}

mc_status mc_piped_create(struct mc_trainer *t, struct mc_err *err)
{
    const struct mc_line *line = t->cfg->line;
    if (!line)
        return MC_OK;
    size_t n = (size_t)line->sched[line->nsched - 1]->microbatches;
    t->piped.loss = mc_alloc(n * sizeof *t->piped.loss, "losses of microbatches");
    return t->piped.loss ? MC_OK : mc_err_set(err, MC_E_NOMEM, "no memory for %zu losses", n);
}

mc_status mc_piped_step(struct mc_trainer *t, struct mc_err *err)
{
    struct mc_step *s = &t->step;
    struct mc_piped *p = &t->piped;
    int64_t begin = mc_clock_ns();
    p->busy_ns = p->all_ns = 0;
    if (s->valid == 0) /* step.c I1 */
        return MC_OK;
    struct mc_pipe_job job = {.graph = t->graphs.train,
                              .own = s->own,
                              .micro = t->recipe->batch.micro,
                              .seq = s->seq,
                              .step = s->after.steps,
                              .scale = 1.0 / (double)s->valid,
                              .loss = p->loss,
                              .arg = t,
                              .microbatch = before_op,
                              .ran = after_op};
    mc_piped_pads(t->recipe, job.pad_s);
    MC_TRY(mc_pipe_train(t->pipe, &job, err));
    for (int64_t k = 0; k * job.micro < s->own; k++) /* I1 */
        s->loss_sum += p->loss[k];
    mc_norms_microbatches(&t->norms, (s->own + job.micro - 1) / job.micro);
    p->all_ns = s->own > 0 ? mc_clock_ns() - begin : 0;
    return MC_OK;
}

/* ---- the bubble ---- */

int mc_piped_numbers(const struct mc_trainer *t)
{
    return t->cfg->line ? 3 * t->cfg->line->ranks : 0;
}

void mc_piped_tell(const struct mc_trainer *t, double *v)
{
    const struct mc_line *line = t->cfg->line;
    if (!line)
        return;
    double *mine = v + 3 * t->world.mesh->coord[MC_AXIS_PP];
    mine[0] = t->piped.all_ns > 0; /* ran */
    mine[1] = (double)t->piped.all_ns;
    mine[2] = (double)t->piped.busy_ns;
}

void mc_piped_judge(struct mc_trainer *t, const double *v)
{
    const struct mc_line *line = t->cfg->line;
    double most = 0, busy = 0;
    t->piped.bubble_ms = t->piped.bubble = 0;
    for (int r = 0; line && r < line->ranks; r++, v += 3) {
        if (v[0] == 0)
            return; /* nothing ran */
        most = v[1] / v[0] > most ? v[1] / v[0] : most;
        busy += v[2] / v[0];
    }
    if (most <= 0)
        return;
    busy /= line->ranks;
    t->piped.bubble_ms = (most - busy) * 1e-6;
    t->piped.bubble = 1 - busy / most;
}
