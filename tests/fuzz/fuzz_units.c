/* fuzz_units.c - any text as a quantity: refused with a reason, or printed so that it reads back
 * the same. links: mc_recipe */
#include <stdlib.h>
#include <string.h>
#include "../../core/recipe/units.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mc_quantity q, again;
    char why[128] = "", text[48];
    char *s = malloc(size + 1);
    if (!s)
        abort();
    if (size)
        memcpy(s, data, size);
    s[size] = 0;
    if (mc_units_parse(s, &q, why) == 0) {
        if (q.n < 0)
            abort();
        mc_units_print(q, text);
        if (mc_units_parse(text, &again, why) != 0 || again.n != q.n || again.unit != q.unit)
            abort();
    } else if (!why[0] || !memchr(why, 0, sizeof why)) {
        abort();
    }
    free(s);
    return 0;
}
