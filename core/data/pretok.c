/* pretok.c - a text to words: scanners for the known regexes, PCRE2 for the others.
 * Floor 3 (data). Includes: base. The only C that includes pcre2.h.
 *
 * Stages run one after the other, each on every piece of the one before, which it sees alone: a
 * look-ahead ends at the piece. A match is a word, and so is what lies between two matches.
 *
 *   GPT-2     's|'t|'re|'ve|'m|'ll|'d | ?\p{L}+ | ?\p{N}+ | ?[^\s\p{L}\p{N}]+ | \s+(?!\S) | \s+
 *   Llama 3   (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N}{1,3}
 *             | ?[^\s\p{L}\p{N}]+[\r\n]* | \s*[\r\n]+ | \s+(?!\S) | \s+
 *   Qwen 2    the same with \p{N} in place of \p{N}{1,3}
 *
 * I1  A scanner gives what its regex gives: the first alternative that matches, greedy, with
 *     backtracking only where it matters: \s+(?!\S) leaves the last blank before a word, \s*[\r\n]+
 *     ends at the last line end of the blanks.
 * I2  (?i:'s) matches U+017F (long s) as well: it folds to s. No other letter of the contractions
 *     has a second form.
 * I3  Other regexes mean what they mean to the engine that the models were trained with: \s is
 *     White_Space, ^ and $ hold at lines, only \n ends a line. Constructs whose meaning differs
 *     between engines are refused: \w \b \h \R \X \K, POSIX classes, && in classes, flags but i.
 * I4  A regex that gives up (match or heap limit) is an error, never a shorter word.
 *
 * Memory: handle life; PCRE2 keeps its own. Threads: stages are read-only; struct mc_pretok is one
 * thread's. */
#include "tokenizer_int.h"
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>
#include "../base/arena.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define THE_REST     "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
const char mc_pretok_llama3[] = CONTRACTIONS "\\p{N}{1,3}" THE_REST;
const char mc_pretok_qwen2[] = CONTRACTIONS "\\p{N}" THE_REST;
static const char gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
/* The same words, written otherwise. */
static const char gpt2_short[] =
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

struct mc_pretok_regex {
    pcre2_code *code;
};
struct mc_pretok_match {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* ---- stages ---- */

/* I3. Rewrites \s and \S; returns what is not understood, or NULL. */
static const char *translate(const char *re, size_t n, struct mc_text *out, mc_status *st,
                             struct mc_err *err)
{
    int class = 0;
    for (size_t i = 0; i < n && *st == MC_OK; i++) {
        char c = re[i], d = i + 1 < n ? re[i + 1] : 0;
        if (c == '\\') {
            i++;
            if (d == 's' || d == 'S') {
                const char *p = d == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
                *st = mc_text_add(out, p, strlen(p), err);
                continue;
            }
            if (!d || strchr("wWbBhHRXKGAzZoQEgkNOyY", d))
                return re + i - 1;
            size_t from = i - 1;
            if ((d == 'p' || d == 'P') && i + 1 < n && re[i + 1] == '{')
                while (i + 1 < n && re[i] != '}')
                    i++;
            *st = mc_text_add(out, re + from, i + 1 - from, err);
            continue;
        }
        if (class && ((c == '[' && d == ':') || (c == '&' && d == '&') || c == '['))
            return re + i;
        if (!class && c == '(' && d == '?' && i + 2 < n && !strchr(":=!<>i", re[i + 2]))
            return re + i;
        if (!class && c == '(' && d == '?' && i + 3 < n && re[i + 2] == 'i' && re[i + 3] != ':' &&
            re[i + 3] != ')')
            return re + i;
        if (!class && ((c == '(' && d == '*') || (c == '}' && d == '+')))
            return re + i;
        class = c == '[' ? 1 : c == ']' ? 0 : class;
        *st = mc_text_add(out, &c, 1, err);
    }
    return NULL;
}

static mc_status compile(const char *re, size_t n, struct mc_stage *s, struct mc_err *err)
{
    struct mc_text t = {0};
    mc_status st = MC_OK;
    const char *bad = translate(re, n, &t, &st, err);
    if (st == MC_OK && bad)
        st = mc_err_set(err, MC_E_FORMAT,
                        "the regex holds \"%.*s\", which means different things to different "
                        "engines; it is not taken",
                        (int)(n - (size_t)(bad - re) < 12 ? n - (size_t)(bad - re) : 12), bad);
    int code;
    PCRE2_SIZE at;
    pcre2_code *c = NULL;
    if (st == MC_OK) {
        pcre2_compile_context *cc = pcre2_compile_context_create(NULL);
        if (cc)
            pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
        c = pcre2_compile(t.v ? t.v : (const unsigned char *)"", t.n,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_MATCH_INVALID_UTF, &code,
                          &at, cc);
        pcre2_compile_context_free(cc);
        if (!c) {
            unsigned char why[160] = "";
            pcre2_get_error_message(code, why, sizeof why);
            st = mc_err_set(err, MC_E_FORMAT, "the regex does not compile: %s, at byte %zu of %.*s",
                            (const char *)why, (size_t)at, (int)(t.n < 200 ? t.n : 200),
                            (const char *)t.v);
        }
    }
    mc_free(t.v);
    if (st != MC_OK)
        return st;
    pcre2_jit_compile(c, PCRE2_JIT_COMPLETE); /* without a JIT it is interpreted: the same words */
    s->regex = mc_alloc(sizeof *s->regex, "regex");
    if (!s->regex) {
        pcre2_code_free(c);
        return mc_err_set(err, MC_E_NOMEM, "no memory for a regex");
    }
    s->regex->code = c;
    s->kind = MC_STAGE_REGEX;
    return MC_OK;
}

mc_status mc_pretok_stage(const char *regex, size_t n, struct mc_stage *s, struct mc_err *err)
{
    static const struct {
        const char *re;
        struct mc_stage stage;
    } known[] = {
        {gpt2, {.kind = MC_STAGE_GPT2}},
        {gpt2_short, {.kind = MC_STAGE_GPT2}},
        {mc_pretok_llama3, {.kind = MC_STAGE_CL100K, .digits = 3}},
        {mc_pretok_qwen2, {.kind = MC_STAGE_CL100K, .digits = 1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].re) == n && !memcmp(known[i].re, regex, n)) {
            *s = known[i].stage;
            return MC_OK;
        }
    *s = (struct mc_stage){0};
    return compile(regex, n, s, err);
}

void mc_pretok_stage_fini(struct mc_stage *s)
{
    if (s->regex)
        pcre2_code_free(s->regex->code);
    mc_free(s->regex);
    s->regex = NULL;
}

mc_status mc_pretok_init(struct mc_pretok *p, const unsigned char *props,
                         const struct mc_stage *stage, int nstages, struct mc_err *err)
{
    *p = (struct mc_pretok){.props = props, .stage = stage, .nstages = nstages};
    for (int i = 0; i < nstages; i++) {
        if (stage[i].kind != MC_STAGE_REGEX)
            continue;
        struct mc_pretok_match *m = p->match[i] = mc_alloc(sizeof *m, "regex");
        if (m) {
            m->data = pcre2_match_data_create_from_pattern(stage[i].regex->code, NULL);
            m->context = pcre2_match_context_create(NULL);
            m->stack = pcre2_jit_stack_create(32 << 10, 64 << 20, NULL);
        }
        if (!m || !m->data || !m->context || !m->stack) {
            mc_pretok_fini(p);
            return mc_err_set(err, MC_E_NOMEM, "no memory for a regex");
        }
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
    }
    return MC_OK;
}

void mc_pretok_fini(struct mc_pretok *p)
{
    for (int i = 0; i < p->nstages; i++) {
        struct mc_pretok_match *m = p->match[i];
        if (!m)
            continue;
        pcre2_match_data_free(m->data);
        pcre2_match_context_free(m->context);
        pcre2_jit_stack_free(m->stack);
        mc_free(m);
        p->match[i] = NULL;
    }
}

/* ---- scanners: the length of the word that begins at s < e ---- */

#define NONE (-1) /* class past the end */

/* Class of the character at s, its length in *n. */
static inline int class_at(const unsigned char *props, const unsigned char *s,
                           const unsigned char *e, int *n)
{
    uint32_t cp;
    if (s >= e) {
        *n = 0;
        return NONE;
    }
    *n = mc_utf8_next(s, e, &cp);
    return props[cp] & MC_UC_CLASS;
}

static const unsigned char *run_of(const unsigned char *props, int class, const unsigned char *s,
                                   const unsigned char *e)
{
    int n;
    while (class_at(props, s, e, &n) == class)
        s += n;
    return s;
}

/* Length of 's 't 're 've 'm 'll 'd at s, or 0. fold: in either case, and U+017F for s. */
static int contraction(const unsigned char *s, const unsigned char *e, int fold)
{
    if (e - s < 2 || *s != '\'')
        return 0;
    int low = fold ? 0x20 : 0, a = s[1], b = e - s > 2 ? s[2] : 0;
    if (fold && a == 0xc5 && b == 0xbf) /* I2 */
        return 3;
    if (a < 0x40)
        return 0;
    a |= low;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (b < 0x40)
        return 0;
    b |= low;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* \s+(?!\S) | \s+ : blanks from s on; the one before a word is left to it. */
static const unsigned char *blanks(const unsigned char *props, const unsigned char *s,
                                   const unsigned char *e)
{
    const unsigned char *last = s;
    int n;
    const unsigned char *p = s;
    while (class_at(props, p, e, &n) == MC_UC_BLANK) {
        last = p;
        p += n;
    }
    return p == e || last == s ? p : last; /* I1 */
}

static const unsigned char *gpt2_word(const unsigned char *props, const unsigned char *s,
                                      const unsigned char *e)
{
    int n = contraction(s, e, 0), m;
    if (n)
        return s + n;
    int class = class_at(props, s, e, &n);
    if (*s == ' ') {
        int next = class_at(props, s + 1, e, &m);
        if (next != NONE && next != MC_UC_BLANK)
            return run_of(props, next, s + 1 + m, e);
    }
    return class == MC_UC_BLANK ? blanks(props, s, e) : run_of(props, class, s + n, e);
}

static int line_end(int c)
{
    return c == '\n' || c == '\r';
}

static const unsigned char *cl100k_word(const unsigned char *props, const unsigned char *s,
                                        const unsigned char *e, int digits)
{
    int n = contraction(s, e, 1), m;
    if (n)
        return s + n;
    int class = class_at(props, s, e, &n);
    if (class == MC_UC_LETTER)
        return run_of(props, class, s + n, e);
    if (class == MC_UC_NUMBER) {
        for (s += n; --digits > 0 && class_at(props, s, e, &m) == MC_UC_NUMBER; s += m)
            ;
        return s;
    }
    int next = class_at(props, s + n, e, &m);
    if (next == MC_UC_LETTER && !line_end(*s))
        return run_of(props, next, s + n + m, e);
    if (class == MC_UC_OTHER || (*s == ' ' && next == MC_UC_OTHER)) {
        s = run_of(props, MC_UC_OTHER, s + n, e);
        while (s < e && line_end(*s))
            s++;
        return s;
    }
    const unsigned char *p = s, *end = NULL; /* blanks: to their last line end, if there is one */
    for (; class_at(props, p, e, &m) == MC_UC_BLANK; p += m)
        if (line_end(*p))
            end = p + 1;
    return end ? end : blanks(props, s, e);
}

static const unsigned char *digit_word(const unsigned char *props, const unsigned char *s,
                                       const unsigned char *e, int each)
{
    int n, m;
    int number = class_at(props, s, e, &n) == MC_UC_NUMBER;
    s += n;
    if (number && each)
        return s;
    while (s < e && (class_at(props, s, e, &m) == MC_UC_NUMBER) == number)
        s += m;
    return s;
}

/* ---- running the stages ---- */

static mc_status run_stage(struct mc_pretok *p, int k, const unsigned char *s,
                           const unsigned char *e, mc_word_fn fn, void *arg, struct mc_err *err);

static mc_status run_regex(struct mc_pretok *p, int k, const unsigned char *s,
                           const unsigned char *e, mc_word_fn fn, void *arg, struct mc_err *err)
{
    struct mc_pretok_match *m = p->match[k];
    size_t n = (size_t)(e - s), done = 0, from = 0;
    while (from <= n) {
        int rc = pcre2_match(p->stage[k].regex->code, s, n, from, 0, m->data, m->context);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0) { /* I4 */
            unsigned char why[160] = "";
            pcre2_get_error_message(rc, why, sizeof why);
            return mc_err_set(err, MC_E_FORMAT,
                              "the pre-tokenizer's regex gave up on a text of %zu bytes: %s", n,
                              (const char *)why);
        }
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(m->data);
        if (at[0] > done)
            MC_TRY(run_stage(p, k + 1, s + done, s + at[0], fn, arg, err));
        if (at[1] > at[0])
            MC_TRY(run_stage(p, k + 1, s + at[0], s + at[1], fn, arg, err));
        done = from = at[1];
        if (at[1] == at[0]) { /* empty: on to the next character */
            uint32_t cp;
            from += from < n ? (size_t)mc_utf8_next(s + from, e, &cp) : 1;
        }
    }
    return done < n ? run_stage(p, k + 1, s + done, e, fn, arg, err) : MC_OK;
}

static mc_status run_stage(struct mc_pretok *p, int k, const unsigned char *s,
                           const unsigned char *e, mc_word_fn fn, void *arg, struct mc_err *err)
{
    if (k == p->nstages)
        return fn(arg, s, (size_t)(e - s), err);
    const struct mc_stage *g = &p->stage[k];
    if (g->kind == MC_STAGE_REGEX)
        return run_regex(p, k, s, e, fn, arg, err);
    while (s < e) {
        const unsigned char *next = g->kind == MC_STAGE_GPT2 ? gpt2_word(p->props, s, e)
                                    : g->kind == MC_STAGE_CL100K
                                        ? cl100k_word(p->props, s, e, g->digits)
                                        : digit_word(p->props, s, e, g->digits);
        MC_TRY(k + 1 == p->nstages ? fn(arg, s, (size_t)(next - s), err)
                                   : run_stage(p, k + 1, s, next, fn, arg, err));
        s = next;
    }
    return MC_OK;
}

mc_status mc_pretok_run(struct mc_pretok *p, const unsigned char *s, size_t n, mc_word_fn fn,
                        void *arg, struct mc_err *err)
{
    return n > 0 ? run_stage(p, 0, s, s + n, fn, arg, err) : MC_OK;
}
