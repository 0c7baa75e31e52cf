/* line_file.c - a line as text: written once by who made the schedules, read and proven again by
 * every rank. Floor 5 (pipe).
 *
 *   line                 content
 *   1                    mascon-pipeline 1
 *   2                    ranks P chunks V depth D schedules N
 *   3                    cut C0 C1 .. CS            S = P V; stage s has layers Cs .. C(s+1) - 1
 *   4                    place S0 S1 .. S(S-1)      stage of rank 0 chunk 0, rank 0 chunk 1, ...
 *   then N times         microbatches M NAME        M ascends; NAME to the end of the line, at most
 *                                                   95 bytes
 *     and P lines        R X X X ..                 rank R's records in order, R from 0
 *   last                 end
 *
 * A record X is its op, microbatch and, unless it is 0, chunk: F12.1, B3. One space between words,
 * one newline after each line, nothing after the last. Numbers are decimal without a sign.
 *
 * I1  What is allocated while reading is bounded by the length of the text: lists are counted
 *     before room for them is taken, and a schedule too short to be complete is refused before its
 *     proof.
 * I2  What is written reads back the same.
 *
 * Memory: handle life. Threads: any, one at a time. */
#include <stdio.h>
#include <string.h>
#include "../base/arena.h"
#include "line.h"

/* ---- write ---- */

struct writer {
    char *buf;
    size_t n, cap;
    int failed;
};
static void put(struct writer *w, const char *text, size_t n)
{
    if (w->failed)
        return;
    if (w->cap - w->n < n) {
        size_t cap = 2 * (w->cap + n) + 4096;
        char *more = mc_grow(w->buf, w->cap, cap, "text of a pipeline");
        w->failed = !more;
        if (!more)
            return;
        w->buf = more;
        w->cap = cap;
    }
    memcpy(w->buf + w->n, text, n);
    w->n += n;
}
static void say(struct writer *w, const char *text)
{
    put(w, text, strlen(text));
}
static void number(struct writer *w, int64_t v) /* >= 0; millions of them */
{
    char digit[20];
    size_t at = sizeof digit;
    do
        digit[--at] = (char)('0' + v % 10);
    while (v /= 10);
    put(w, digit + at, sizeof digit - at);
}

static void write_schedule(struct writer *w, const struct mc_sched *s)
{
    say(w, "microbatches ");
    number(w, s->microbatches);
    say(w, " ");
    for (const char *c = s->name; *c; c++)
        put(w, (unsigned char)*c < ' ' || *c == 127 ? "?" : c, 1);
    for (int r = 0; r < s->ranks; r++) {
        say(w, "\n");
        number(w, r);
        for (int64_t k = s->first[r]; k < s->first[r + 1]; k++) {
            say(w, " ");
            say(w, mc_sched_op_name(s->rec[k].op));
            number(w, s->rec[k].mb);
            if (s->rec[k].chunk) {
                say(w, ".");
                number(w, s->rec[k].chunk);
            }
        }
    }
    say(w, "\n");
}

static void list(struct writer *w, const char *word, const int *v, int n)
{
    say(w, word);
    for (int i = 0; i < n; i++) {
        say(w, " ");
        number(w, v[i]);
    }
    say(w, "\n");
}

mc_status mc_line_text(const struct mc_line *line, char **text, struct mc_err *err)
{
    struct writer w = {0};
    const struct {
        const char *word;
        int v;
    } head[] = {{"ranks ", line->ranks},
                {" chunks ", line->chunks},
                {" depth ", line->depth},
                {" schedules ", line->nsched}};
    say(&w, "mascon-pipeline 1\n");
    for (int i = 0; i < 4; i++) {
        say(&w, head[i].word);
        number(&w, head[i].v);
    }
    say(&w, "\n");
    list(&w, "cut", line->cut, line->ranks * line->chunks + 1);
    list(&w, "place", line->sched[0]->place, line->ranks * line->chunks);
    for (int k = 0; k < line->nsched; k++)
        write_schedule(&w, line->sched[k]);
    put(&w, "end\n", 5); /* with its NUL */
    if (w.failed) {
        mc_free(w.buf);
        return mc_err_set(err, MC_E_NOMEM, "no memory for the text of a pipeline");
    }
    *text = w.buf;
    return MC_OK;
}

/* ---- read ---- */

struct reader {
    const char *at, *end;
    int line; /* from 1 */
    struct mc_err *err;
};

static mc_status bad(const struct reader *r, const char *what)
{
    char near[24];
    size_t n = 0;
    while (n + 1 < sizeof near && r->at + n < r->end && r->at[n] >= ' ' && r->at[n] < 127) {
        near[n] = r->at[n];
        n++;
    }
    near[n] = 0;
    return mc_err_set(r->err, MC_E_FORMAT, "schedule.txt, line %d: %s; there is %s%s%s", r->line,
                      what,
                      n                 ? "\""
                      : r->at == r->end ? "the end"
                                        : "the line's end",
                      n ? near : "", n ? "\"" : "");
}

/* Exactly these characters. */
static int take(struct reader *r, const char *text)
{
    size_t n = strlen(text);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, text, n) != 0)
        return 0;
    for (size_t i = 0; i < n; i++)
        r->line += text[i] == '\n';
    r->at += n;
    return 1;
}

static mc_status expect(struct reader *r, const char *text, const char *what)
{
    return take(r, text) ? MC_OK : bad(r, what);
}

static mc_status integer(struct reader *r, int lo, int hi, const char *what, int *out)
{
    const char *from = r->at;
    int64_t v = 0;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9' && v <= hi)
        v = 10 * v + (*r->at++ - '0');
    if (r->at == from || v < lo || v > hi || (*from == '0' && r->at - from > 1)) {
        char say[160];
        r->at = from;
        snprintf(say, sizeof say, "%s is a number from %d to %d", what, lo, hi);
        return bad(r, say);
    }
    *out = (int)v;
    return MC_OK;
}

static mc_status integers(struct reader *r, const char *word, int n, int hi, int *out)
{
    struct mc_err *err = r->err;
    char say[80];
    snprintf(say, sizeof say, "\"%s\" and %d numbers are expected", word, n);
    MC_TRY(expect(r, word, say));
    for (int i = 0; i < n; i++) {
        MC_TRY(expect(r, " ", say));
        MC_TRY(integer(r, 0, hi, word, &out[i]));
    }
    return expect(r, "\n", say);
}

/* Spaces of the next n lines; what is not there counts nothing and is told by who reads it. */
static void count_records(const struct reader *r, int n, int64_t *counts)
{
    const char *p = r->at;
    for (int i = 0; i < n; i++) {
        counts[i] = 0;
        for (; p < r->end && *p != '\n'; p++)
            counts[i] += *p == ' ';
        p += p < r->end;
    }
}

static mc_status record(struct reader *r, const struct mc_sched *s, struct mc_sched_rec *x)
{
    static const char ops[] = "FBIW"; /* by enum mc_sched_op */
    struct mc_err *err = r->err;
    int mb, chunk = 0;
    const char *op = take(r, " ") && r->at < r->end && *r->at ? strchr(ops, *r->at) : NULL;
    if (!op)
        return bad(r, "a record is F, B, I or W and a microbatch, and after \".\" a chunk");
    r->at++;
    MC_TRY(integer(r, 0, s->microbatches - 1, "a microbatch", &mb));
    if (take(r, "."))
        MC_TRY(integer(r, 1, s->chunks - 1, "a chunk other than 0", &chunk));
    *x = (struct mc_sched_rec){.mb = mb, .chunk = (int16_t)chunk, .op = (int8_t)(op - ops)};
    return MC_OK;
}

static mc_status records(struct reader *r, struct mc_sched *s)
{
    struct mc_err *err = r->err;
    for (int rank = 0; rank < s->ranks; rank++) {
        int is;
        MC_TRY(integer(r, rank, rank, "each rank has a line; the first word", &is));
        for (int64_t k = s->first[rank]; k < s->first[rank + 1]; k++)
            MC_TRY(record(r, s, &s->rec[k]));
        MC_TRY(expect(r, "\n", "the line of a rank ends after its records"));
    }
    return MC_OK;
}

static mc_status prove(const struct reader *r, const struct mc_sched *s, int depth, int line)
{
    struct mc_err why = {0};
    const struct mc_sched_limits lim = {.depth = depth};
    int64_t least = 2 * (int64_t)mc_sched_stages(s) * s->microbatches;
    if (s->first[s->ranks] < least) /* I1 */
        return mc_err_set(r->err, MC_E_FORMAT,
                          "schedule.txt, line %d: %d microbatches through %d stages are at least "
                          "%lld records; there are %lld",
                          line, s->microbatches, mc_sched_stages(s), (long long)least,
                          (long long)s->first[s->ranks]);
    mc_status st = mc_sched_verify(s, &lim, NULL, NULL, &why);
    if (st == MC_OK)
        return MC_OK;
    return mc_err_set(r->err, st, "schedule.txt, line %d: %s", line, why.msg);
}

struct head {
    int ranks, chunks, depth, n;
    int *cut, *place;
};

static mc_status read_schedule(struct reader *r, const struct head *h, struct mc_sched **out)
{
    struct mc_err *err = r->err;
    char name[96];
    int m, from = r->line;
    size_t len = 0;
    MC_TRY(expect(r, "microbatches ", "\"microbatches\" is expected"));
    MC_TRY(integer(r, 1, MC_SCHED_MAX_RECORDS, "microbatches", &m));
    MC_TRY(expect(r, " ", "the schedule's name is expected"));
    while (r->at < r->end && (unsigned char)*r->at >= ' ' && *r->at != 127 && len + 1 < sizeof name)
        name[len++] = *r->at++;
    name[len] = 0;
    MC_TRY(expect(r, "\n", "a name has at most 95 bytes and no control characters"));
    int64_t *counts = mc_alloc((size_t)h->ranks * sizeof *counts, "records of a schedule");
    if (!counts)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a schedule of %d ranks", h->ranks);
    count_records(r, h->ranks, counts);
    struct mc_sched *s;
    mc_status st = mc_sched_create(name, h->ranks, h->chunks, m, counts, &s, err);
    mc_free(counts);
    if (st != MC_OK)
        return st;
    memcpy(s->place, h->place, (size_t)mc_sched_stages(s) * sizeof *s->place);
    st = records(r, s);
    if (st == MC_OK)
        st = prove(r, s, h->depth, from);
    if (st != MC_OK)
        mc_sched_destroy(s);
    else
        *out = s;
    return st;
}

static mc_status read_head(struct reader *r, struct head *h)
{
    const struct {
        const char *word, *say;
        int hi, *out;
    } field[] = {{"ranks ", "ranks", MC_SCHED_MAX_RANKS, &h->ranks},
                 {" chunks ", "chunks", MC_LINE_MAX_CHUNKS, &h->chunks},
                 {" depth ", "depth", 1 << 30, &h->depth},
                 {" schedules ", "schedules", MC_LINE_MAX_SCHEDULES, &h->n}};
    struct mc_err *err = r->err;
    MC_TRY(expect(r, "mascon-pipeline 1\n", "\"mascon-pipeline 1\" is expected"));
    for (int i = 0; i < 4; i++) {
        MC_TRY(expect(r, field[i].word, "\"ranks P chunks V depth D schedules N\" is expected"));
        MC_TRY(integer(r, 1, field[i].hi, field[i].say, field[i].out));
    }
    MC_TRY(expect(r, "\n", "\"ranks P chunks V depth D schedules N\" is expected"));
    int stages = h->ranks * h->chunks;
    if (r->end - r->at < 4 * (int64_t)stages) /* I1: each stage has two numbers */
        return bad(r, "the file is too short for that many stages");
    h->cut = mc_alloc((size_t)(stages + 1) * sizeof *h->cut, "cut of a pipeline");
    h->place = mc_alloc((size_t)stages * sizeof *h->place, "stages of a pipeline");
    if (!h->cut || !h->place)
        return mc_err_set(err, MC_E_NOMEM, "no memory for a pipeline of %d stages", stages);
    MC_TRY(integers(r, "cut", stages + 1, 1 << 20, h->cut));
    return integers(r, "place", stages, stages - 1, h->place);
}

mc_status mc_line_parse(const char *text, size_t n, struct mc_line **line, struct mc_err *err)
{
    struct mc_err own = {0};
    struct reader r = {.at = text, .end = text + n, .line = 1, .err = err ? err : &own};
    struct head h = {0};
    struct mc_sched **sched = NULL;
    int have = 0;
    mc_status st = read_head(&r, &h);
    if (st == MC_OK && !(sched = mc_alloc((size_t)h.n * sizeof *sched, "schedules of a pipeline")))
        st = mc_err_set(r.err, MC_E_NOMEM, "no memory for %d schedules", h.n);
    while (st == MC_OK && have < h.n) {
        st = read_schedule(&r, &h, &sched[have]);
        have += st == MC_OK;
    }
    if (st == MC_OK)
        st = expect(&r, "end\n", "\"end\" is expected");
    if (st == MC_OK && r.at != r.end)
        st = bad(&r, "nothing comes after \"end\"");
    if (st == MC_OK) {
        st = mc_line_create(h.ranks, h.chunks, h.cut, sched, have, h.depth, line, r.err);
        have = 0;
    }
    for (int k = 0; k < have; k++)
        mc_sched_destroy(sched[k]);
    mc_free(sched);
    mc_free(h.cut);
    mc_free(h.place);
    return mc_err_trail(err, st, __FILE__, __LINE__);
}
