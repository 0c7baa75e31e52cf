/* nearest.c - the known word that a mistyped one probably meant.
 * Floor 1 (recipe). Includes: own folder only.
 *
 * Distance: insertions, deletions, substitutions and swaps of neighbours, upper and lower case
 * being equal.
 * I1  A suggestion is within a third of the longer word, so that "tp" never suggests "pp".
 * I2  Ties go to the earlier known word: the same hint on every machine. Words beyond 64 bytes
 *     are near nothing.
 * Memory: the stack. Threads: pure. */
#include "recipe.h"
#include <string.h>

enum { LONGEST = 64 };

static int lower(char c)
{
    return c >= 'A' && c <= 'Z' ? c + 32 : (unsigned char)c;
}
static int min3(int a, int b, int c)
{
    return a < b ? (a < c ? a : c) : (b < c ? b : c);
}

static int distance(const char *a, int na, const char *b, int nb)
{
    int row[3][LONGEST + 1]; /* of the table: i - 2, i - 1, i */

    for (int j = 0; j <= nb; j++)
        row[1][j] = j;
    for (int i = 1; i <= na; i++) {
        int *cur = row[(i + 1) % 3], *up = row[i % 3], *up2 = row[(i + 2) % 3];
        cur[0] = i;
        for (int j = 1; j <= nb; j++) {
            int cost = lower(a[i - 1]) != lower(b[j - 1]);
            cur[j] = min3(up[j] + 1, cur[j - 1] + 1, up[j - 1] + cost);
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                lower(a[i - 2]) == lower(b[j - 1]) && up2[j - 2] + 1 < cur[j])
                cur[j] = up2[j - 2] + 1;
        }
    }
    return row[(na + 1) % 3][nb];
}

const char *mc_nearest(const char *word, const char *const *known, int n)
{
    size_t nw = strlen(word);
    const char *best = NULL;
    int best_d = LONGEST + 1;

    if (nw > LONGEST)
        return NULL;
    for (int i = 0; i < n; i++) {
        size_t nk = strlen(known[i]);
        int longer = (int)(nk > nw ? nk : nw), d;
        if (nk > LONGEST || nk == 0)
            continue;
        d = distance(word, (int)nw, known[i], (int)nk);
        if (d <= longer / 3 && d < best_d) { /* I1, I2 */
            best = known[i];
            best_d = d;
        }
    }
    return best;
}
