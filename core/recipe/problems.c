/* problems.c - the list of everything found wrong with a recipe.
 * Floor 1 (recipe). Includes: base.
 *
 * I1  Nothing is lost without a trace: past the cap, or without memory, `dropped` counts.
 * I2  One problem a mistake: the same text for the same place is kept once (the model's scalars are
 *     bound twice, by the tracer and by the recipe).
 * I3  What is printed cannot steer a terminal: control characters become '?'.
 *
 * Memory: the array is the list's own, mc_problems_fini() frees it. Threads: one owner. */
#include "recipe.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "../base/arena.h"

enum { CAP = 200 };

static void clean(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            *s = '?'; /* I3 */
}

/* A cut inside a UTF-8 sequence would make the JSON form of the message ugly: cut before it. */
static void cut_utf8(char *s, size_t cap)
{
    size_t n = strlen(s), i = n;

    if (n + 1 < cap)
        return;
    while (i > 0 && ((unsigned char)s[i - 1] & 0xC0) == 0x80)
        i--;
    if (i > 0 && (unsigned char)s[i - 1] >= 0xC0)
        s[i - 1] = '\0';
}

static void copy(char *dst, size_t cap, const char *src)
{
    snprintf(dst, cap, "%s", src ? src : "");
    cut_utf8(dst, cap);
    clean(dst);
}

void mc_problems_add(struct mc_problems *ps, const char *path, const char *file, int line,
                     const char *hint, const char *fmt, ...)
{
    struct mc_problem p;
    va_list ap;

    ps->said++;
    memset(&p, 0, sizeof p);
    copy(p.path, sizeof p.path, path);
    copy(p.file, sizeof p.file, file);
    copy(p.hint, sizeof p.hint, hint);
    p.line = line;
    va_start(ap, fmt);
    vsnprintf(p.message, sizeof p.message, fmt, ap);
    va_end(ap);
    cut_utf8(p.message, sizeof p.message);
    clean(p.message);

    for (int i = 0; i < ps->n; i++) /* I2 */
        if (strcmp(ps->p[i].path, p.path) == 0 && strcmp(ps->p[i].message, p.message) == 0)
            return;
    if (ps->n == ps->cap) {
        int cap = ps->cap ? ps->cap * 2 : 8;
        void *grown = NULL;
        if (ps->n < CAP)
            grown = mc_grow(ps->p, (size_t)ps->cap * sizeof p, (size_t)cap * sizeof p, "problems");
        if (!grown) {
            ps->dropped++; /* I1 */
            return;
        }
        ps->p = grown;
        ps->cap = cap;
    }
    if (ps->n >= CAP) {
        ps->dropped++;
        return;
    }
    ps->p[ps->n++] = p;
}

void mc_problems_fini(struct mc_problems *ps)
{
    mc_free(ps->p);
    memset(ps, 0, sizeof *ps);
}
