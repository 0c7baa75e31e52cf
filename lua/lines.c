/* lines.c - a small lexer of Lua texts, for messages: which line does the key model.heads stand on?
 * Floor 7 (lua). Lua tells the line of a call, not of a table's key; this file tells the rest, by
 * the nesting of table constructors. It never decides what a recipe means.
 *
 * I1  A separator counts only where the innermost open thing is the constructor itself; functions
 *     and blocks inside a constructor are skipped whole.
 * I2  Any text is safe: unfinished strings and unmatched braces end the walk early, no more.
 *
 * Memory: one growing array of nodes, handle life; names point into the text. Threads: any. */
#include "lines.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include "../core/base/arena.h"

enum tok { T_END, T_NAME, T_STRING, T_NUMBER, T_PUNCT };
struct lexer {
    const char *p, *end;
    int line;
    enum tok tok;
    const char *s; /* the token's text; strings: without quotes */
    int len, tok_line;
    char c;  /* T_PUNCT: its character; '=' is a lone one ("==" is 'E') */
    int bad; /* unfinished string or comment */
};

static int long_bracket(const char *p, const char *end)
{
    int level = 0;
    if (p >= end || *p != '[')
        return -1;
    for (p++; p < end && *p == '='; p++)
        level++;
    return p < end && *p == '[' ? level : -1;
}

/* p at "[==["; returns past "]==]"; counts lines. */
static const char *skip_long(struct lexer *x, const char *p, int level, const char **body, int *len)
{
    p += level + 2;
    *body = p;
    for (; p < x->end; p++) {
        if (*p == '\n')
            x->line++;
        if (*p != ']')
            continue;
        const char *q = p + 1;
        int n = 0;
        while (q < x->end && *q == '=') {
            n++;
            q++;
        }
        if (n == level && q < x->end && *q == ']') {
            *len = (int)(p - *body);
            return q + 1;
        }
    }
    x->bad = 1;
    *len = (int)(p - *body);
    return p;
}

static void skip_space(struct lexer *x)
{
    while (x->p < x->end) {
        if (*x->p == '\n')
            x->line++;
        if (isspace((unsigned char)*x->p)) {
            x->p++;
        } else if (x->p + 1 < x->end && x->p[0] == '-' && x->p[1] == '-') {
            const char *body;
            int len;
            const int level = long_bracket(x->p + 2, x->end);
            if (level >= 0)
                x->p = skip_long(x, x->p + 2, level, &body, &len);
            else
                while (x->p < x->end && *x->p != '\n')
                    x->p++;
        } else {
            return;
        }
    }
}

static void lex_quoted(struct lexer *x, char quote)
{
    x->tok = T_STRING;
    x->s = ++x->p;
    while (x->p < x->end && *x->p != quote && *x->p != '\n') {
        if (*x->p == '\\' && x->p + 1 < x->end) {
            if (x->p[1] == '\n')
                x->line++;
            x->p++;
        }
        x->p++;
    }
    x->len = (int)(x->p - x->s);
    if (x->p < x->end && *x->p == quote)
        x->p++;
    else
        x->bad = 1;
}

static void lex(struct lexer *x)
{
    skip_space(x);
    x->tok_line = x->line;
    x->s = x->p;
    x->len = 0;
    x->c = 0;
    if (x->p >= x->end) {
        x->tok = T_END;
        return;
    }
    const unsigned char c = (unsigned char)*x->p;
    const int level = long_bracket(x->p, x->end);
    if (isalpha(c) || c == '_') {
        x->tok = T_NAME;
        while (x->p < x->end && (isalnum((unsigned char)*x->p) || *x->p == '_'))
            x->p++;
        x->len = (int)(x->p - x->s);
    } else if (isdigit(c) || (c == '.' && x->p + 1 < x->end && isdigit((unsigned char)x->p[1]))) {
        x->tok = T_NUMBER;
        while (x->p < x->end && (isalnum((unsigned char)*x->p) || *x->p == '.' ||
                                 ((*x->p == '-' || *x->p == '+') && strchr("eEpP", x->p[-1]))))
            x->p++;
        x->len = (int)(x->p - x->s);
    } else if (c == '"' || c == '\'') {
        lex_quoted(x, (char)c);
    } else if (level >= 0) {
        x->tok = T_STRING;
        x->p = skip_long(x, x->p, level, &x->s, &x->len);
    } else {
        x->tok = T_PUNCT;
        x->c = (char)c;
        x->p++;
        if (x->p < x->end && *x->p == '=' && strchr("=~<>", c)) {
            x->c = 'E';
            x->p++;
        }
    }
}

static int is_word(const struct lexer *x, const char *w)
{
    return x->tok == T_NAME && (int)strlen(w) == x->len && !memcmp(x->s, w, strlen(w));
}

/* -- The tree -------------------------------------------------------------------------------- */

enum { MAX_OPEN = 200 };
struct open { /* something not yet closed: '{' '(' '[' or 'w' (a block of words ending in `end`) */
    char c;
    int node;     /* '{': whose entries follow */
    int entry;    /* '{': entry being read, -1 between entries */
    int last;     /* '{': its last child, -1 */
    int position; /* '{': positional entries so far */
    int line;
};

static int add_node(struct mc_lines *l, struct mc_line_node nd)
{
    if (l->n == l->cap) {
        const int cap = l->cap ? 2 * l->cap : 64;
        struct mc_line_node *p =
            mc_grow(l->node, (size_t)l->cap * sizeof *p, (size_t)cap * sizeof *p, "line nodes");
        if (!p)
            return -1;
        l->node = p;
        l->cap = cap;
    }
    nd.child = nd.next = -1;
    l->node[l->n] = nd;
    return l->n++;
}

static int begin_entry(struct mc_lines *l, struct open *o, struct lexer *x)
{
    struct mc_line_node nd = {.line = x->tok_line, .parent = o->node};
    struct lexer ahead = *x;
    if (x->tok == T_NAME) {
        lex(&ahead);
        if (ahead.tok == T_PUNCT && ahead.c == '=') {
            nd.name = x->s;
            nd.len = x->len;
        }
    } else if (x->tok == T_PUNCT && x->c == '[') {
        lex(&ahead);
        struct lexer str = ahead;
        lex(&ahead);
        if (str.tok == T_STRING && ahead.tok == T_PUNCT && ahead.c == ']') {
            nd.name = str.s;
            nd.len = str.len;
        }
    }
    if (!nd.name) {
        nd.name = "";
        nd.position = ++o->position;
    }
    const int i = add_node(l, nd);
    if (i < 0)
        return -1;
    if (o->last >= 0)
        l->node[o->last].next = i;
    else
        l->node[o->node].child = i;
    o->last = i;
    o->entry = i;
    if (nd.position == 0)
        *x = ahead; /* past the name, or past `["name"]` */
    return nd.position;
}

struct walk {
    struct mc_lines *l;
    struct lexer x;
    struct open st[MAX_OPEN];
    int depth;
    const char *callee; /* last name, while only dots and parentheses followed it */
    int callee_len;
    int paren; /* the last token was '(' */
    int after_return;
};

/* At '{': a new constructor, attached to the entry being read if it is that entry's first. */
static int open_brace(struct walk *w)
{
    struct mc_lines *l = w->l;
    struct open *top = w->depth ? &w->st[w->depth - 1] : NULL;
    const int in_paren = top && top->c == '(' && w->paren;
    struct open *owner = top && top->c == '{' ? top : NULL;
    if (!owner && in_paren && w->depth > 1 && w->st[w->depth - 2].c == '{')
        owner = &w->st[w->depth - 2];
    int i = -1;
    if (owner && owner->entry >= 0 && l->node[owner->entry].call_line == 0)
        i = owner->entry;
    else
        i = add_node(l, (struct mc_line_node){.line = w->x.tok_line, .parent = -1});
    if (i < 0 || w->depth == MAX_OPEN)
        return 0;
    struct mc_line_node *nd = &l->node[i];
    nd->call_line = in_paren ? top->line : w->x.tok_line;
    nd->callee = w->callee;
    nd->callee_len = w->callee_len;
    if (w->after_return)
        nd->position = nd->parent < 0 ? -1 : nd->position; /* -1: a root that is returned */
    w->st[w->depth++] = (struct open){.c = '{', .node = i, .entry = -1, .last = -1};
    return 1;
}

static int closes(char c, char open)
{
    return (c == '}' && open == '{') || (c == ')' && open == '(') || (c == ']' && open == '[');
}

static int step_punct(struct walk *w)
{
    struct open *top = w->depth ? &w->st[w->depth - 1] : NULL;
    const char c = w->x.c;
    if (c == '{') {
        if (!open_brace(w))
            return 0;
        w->callee = NULL;
        w->paren = 0;
    } else if (c == '(' || c == '[') {
        if (w->depth == MAX_OPEN)
            return 0;
        w->st[w->depth++] = (struct open){.c = c, .node = -1, .line = w->x.tok_line};
        w->paren = c == '(';
    } else if (c == '}' || c == ')' || c == ']') {
        if (!top || !closes(c, top->c))
            return 0; /* I2 */
        w->depth--;
        w->callee = NULL;
        w->paren = 0;
    } else {
        if (top && top->c == '{' && (c == ',' || c == ';')) /* I1 */
            top->entry = -1;
        if (c != '.')
            w->callee = NULL;
        w->paren = 0;
    }
    return 1;
}

static int step_word(struct walk *w)
{
    const struct lexer *x = &w->x;
    struct open *top = w->depth ? &w->st[w->depth - 1] : NULL;
    const int in_loop = top && top->c == 'l';
    if (is_word(x, "function") || is_word(x, "if") || is_word(x, "repeat") || is_word(x, "while") ||
        is_word(x, "for") || is_word(x, "do")) {
        if (is_word(x, "do") && in_loop) {
            top->c = 'w'; /* the do of a for or while: one block, one end */
            return 1;
        }
        if (w->depth == MAX_OPEN)
            return 0;
        const char c = is_word(x, "while") || is_word(x, "for") ? 'l' : 'w';
        w->st[w->depth++] = (struct open){.c = c, .node = -1};
    } else if (is_word(x, "end") || is_word(x, "until")) {
        if (!top || top->c != 'w')
            return 0;
        w->depth--;
    }
    if (is_word(x, "return")) {
        w->callee = NULL;
    } else {
        w->callee = x->s;
        w->callee_len = x->len;
    }
    w->paren = 0;
    return 1;
}

struct mc_lines *mc_lines_create(const char *text, size_t n)
{
    struct mc_lines *l = mc_alloc(sizeof *l, "lines");
    if (!l)
        return NULL;
    struct walk w = {.l = l, .x = {.p = text, .end = text + n, .line = 1}};
    for (lex(&w.x); w.x.tok != T_END && !w.x.bad; lex(&w.x)) {
        struct open *top = w.depth ? &w.st[w.depth - 1] : NULL;
        if (top && top->c == '{' && top->entry < 0 &&
            !(w.x.tok == T_PUNCT && strchr("},;", w.x.c))) {
            const int pos = begin_entry(l, top, &w.x);
            if (pos < 0)
                break;
            w.callee = NULL;
            if (pos == 0)
                continue; /* the key itself is read */
        }
        int ok = 1;
        if (w.x.tok == T_PUNCT)
            ok = step_punct(&w);
        else if (w.x.tok == T_NAME)
            ok = step_word(&w);
        if (!ok)
            break;
        /* `return` holds over the callee's names, up to its brace */
        if (is_word(&w.x, "return"))
            w.after_return = w.depth == 0;
        else if (!(w.x.tok == T_NAME || (w.x.tok == T_PUNCT && strchr(".(", w.x.c))))
            w.after_return = 0;
    }
    return l;
}

void mc_lines_destroy(struct mc_lines *l)
{
    if (l) {
        mc_free(l->node);
        mc_free(l);
    }
}

int mc_lines_key(const struct mc_lines *l, int node, const char *key)
{
    if (!l || node < 0)
        return -1;
    const int n = (int)strlen(key);
    int found = -1; /* the last one wins, as in Lua */
    for (int i = l->node[node].child; i >= 0; i = l->node[i].next)
        if (l->node[i].position == 0 && l->node[i].len == n &&
            !memcmp(l->node[i].name, key, (size_t)n))
            found = i;
    return found;
}

int mc_lines_position(const struct mc_lines *l, int node, int position)
{
    if (l && node >= 0)
        for (int i = l->node[node].child; i >= 0; i = l->node[i].next)
            if (l->node[i].position == position)
                return i;
    return -1;
}

int mc_lines_constructor(const struct mc_lines *l, int call_line, const char *callee)
{
    int any = -1;
    for (int i = 0; l && i < l->n; i++) {
        const struct mc_line_node *nd = &l->node[i];
        if (nd->call_line != call_line)
            continue;
        if (callee && nd->callee && nd->callee_len == (int)strlen(callee) &&
            !memcmp(nd->callee, callee, strlen(callee)))
            return i;
        if (any < 0)
            any = i;
    }
    return any;
}

int mc_lines_returned(const struct mc_lines *l)
{
    for (int i = l ? l->n - 1 : -1; i >= 0; i--)
        if (l->node[i].parent < 0 && l->node[i].position == -1)
            return i;
    return -1;
}

int mc_lines_is_literal(const char *text)
{
    struct lexer x = {.p = text, .end = text + strlen(text), .line = 1};
    int depth = 0, value = 0; /* value: a value was just read */
    for (lex(&x); x.tok != T_END; lex(&x)) {
        if (x.bad)
            return 0;
        if (x.tok == T_STRING || x.tok == T_NUMBER || is_word(&x, "true") || is_word(&x, "false")) {
            if (value)
                return 0;
            value = 1;
        } else if (x.tok == T_NAME) { /* only as a key */
            struct lexer ahead = x;
            lex(&ahead);
            if (!depth || value || ahead.tok != T_PUNCT || ahead.c != '=')
                return 0;
        } else if (strchr("{[", x.c)) {
            if (value || (x.c == '[' && !depth))
                return 0;
            depth++;
        } else if (strchr("}]", x.c)) {
            if (--depth < 0)
                return 0;
            value = 1;
        } else if (x.c == '-') {
            if (value)
                return 0;
        } else if (strchr(",;=", x.c)) {
            if (!depth)
                return 0;
            value = 0;
        } else {
            return 0;
        }
    }
    return depth == 0 && value && !x.bad;
}
