/* timeline.c - when the data-parallel transfers of a step began and ended. Floor 6 (train).
 *
 * segments/NNN/timeline.jsonl, written by the control rank of a run of several, for the first
 * MC_TIMELINE_STEPS steps of a segment; one object a step, milliseconds from the step's begin:
 *     step exposed_ms
 *     spans   [{kind: "reduce" | "gather" | "backward", bucket, begin, wait, end}]
 * A transfer is begun at `begin`, waited for from `wait` on, and known to be done at `end`; what
 * lies between wait and end is exposed. A gather of parameters belongs to the step that waits for
 * it, so with overlap its begin is before that step, and negative. `backward` is that of the last
 * microbatch; bucket -1. Buckets are counted as in storage: stem, layers, head.
 *
 * I1  Failing to write it is told once and ends nothing; nothing is allocated.
 *
 * Memory: the trainer's buffer. Threads: the trainer's. */
#include "train_int.h"
#include "../base/sysio.h"
#include <fcntl.h>

void mc_timeline_open(struct mc_trainer *t)
{
    struct mc_timeline *x = &t->timeline;
    struct mc_err why = {0};
    x->fd = -1;
    if (t->world.size == 1 || t->world.rank != 0)
        return;
    if (mc_rundir_segment_file(t->cfg->rd, t->cfg->rd->segment, "timeline.jsonl", x->path, &why) !=
            MC_OK ||
        mc_sys_open(x->path, O_WRONLY | O_CREAT | O_APPEND, 0644, &x->fd, &why) != MC_OK) {
        x->fd = -1;
        mc_log(MC_LOG_WARN, "no timeline of transfers: %s", why.msg);
    }
}

void mc_timeline_close(struct mc_trainer *t)
{
    if (t->timeline.fd >= 0)
        (void)mc_sys_close(t->timeline.fd, t->timeline.path, NULL);
    t->timeline.fd = -1;
}

void mc_timeline_step(struct mc_trainer *t)
{
    struct mc_timeline *x = &t->timeline;
    const struct mc_span *s;
    struct mc_json j;
    struct mc_err why = {0};
    if (x->fd < 0)
        return;
    int n = mc_transfer_spans(t->transfer, &s);
    mc_json_init_fixed(&j, x->line, sizeof x->line - 1);
    mc_json_open(&j, NULL, '{');
    mc_json_i64(&j, "step", t->books.at.steps);
    mc_json_f64(&j, "exposed_ms", (double)mc_transfer_exposed_ns(t->transfer) * 1e-6);
    mc_json_open(&j, "spans", '[');
    for (int i = 0; i < n; i++) {
        int64_t zero = t->step.begin_ns;
        mc_json_open(&j, NULL, '{');
        mc_json_str(&j, "kind", mc_span_name(s[i].kind));
        mc_json_i64(&j, "bucket", s[i].bucket);
        mc_json_f64(&j, "begin", (double)(s[i].begin_ns - zero) * 1e-6);
        if (s[i].wait_ns)
            mc_json_f64(&j, "wait", (double)(s[i].wait_ns - zero) * 1e-6);
        mc_json_f64(&j, "end", (double)(s[i].end_ns - zero) * 1e-6);
        mc_json_close(&j, '}');
    }
    mc_json_close(&j, ']');
    mc_json_close(&j, '}');
    if (!j.failed) { /* else there are more buckets than a line has room for */
        x->line[j.len] = '\n';
        if (mc_sys_append(x->fd, x->line, j.len + 1, x->path, &why) != MC_OK) {
            mc_log(MC_LOG_WARN, "no more timeline of transfers: %s", why.msg); /* I1 */
            mc_timeline_close(t);
        }
    }
    if (t->segment_steps >= MC_TIMELINE_STEPS)
        mc_timeline_close(t);
}
