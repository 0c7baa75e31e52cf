/* stage.c - parallel.stages: how a pipeline's layers are cut.
 * Floor 1 (recipe). Includes: own folder.
 *
 * Written as a word, as a list in Lua or as its text ("3,2,2,1"); kept as text, since that is what
 * the books of a run hold.
 *
 * I1  The kept text is a word or whole numbers with one comma between them: equal lists are equal
 *     texts.
 * I2  Whether the list fits the model and the pipeline is cross.c's to say.
 * Memory: fills the recipe. Threads: one owner. */
#include "recipe_int.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LAYERS = 1 << 20 };
static const char form[] = "\"even\", \"auto\" or a list of layers a stage such as { 3, 2, 2, 1 }";

static int append(struct mc_binder *b, const struct mc_value *v, char text[MC_PATH], int64_t n)
{
    size_t at = strlen(text);
    int more = snprintf(text + at, MC_PATH - at, "%s%lld", at ? "," : "", (long long)n);

    if (more >= (int)(MC_PATH - at)) {
        mc_bind_bad(b, v, "", "too many stages: the list is longer than %d characters as text",
                    MC_PATH - 1);
        return -1;
    }
    return 0;
}

/* "3, 2,2,1". -1: no such list, said. */
static int list_of_text(struct mc_binder *b, const struct mc_value *v, char text[MC_PATH])
{
    const char *s = v->str;

    for (;;) {
        char *end;
        while (*s == ' ')
            s++;
        if (*s < '0' || *s > '9')
            break;
        long n = strtol(s, &end, 10);
        if (n > MOST_LAYERS)
            break;
        if (append(b, v, text, n))
            return -1;
        for (s = end; *s == ' ';)
            s++;
        if (!*s)
            return 0;
        if (*s++ != ',')
            break;
    }
    mc_bind_bad(b, v, "", "must be %s, not \"%.60s\"", form, v->str);
    return -1;
}

void mc_bind_stages(struct mc_binder *b, const struct mc_value *v)
{
    char text[MC_PATH] = "", *dst = b->box->r.parallel.stages;

    if (v->kind == MC_V_STR && (strcmp(v->str, "even") == 0 || strcmp(v->str, "auto") == 0)) {
        snprintf(text, sizeof text, "%s", v->str);
    } else if (v->kind == MC_V_STR) {
        if (list_of_text(b, v, text))
            return;
    } else {
        if (!mc_bind_is_list(b, v, form, MC_MAX_STAGES))
            return;
        if (v->n == 0) {
            mc_bind_bad(b, v, "stages = \"even\"", "names no stage");
            return;
        }
        for (int i = 0; i < v->n; i++) {
            size_t mark = mc_bind_enter(b, "[%d]", i + 1);
            int64_t n;
            int bad = mc_bind_int(b, v->item[i], 0, MOST_LAYERS, &n) || append(b, v, text, n);
            mc_bind_leave(b, mark);
            if (bad)
                return;
        }
    }
    memcpy(dst, text, sizeof text);
}

void mc_write_stages(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    (void)lines;
    mc_json_str(j, key, r->parallel.stages);
}

int mc_recipe_stages(const struct mc_parallel_cfg *p, int layers[MC_MAX_STAGES])
{
    int n = 0;

    for (const char *s = p->stages; *s >= '0' && *s <= '9' && n < MC_MAX_STAGES;) { /* I1 */
        char *end;
        layers[n++] = (int)strtol(s, &end, 10);
        s = *end ? end + 1 : end;
    }
    return n;
}
