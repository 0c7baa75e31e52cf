/* metrics.c - one line a step for machines, one now and then for people. Floor 6 (train).
 *
 * metrics.jsonl: step loss grad_norm lr tokens samples skipped step_ms tokens_per_s mfu segment,
 * with several ranks exposed_ms (timeline.c), with a pipeline bubble_ms and bubble (piped.c),
 * and every log.mixture.every steps and in the last one mixture: what was read of each source so
 * far,
 * [{samples, tokens, share, weight}] in the order of data.train: share of all tokens, weight in
 * force (of 1).
 * Doubles are printed by the shortest text that reads back bit for bit; non-finite ones are null
 * (events.jsonl tells which). `mfu` is null where no peak is declared (flops.c).
 *
 * I1  A line is whole or absent: one write a line; a refused or short write is cut back to the last
 *     whole line and tried again with the next step, from a fixed backlog.
 * I2  A checkpoint of step k commits only after mc_metrics_sync() has put the line of step k on the
 *     disk. A failed fsync is never retried: `broken` makes every later sync fail.
 * I3  Opening cuts the file to its last whole line, and tells of lines that are not ours; replayed
 *     steps are appended with their segment.
 * I4  No allocation after open.
 *
 * The log line has the fields, names and forms that scrapers of Megatron's logs look for. Averages
 * are over the steps since the last line, each step once; a loss that was not finite in any of them
 * is printed as nan, never left out.
 *
 * Memory: the caller's struct. Threads: the trainer's. */
#include "train_int.h"
#include "../base/sysio.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void write_mixture(struct mc_json *j, const struct mc_mixture *x)
{
    mc_json_open(j, "mixture", '[');
    for (int s = 0; s < x->n; s++) {
        mc_json_open(j, NULL, '{');
        mc_json_i64(j, "samples", x->of[s].samples);
        mc_json_i64(j, "tokens", x->of[s].tokens);
        mc_json_f64(j, "share", x->of[s].share);
        mc_json_f64(j, "weight", x->of[s].weight);
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
}

int mc_metrics_format(const struct mc_metric *m, char *dst, size_t cap)
{
    struct mc_json j;
    if (cap < 2)
        return -1;
    mc_json_init_fixed(&j, dst, cap - 1);
    mc_json_open(&j, NULL, '{');
    mc_json_i64(&j, "step", m->step);
    mc_json_f64(&j, "loss", m->loss);
    mc_json_f64(&j, "grad_norm", m->grad_norm);
    mc_json_f64(&j, "lr", m->lr);
    mc_json_i64(&j, "tokens", m->tokens);
    mc_json_i64(&j, "samples", m->samples);
    mc_json_i64(&j, "skipped", m->skipped);
    mc_json_f64(&j, "step_ms", m->step_ms);
    mc_json_f64(&j, "tokens_per_s", m->tokens_per_s);
    mc_json_f64(&j, "mfu", m->mfu);
    if (m->ranks > 1)
        mc_json_f64(&j, "exposed_ms", m->exposed_ms);
    if (m->piped) {
        mc_json_f64(&j, "bubble_ms", m->bubble_ms);
        mc_json_f64(&j, "bubble", m->bubble);
    }
    mc_json_i64(&j, "segment", m->segment);
    if (m->mixture)
        write_mixture(&j, m->mixture);
    mc_json_close(&j, '}');
    if (j.failed)
        return -1;
    size_t n = j.len;
    dst[n++] = '\n';
    return (int)n;
}

/* ---- the file ---- */

/* Lines in [0, end) that no run of ours wrote: how many, and the number of the first. */
static mc_status strange_lines(int fd, const char *path, int64_t end, int64_t *n, int64_t *first,
                               struct mc_err *err)
{
    static const char begin[] = "{\"step\":";
    char block[4096], before = 0;
    int64_t line = 1, at = 0; /* at: bytes of this line so far */
    int good = 1;
    *n = *first = 0;
    for (int64_t off = 0; off < end;) {
        int64_t m = end - off < (int64_t)sizeof block ? end - off : (int64_t)sizeof block;
        MC_TRY(mc_sys_pread_all(fd, block, (size_t)m, off, path, err));
        for (int64_t i = 0; i < m; i++) {
            char c = block[i];
            if (c != '\n') {
                good &=
                    (unsigned char)c >= ' ' && (at >= (int64_t)sizeof begin - 1 || c == begin[at]);
                before = c;
                at++;
                continue;
            }
            if (!good || before != '}' || at < (int64_t)sizeof begin) {
                *first = *n == 0 ? line : *first;
                ++*n;
            }
            line++;
            at = 0;
            good = 1;
            before = 0;
        }
        off += m;
    }
    return MC_OK;
}

mc_status mc_metrics_open(struct mc_metrics *ms, const char *path, struct mc_err *err)
{
    memset(ms, 0, sizeof *ms);
    ms->fd = -1;
    int fd;
    int64_t size, end, strange, first;
    if (snprintf(ms->path, sizeof ms->path, "%s", path) >= (int)sizeof ms->path)
        return mc_err_set(err, MC_E_USAGE, "%s: path too long", path);
    MC_TRY(mc_sys_open(path, O_RDWR | O_CREAT | O_APPEND, 0644, &fd, err));
    mc_status st;
    MC_TRY_GOTO(st, mc_sys_file_size(path, &size, err), fail);
    MC_TRY_GOTO(st, mc_sys_whole_lines(fd, path, size, &end, err), fail);
    if (end < size) /* I3 */
        MC_TRY_GOTO(st, mc_sys_ftruncate(fd, end, path, err), fail);
    MC_TRY_GOTO(st, strange_lines(fd, path, end, &strange, &first, err), fail);
    if (strange > 0)
        mc_log(
            MC_LOG_WARN,
            "%s: %lld line%s no metrics, the first is line %lld; nothing was changed, and readers "
            "should pass over what they cannot parse",
            path, (long long)strange, strange == 1 ? " is" : "s are", (long long)first);
    if (size == 0) { /* I2: the name must be on the disk too */
        char dir[1100];
        mc_path_dir(dir, sizeof dir, path);
        MC_TRY_GOTO(st, mc_sys_fsync_dir(dir, err), fail);
    }
    ms->fd = fd;
    ms->size = end;
    return MC_OK;
fail:
    mc_sys_close(fd, path, NULL);
    return st;
}

void mc_metrics_close(struct mc_metrics *ms)
{
    mc_metrics_progress_clear(ms);
    if (ms->fd >= 0)
        mc_sys_close(ms->fd, ms->path, NULL);
    ms->fd = -1;
}

/* Offers the backlog to the disk. MC_OK also when the disk refused and there is room to wait. */
static mc_status flush(struct mc_metrics *ms, int must, struct mc_err *err)
{
    struct mc_err why = {0};
    if (ms->nback == 0)
        return MC_OK;
    mc_status st = mc_sys_append(ms->fd, ms->back, ms->nback, ms->path, &why);
    if (st == MC_OK) {
        ms->size += (int64_t)ms->nback;
        ms->nback = 0;
        ms->warned = 0;
        return MC_OK;
    }
    mc_sys_ftruncate(ms->fd, ms->size, ms->path, NULL); /* I1: no half line stays behind */
    if (must || ms->nback + MC_METRIC_LONG > sizeof ms->back)
        return mc_err_set(err, st, "%s; %zu bytes of metrics could not be written", why.msg,
                          ms->nback);
    if (!ms->warned)
        mc_log(MC_LOG_ERROR, "%s; metrics are kept in memory and tried again", why.msg);
    ms->warned = 1;
    return MC_OK;
}

mc_status mc_metrics_add(struct mc_metrics *ms, const struct mc_metric *m, struct mc_err *err)
{
    MC_ASSERT(ms->nback + MC_METRIC_LONG <= sizeof ms->back);
    int n = mc_metrics_format(m, ms->back + ms->nback, MC_METRIC_LONG);
    MC_ASSERT(n > 0);
    ms->nback += (size_t)n;
    ms->n++;
    ms->sum_ms += m->step_ms;
    ms->nskipped += m->was_skipped;
    if (isfinite(m->loss)) {
        ms->nfinite++;
        ms->sum_loss += m->loss;
    }
    ms->nnan += !isfinite(m->loss) || !isfinite(m->grad_norm);
    return flush(ms, 0, err);
}

mc_status mc_metrics_sync(struct mc_metrics *ms, struct mc_err *err)
{
    if (ms->broken)
        return mc_err_set(
            err, MC_E_IO,
            "%s: an earlier fsync failed, so its lines may be lost; no checkpoint can "
            "claim them. Mend the disk and start again with --resume auto",
            ms->path);
    MC_TRY(flush(ms, 1, err));
    mc_status st = mc_sys_fsync(ms->fd, ms->path, err);
    ms->broken = st != MC_OK; /* I2 */
    return mc_err_trail(err, st, __FILE__, __LINE__);
}

/* ---- lines for people ---- */

static void say(const char *s, size_t n)
{
    ssize_t k;
    do
        k = write(STDERR_FILENO, s, n);
    while (k == -1 && errno == EINTR);
}

/* Non-finite numbers are "nan" in log lines, as scrapers expect, whatever their sign. */
static void number(double x, int exponent, char dst[32])
{
    if (!isfinite(x))
        snprintf(dst, 32, "nan");
    else if (exponent || fabs(x) >= 1e20) /* 1e300 has no room as %f */
        snprintf(dst, 32, "%.6E", x);
    else
        snprintf(dst, 32, "%.3f", x);
}

void mc_metrics_log_format(const struct mc_metrics *ms, const struct mc_metric *m,
                           const char *stamp, char *dst, size_t cap)
{
    char loss[32], norm[32], layers[200] = "";
    double steps = ms->n > 0 ? (double)ms->n : 1.0;
    number(ms->nfinite > 0 ? ms->sum_loss / (double)ms->nfinite : NAN, 1, loss);
    number(m->grad_norm, 0, norm);
    if (m->norms)
        mc_norms_short(m->norms, layers, sizeof layers);
    snprintf(dst, cap,
             " [%s] iteration %8lld/%8lld | consumed samples: %12lld | elapsed time per iteration "
             "(ms): %.1f | learning rate: %.6E | global batch size: %5lld | lm loss: %s | grad "
             "norm: %s | number of skipped iterations: %3lld | number of nan iterations: %3lld |%s",
             stamp, (long long)m->step, (long long)(m->target_steps < 0 ? 0 : m->target_steps),
             (long long)m->samples, ms->sum_ms / steps, m->lr, (long long)m->global_batch, loss,
             norm, (long long)ms->nskipped, (long long)ms->nnan, layers);
}

void mc_metrics_eval_format(int64_t step, double loss, char *dst, size_t cap)
{
    char l[32], ppl[32];
    number(loss, 1, l);
    number(isnan(loss) ? loss : exp(loss < 20 ? loss : 20), 1, ppl); /* exp(20): as far as the
                                                                        field's logs go */
    snprintf(dst, cap, " validation loss at iteration %lld | lm loss value: %s | lm loss PPL: %s |",
             (long long)step, l, ppl);
}

void mc_metrics_say(struct mc_metrics *ms, const char *text)
{
    char line[900];
    mc_metrics_progress_clear(ms);
    snprintf(line, sizeof line, "%s\n", text);
    say(line, strlen(line));
}

void mc_metrics_log(struct mc_metrics *ms, const struct mc_metric *m)
{
    char stamp[40], line[840];
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    localtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", &tm);
    snprintf(stamp + n, sizeof stamp - n, ".%03ld", ts.tv_nsec / 1000000);
    mc_metrics_log_format(ms, m, stamp, line, sizeof line);
    mc_metrics_say(ms, line);
    ms->n = ms->nfinite = ms->nskipped = ms->nnan = 0;
    ms->sum_loss = ms->sum_ms = 0;
}

static void print_span(double s, char *dst, size_t cap)
{
    if (s < 60)
        snprintf(dst, cap, "%.0f s", s);
    else if (s < 3600)
        snprintf(dst, cap, "%d min %02d s", (int)s / 60, (int)s % 60);
    else
        snprintf(dst, cap, "%lld h %02d min", (long long)s / 3600, (int)((long long)s / 60 % 60));
}

/* step 37/50  74 %  loss 2.314  41.2 k tokens/s  ETA 3 s   (rewritten at most ten times a second)
 */
void mc_metrics_progress(struct mc_metrics *ms, const struct mc_metric *m)
{
    int64_t now = mc_clock_ns();
    ms->ms_smooth = ms->ms_smooth > 0 ? 0.9 * ms->ms_smooth + 0.1 * m->step_ms : m->step_ms;
    if (ms->shown && now - ms->shown_ns < 100000000)
        return;
    char line[200], eta[40] = "unknown";
    int percent = 0;
    if (m->target_steps > 0) {
        percent = (int)(100.0 * (double)m->step / (double)m->target_steps);
        print_span((double)(m->target_steps - m->step) * ms->ms_smooth * 1e-3, eta, sizeof eta);
    }
    snprintf(line, sizeof line, "\r\033[Kstep %lld/%lld  %d %%  loss %.4f  %.1f k tokens/s  ETA %s",
             (long long)m->step, (long long)(m->target_steps < 0 ? 0 : m->target_steps), percent,
             m->loss, m->tokens_per_s * 1e-3, eta);
    say(line, strlen(line));
    ms->shown = 1;
    ms->shown_ns = now;
}

void mc_metrics_progress_clear(struct mc_metrics *ms)
{
    if (ms->shown)
        say("\r\033[K", 4);
    ms->shown = 0;
}
