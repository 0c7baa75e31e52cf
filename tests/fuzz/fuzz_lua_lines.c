/* fuzz_lua_lines.c - the lexer that finds keys' lines must survive any text.
 * links: mc_lua */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "../../lua/lines.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = malloc(n + 1); /* exact size: a read past the end is seen */
    if (!text)
        return 0;
    memcpy(text, data, n);
    text[n] = 0;
    struct mc_lines *l = mc_lines_create(text, n);
    if (l) {
        for (int i = 0; i < l->n; i++) {
            mc_lines_key(l, i, "layers");
            mc_lines_position(l, i, 1);
            mc_lines_constructor(l, l->node[i].call_line, "decoder");
        }
        mc_lines_returned(l);
    }
    mc_lines_destroy(l);
    if (!memchr(text, 0, n))
        mc_lines_is_literal(text);
    free(text);
    return 0;
}
