/* fuzz_line.c - any text as a run's schedule.txt: refused with a message, or a line whose text
 * reads back as itself and whose parts, slots and channels stay inside their bounds. links: mc_pipe
 * Input: the text. */
#include <stdlib.h>
#include <string.h>
#include "../../core/base/arena.h"
#include "../../core/graph/graph.h"
#include "../../core/pipe/line.h"

static void use(const struct mc_line *line)
{
    struct mc_line_channel channel[4 * MC_LINE_MAX_CHUNKS];
    for (int r = 0; r < line->ranks && r < 8; r++) {
        int all = 0, n = mc_line_channels(line, r, channel);
        for (int i = 0; i < n; i++)
            all += channel[i].room;
        if (all > mc_line_messages(line))
            abort();
        for (int k = 0; k < line->chunks; k++) {
            struct mc_graph_part part;
            mc_line_part(line, r, k, &part);
            if (part.slots < 1 || part.end_layer < part.first_layer)
                abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mc_err e = {0};
    struct mc_line *line, *again;
    char *text, *same;
    mc_status st = mc_line_parse((const char *)data, size, &line, &e);
    if (st != MC_OK) {
        if ((st != MC_E_FORMAT && st != MC_E_RECIPE) || !e.msg[0])
            abort();
        return 0;
    }
    use(line);
    if (mc_line_text(line, &text, NULL) != MC_OK || strlen(text) != size ||
        memcmp(text, data, size) != 0 || mc_line_parse(text, size, &again, &e) != MC_OK ||
        mc_line_text(again, &same, NULL) != MC_OK || strcmp(text, same))
        abort();
    mc_free(text);
    mc_free(same);
    mc_line_destroy(line);
    mc_line_destroy(again);
    return 0;
}
