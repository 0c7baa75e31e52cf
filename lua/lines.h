/* lines.h - where the keys of table constructors stand in a Lua text. */
#pragma once
#include <stddef.h>

/* An entry of a constructor, or a constructor that is no entry of another. */
struct mc_line_node {
    const char *name;   /* key, or "1", "2" ...; NULL: a root. Not NUL-terminated: len */
    int len, position;  /* position > 0: positional entry */
    int line;           /* of the key (root: of its brace) */
    int call_line;      /* of '{' (or of the '(' just before it); 0: its value is no constructor */
    const char *callee; /* last name before the brace: "decoder" of m.decoder { }; NULL: none */
    int callee_len;
    int parent, child, next; /* indices, -1 none; children in text order */
};
struct mc_lines {
    int n, cap;
    struct mc_line_node *node;
};
/* Never fails on odd text: what it does not understand has no lines. NULL: no memory.
 * Borrows `text`. */
struct mc_lines *mc_lines_create(const char *text, size_t n);
void mc_lines_destroy(struct mc_lines *l);
/* -1: none. */
int mc_lines_key(const struct mc_lines *l, int node, const char *key);
int mc_lines_position(const struct mc_lines *l, int node, int position);
/* The constructor whose call begins on this line, best one named `callee` (may be NULL). -1. */
int mc_lines_constructor(const struct mc_lines *l, int call_line, const char *callee);
/* The last constructor right after `return`. */
int mc_lines_returned(const struct mc_lines *l);
/* 1: the text is one Lua literal: number, string, boolean, or a table of literals. */
int mc_lines_is_literal(const char *text);
