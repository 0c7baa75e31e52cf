/* phase.c - data.phases: other sequence lengths, weights and batches from points of progress on.
 * Floor 1 (recipe). Includes: own folder.
 *
 * A phase begins with the first step that begins at or after its `from`, and says only what
 * changes: what it does not give is as before. Before the first phase model.seq, the weights of
 * data.train and batch.* hold.
 *
 * I1  The longest sequence is what memory, rope tables and the checks of positions are planned for;
 *     shorter phases run within it.
 * I2  A batch in tokens is whole samples in every phase that it holds in (cross.c).
 * Memory: fills the recipe; copies. Threads: one owner. */
#include "recipe_int.h"
#include <string.h>

int64_t mc_recipe_longest(const struct mc_recipe *r)
{
    int64_t most = r->model.seq;
    for (int i = 0; i < r->data.nphases; i++)
        most = r->data.phase[i].seq > most ? r->data.phase[i].seq : most;
    return most;
}

int64_t mc_recipe_block(const struct mc_recipe *r)
{
    return r->data.block > 0 ? r->data.block : mc_recipe_longest(r);
}

static void bind_weights(struct mc_binder *b, const struct mc_value *v, struct mc_phase_cfg *p)
{
    double sum = 0;
    if (!mc_bind_is_list(b, v, "a list of numbers, one a source of data.train", MC_MAX_SOURCES))
        return;
    for (int i = 0; i < v->n; i++) {
        size_t mark = mc_bind_enter(b, "[%d]", i + 1);
        mc_bind_num(b, v->item[i], 0, 1e12, 0, &p->weight[i]);
        mc_bind_leave(b, mark);
        sum += p->weight[i];
    }
    p->nweights = v->n;
    if (!(sum > 0))
        mc_bind_bad(b, v, "", "draws from no source: one must be above 0");
}

static void bind_batch(struct mc_binder *b, const struct mc_value *v, struct mc_quantity *q)
{
    if (mc_bind_quantity(b, v, MC_UNIT_SAMPLES, 1u << MC_UNIT_SAMPLES | 1u << MC_UNIT_TOKENS, q))
        return;
    if (q->n < 1 || q->n > INT64_C(1) << (q->unit == MC_UNIT_SAMPLES ? 31 : 53))
        mc_bind_bad(b, v, "", "must be from 1 to 2^31 samples, or up to 2^53 tokens");
}

static void bind_phase(struct mc_binder *b, const struct mc_value *v, struct mc_phase_cfg *p)
{
    static const char *const known[] = {"batch", "from", "seq", "weights", NULL};
    const struct mc_value *from = mc_bind_get(v, "from"), *seq = mc_bind_get(v, "seq"),
                          *weights = mc_bind_get(v, "weights"), *batch = mc_bind_get(v, "batch");
    size_t mark;

    if (v->kind != MC_V_MAP || v->tag) {
        mc_bind_bad(b, v, "",
                    "must be { from = point, seq = n, weights = { ... }, batch = n }, not %s",
                    mc_bind_kind(v));
        return;
    }
    mc_bind_only(b, v, known);
    if (!from)
        mc_bind_bad(b, v, "such as from = \"2B tokens\"", "must say where it begins: from");
    if (!seq && !weights && !batch)
        mc_bind_bad(b, v, "", "changes nothing: give seq, weights or batch");
    if (from) {
        mark = mc_bind_enter(b, ".from");
        mc_bind_quantity(b, from, MC_UNIT_STEPS,
                         1u << MC_UNIT_STEPS | 1u << MC_UNIT_SAMPLES | 1u << MC_UNIT_TOKENS,
                         &p->from);
        mc_bind_leave(b, mark);
    }
    if (seq) {
        mark = mc_bind_enter(b, ".seq");
        mc_bind_int(b, seq, 1, INT64_C(1) << 24, &p->seq);
        mc_bind_leave(b, mark);
    }
    if (weights) {
        mark = mc_bind_enter(b, ".weights");
        bind_weights(b, weights, p);
        mc_bind_leave(b, mark);
    }
    if (batch) {
        mark = mc_bind_enter(b, ".batch");
        bind_batch(b, batch, &p->batch);
        mc_bind_leave(b, mark);
    }
}

void mc_bind_phases(struct mc_binder *b, const struct mc_value *v)
{
    struct mc_data_cfg *d = &b->box->r.data;

    if (!mc_bind_is_list(b, v, "a list of { from = point, seq = n, ... }", MC_MAX_PHASES))
        return;
    for (int i = 0; i < v->n; i++) {
        size_t mark = mc_bind_enter(b, "[%d]", i + 1);
        bind_phase(b, v->item[i], &d->phase[i]);
        mc_bind_leave(b, mark);
    }
    d->nphases = v->n;
}

void mc_write_phases(const struct mc_recipe *r, struct mc_json *j, const char *key, int lines)
{
    char text[48];

    (void)lines;
    mc_json_open(j, key, '[');
    for (int i = 0; i < r->data.nphases; i++) {
        const struct mc_phase_cfg *p = &r->data.phase[i];
        mc_json_open(j, NULL, '{');
        if (p->batch.n > 0) {
            mc_units_print(p->batch, text);
            mc_json_str(j, "batch", text);
        }
        mc_units_print(p->from, text);
        mc_json_str(j, "from", text);
        if (p->seq > 0)
            mc_json_i64(j, "seq", p->seq);
        if (p->nweights > 0) {
            mc_json_open(j, "weights", '[');
            for (int s = 0; s < p->nweights; s++)
                mc_json_f64(j, NULL, p->weight[s]);
            mc_json_close(j, ']');
        }
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
}
