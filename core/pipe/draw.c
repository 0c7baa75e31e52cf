/* draw.c - a simulated schedule as text and as SVG. Floor 5 (pipe).
 *
 * SVG: a row a rank, a box an op, its numbers in its title; odd chunks are pale. The last row says
 * which colour is which.
 * Text: one line a rank; a column is the shortest op's time over three, so that every op has room
 * for its letter and a number; idle time is dots. With chunks, an odd chunk's letter is small.
 *
 * Memory: one line on the stack at a time. Threads: any. */
#include <stdio.h>
#include <string.h>
#include "sched_int.h"

enum { LINE_MAX_COLUMNS = 4000 };

static double shortest(const struct mc_sched *s, const struct mc_sched_costs *c)
{
    double best = 0;
    for (int st = 0; st < mc_sched_stages(s); st++) {
        const double t[3] = {c->f[st], c->i[st], c->w[st]};
        for (int k = 0; k < 3; k++)
            if (t[k] > 0 && (best == 0 || t[k] < best))
                best = t[k];
    }
    return best > 0 ? best : 1;
}

static void paint(char *text, int from, int end, int width, const struct mc_sched_rec *x)
{
    char label[16];
    int n = snprintf(label, sizeof label, "%s%d", mc_sched_op_name(x->op), x->mb);
    if (x->chunk % 2)
        label[0] = (char)(label[0] - 'A' + 'a');
    for (int k = from; k < end && k < width; k++)
        text[k] = k - from < n ? label[k - from] : '-';
}

void mc_sched_draw_text(const struct mc_sched *s, const struct mc_sched_costs *c,
                        const struct mc_sched_report *r, int width,
                        void (*line)(void *, const char *), void *arg)
{
    char text[LINE_MAX_COLUMNS + 16];
    double column = shortest(s, c) / 3;
    int cut = 0, head = 9;
    width = width < 20 ? 20 : width > LINE_MAX_COLUMNS ? LINE_MAX_COLUMNS : width;
    for (int i = 0; i < s->ranks; i++) {
        int used = head;
        memset(text, '.', (size_t)width);
        char label[16];
        snprintf(label, sizeof label, "rank %-4d", i);
        memcpy(text, label, (size_t)head);
        for (int64_t k = s->first[i]; k < s->first[i + 1]; k++) {
            const struct mc_sched_rec *x = &s->rec[k];
            double t = mc_sched_took(c, x->op, s->place[i * s->chunks + x->chunk]);
            double from = r->start[k] / column, end = (r->start[k] + t) / column;
            if (head + end > width) {
                cut = 1;
                if (head + from >= width)
                    break;
            }
            int a = head + (int)(from + 0.5), b = head + (int)(end + 0.5);
            paint(text, a, b, width, x);
            used = b < width ? b : width;
        }
        text[used] = '\0';
        line(arg, text);
    }
    if (cut)
        line(arg, "(cut at this width; a picture, --svg FILE, has all of it)");
}

void mc_sched_draw_svg(const struct mc_sched *s, const struct mc_sched_costs *c,
                       const struct mc_sched_report *r, void (*line)(void *, const char *),
                       void *arg)
{
    static const char *const fill[MC_SCHED_NOPS] = {"#7aa6d9", "#8fbf7f", "#8fbf7f", "#d9b36c"};
    char text[400];
    double unit = 24 / shortest(s, c), row = 26;
    snprintf(text, sizeof text,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
             "font-family=\"sans-serif\" font-size=\"11\">",
             r->makespan * unit + 80 > 420 ? r->makespan * unit + 80 : 420,
             (s->ranks + 1) * row + 10);
    line(arg, text);
    for (int i = 0; i < s->ranks; i++) {
        snprintf(text, sizeof text, "<text x=\"4\" y=\"%.0f\">rank %d</text>", i * row + 20, i);
        line(arg, text);
        for (int64_t k = s->first[i]; k < s->first[i + 1]; k++) {
            const struct mc_sched_rec *x = &s->rec[k];
            double t = mc_sched_took(c, x->op, s->place[i * s->chunks + x->chunk]);
            double left = 60 + r->start[k] * unit;
            snprintf(text, sizeof text,
                     "<g><title>%s microbatch %d chunk %d: %g to %g</title><rect x=\"%.1f\" "
                     "y=\"%.0f\" width=\"%.1f\" height=\"22\" fill=\"%s\" fill-opacity=\"%.2f\" "
                     "stroke=\"#444\" stroke-width=\"0.5\"/><text x=\"%.1f\" y=\"%.0f\">%d</text>"
                     "</g>",
                     mc_sched_op_name(x->op), x->mb, x->chunk, r->start[k], r->start[k] + t, left,
                     i * row + 4, t * unit, fill[x->op], x->chunk % 2 ? 0.6 : 1.0, left + 3,
                     i * row + 19, x->mb);
            line(arg, text);
        }
    }
    for (int k = 0; k < 3; k++) {
        static const char *const say[] = {"F: forward", "B or I: backward", "W: weights"};
        snprintf(text, sizeof text,
                 "<rect x=\"%d\" y=\"%.0f\" width=\"12\" height=\"12\" fill=\"%s\"/><text x=\"%d\" "
                 "y=\"%.0f\">%s</text>",
                 60 + 130 * k, s->ranks * row + 12, fill[k == 2 ? MC_SCHED_W : k], 76 + 130 * k,
                 s->ranks * row + 22, say[k]);
        line(arg, text);
    }
    line(arg, "</svg>");
}
