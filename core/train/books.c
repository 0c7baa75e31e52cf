/* books.c - the books of a checkpoint as JSON. Floor 6 (train).
 *
 * One object; members:
 *     version        1
 *     step samples tokens skipped successful skips_in_row      totals, integers
 *     loss grad_norm lr  of the last step, null when not finite   lr_scale  hooks' factor
 *     weights_hash data_hash recipe_hash                       16 hex digits
 *     segment software fingerprint tokenizer                   who wrote it, on what
 *     layout         {tp cp ep dp pp world}
 *     spikes         {cap, norms: oldest first}
 *     owed           {eval, on_checkpoint}: due after this step, not done when this was written
 *     directive      {stop checkpoint eval anomaly_action lr_scale why}: in force in the next step
 *     cursor         core/data's: per source, samples and tokens read, weight in force, place
 *     data_weights   [..] of data.train: for cursors of before, which have no weights
 *     hooks          {file: state}
 *     recipe         the resolved recipe, so that a checkpoint can be used without its run
 *
 * I1  Every double is written so that it reads back bit for bit (core/base/json.h).
 * I2  Every member read is checked for type and range before use; damage is MC_E_CORRUPT.
 *
 * Memory: jansson keeps its own while reading. Threads: the trainer's. */
#include "train_int.h"
#include "../base/hash.h"
#include "../recipe/value.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mc_books_init(struct mc_books *b, const struct mc_recipe *r)
{
    memset(b, 0, sizeof *b);
    b->loss = b->grad_norm = b->lr = NAN;
    b->lr_scale = 1;
    mc_directive_clear(&b->pending);
    mc_spikes_init(&b->spikes, (int)r->anomaly.spike_window);
}

static void write_hash(struct mc_json *j, const char *key, uint64_t h)
{
    char hex[17];
    mc_hash_hex(h, hex);
    mc_json_str(j, key, hex);
}

static void write_directive(struct mc_json *j, const struct mc_directive *d)
{
    mc_json_open(j, "directive", '{');
    mc_json_bool(j, "stop", d->stop);
    mc_json_bool(j, "checkpoint", d->checkpoint);
    mc_json_bool(j, "eval", d->eval);
    mc_json_i64(j, "anomaly_action", d->anomaly_action);
    mc_json_f64(j, "lr_scale", d->lr_scale);
    mc_json_str(j, "why", d->why);
    mc_json_close(j, '}');
}

mc_status mc_books_write(const struct mc_books *b, const struct mc_books_run *run,
                         struct mc_json *j, struct mc_err *err)
{
    const struct mc_recipe *r = run->recipe;
    mc_json_open(j, NULL, '{');
    mc_json_i64(j, "version", 1);
    mc_json_i64(j, "step", b->at.steps);
    mc_json_i64(j, "samples", b->at.samples);
    mc_json_i64(j, "tokens", b->at.tokens);
    mc_json_i64(j, "skipped", b->skipped);
    mc_json_i64(j, "successful", b->successful);
    mc_json_i64(j, "skips_in_row", b->skips_in_row);
    mc_json_f64(j, "loss", b->loss);
    mc_json_f64(j, "grad_norm", b->grad_norm);
    mc_json_f64(j, "lr", b->lr);
    mc_json_f64(j, "lr_scale", b->lr_scale);
    write_hash(j, "weights_hash", b->weights_hash);
    write_hash(j, "data_hash", mc_data_hash(run->data));
    write_hash(j, "recipe_hash", mc_recipe_hash(r));
    mc_json_i64(j, "segment", b->segment);
    mc_json_str(j, "software", run->software);
    mc_json_str(j, "fingerprint", run->fingerprint);
    mc_json_str(j, "tokenizer", r->data.tokenizer);
    mc_json_open(j, "layout", '{');
    for (int a = 0; a < MC_NAXES; a++)
        mc_json_i64(j, mc_axis_name((enum mc_axis)a), run->layout ? run->layout->size[a] : 1);
    mc_json_i64(j, "world", run->layout ? run->layout->world : 1);
    mc_json_close(j, '}');
    mc_json_open(j, "spikes", '{');
    mc_json_i64(j, "cap", b->spikes.cap);
    mc_json_open(j, "norms", '[');
    for (int i = 0; i < b->spikes.n; i++) {
        int at = b->spikes.n == b->spikes.cap ? (b->spikes.head + i) % b->spikes.cap : i;
        mc_json_f64(j, NULL, b->spikes.ring[at]);
    }
    mc_json_close(j, ']');
    mc_json_close(j, '}');
    mc_json_open(j, "owed", '{');
    mc_json_bool(j, "eval", b->eval_owed);
    mc_json_bool(j, "on_checkpoint", b->call_owed);
    mc_json_close(j, '}');
    write_directive(j, &b->pending);
    struct mc_json inner;
    mc_json_init_grow(&inner);
    mc_cursor_write(run->data, &b->cursor, &inner);
    j->failed |= inner.failed;
    mc_json_raw(j, "cursor", inner.failed ? "null" : inner.buf);
    mc_json_fini(&inner);
    mc_json_open(j, "data_weights", '[');
    for (int i = 0; i < r->data.ntrain; i++)
        mc_json_f64(j, NULL, r->data.train[i].weight);
    mc_json_close(j, ']');
    if (run->hooks) {
        MC_TRY(run->hooks->save_state(run->hooks->ctx, j, "hooks", err));
    } else {
        mc_json_open(j, "hooks", '{');
        mc_json_close(j, '}');
    }
    mc_json_init_grow(&inner);
    mc_recipe_write_json(r, &inner);
    j->failed |= inner.failed;
    mc_json_raw(j, "recipe", inner.failed ? "null" : inner.buf);
    mc_json_fini(&inner);
    mc_json_close(j, '}');
    return j->failed ? mc_err_set(err, MC_E_NOMEM, "no memory for the books' text") : MC_OK;
}

/* ---- reading: small getters that name what is wrong (I2) ---- */

static mc_status bad(struct mc_err *err, const char *key, const char *want)
{
    return mc_err_set(err, MC_E_CORRUPT, "books of the checkpoint: \"%s\" is not %s", key, want);
}

static mc_status get_i64(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *out,
                         struct mc_err *err)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v) || json_integer_value(v) < lo || json_integer_value(v) > hi)
        return bad(err, key, "an integer in its range");
    *out = json_integer_value(v);
    return MC_OK;
}

static mc_status get_f64(const json_t *o, const char *key, double *out, struct mc_err *err)
{
    const json_t *v = json_object_get(o, key);
    if (json_is_null(v)) {
        *out = NAN;
        return MC_OK;
    }
    if (!json_is_number(v))
        return bad(err, key, "a number or null");
    *out = json_number_value(v);
    return MC_OK;
}

static mc_status get_bool(const json_t *o, const char *key, int *out, struct mc_err *err)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_boolean(v))
        return bad(err, key, "true or false");
    *out = json_is_true(v);
    return MC_OK;
}

static mc_status get_str(const json_t *o, const char *key, char *dst, size_t cap,
                         struct mc_err *err)
{
    const char *s = json_string_value(json_object_get(o, key));
    if (!s || strlen(s) >= cap)
        return bad(err, key, "a string of its length");
    memcpy(dst, s, strlen(s) + 1);
    return MC_OK;
}

static mc_status get_hash(const json_t *o, const char *key, uint64_t *out, struct mc_err *err)
{
    char s[17], *end;
    if (get_str(o, key, s, sizeof s, NULL) != MC_OK || strlen(s) != 16)
        return bad(err, key, "16 hex digits");
    uint64_t h = strtoull(s, &end, 16);
    if (*end)
        return bad(err, key, "16 hex digits");
    *out = h;
    return MC_OK;
}

static mc_status read_directive(const json_t *root, struct mc_directive *d, struct mc_err *err)
{
    const json_t *o = json_object_get(root, "directive");
    int64_t action;
    if (!json_is_object(o))
        return bad(err, "directive", "an object");
    MC_TRY(get_bool(o, "stop", &d->stop, err));
    MC_TRY(get_bool(o, "checkpoint", &d->checkpoint, err));
    MC_TRY(get_bool(o, "eval", &d->eval, err));
    MC_TRY(get_i64(o, "anomaly_action", -1, MC_ANOMALY_SKIP, &action, err));
    d->anomaly_action = (int)action;
    MC_TRY(get_f64(o, "lr_scale", &d->lr_scale, err));
    if (!isnan(d->lr_scale) && !(d->lr_scale >= 0))
        return bad(err, "lr_scale", "a factor");
    MC_TRY(get_str(o, "why", d->why, sizeof d->why, err));
    return MC_OK;
}

/* Checkpoints written before these members came have none of them. */
static mc_status read_owed(const json_t *root, struct mc_books *b, struct mc_err *err)
{
    const json_t *o = json_object_get(root, "owed");
    b->eval_owed = b->call_owed = 0;
    b->lr = NAN;
    if (json_object_get(root, "lr"))
        MC_TRY(get_f64(root, "lr", &b->lr, err));
    if (!o)
        return MC_OK;
    if (!json_is_object(o))
        return bad(err, "owed", "an object");
    MC_TRY(get_bool(o, "eval", &b->eval_owed, err));
    if (json_object_get(o, "on_checkpoint"))
        MC_TRY(get_bool(o, "on_checkpoint", &b->call_owed, err));
    return MC_OK;
}

/* A window of another size than the recipe's (it may change on resume) keeps the newest norms. */
static mc_status read_spikes(const json_t *root, int cap, struct mc_spikes *s, struct mc_err *err)
{
    const json_t *norms = json_object_get(json_object_get(root, "spikes"), "norms");
    size_t n = json_array_size(norms);
    if (!json_is_array(norms) || n > MC_SPIKES_MAX)
        return bad(err, "spikes", "a list of norms");
    mc_spikes_init(s, cap);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(norms, i);
        if (!json_is_number(v) || !(json_number_value(v) >= 0))
            return bad(err, "spikes.norms", "a list of norms");
        mc_spikes_push(s, json_number_value(v));
    }
    return MC_OK;
}

static int weights_differ(const json_t *root, const struct mc_recipe *r)
{
    const json_t *sources = json_object_get(json_object_get(root, "cursor"), "sources");
    if (json_object_get(json_array_get(sources, 0), "weight")) /* the cursor knows by itself */
        return 0;
    const json_t *w = json_object_get(root, "data_weights");
    if (!json_is_array(w) || json_array_size(w) != (size_t)r->data.ntrain)
        return 1;
    for (int i = 0; i < r->data.ntrain; i++)
        if (json_number_value(json_array_get(w, (size_t)i)) != r->data.train[i].weight)
            return 1;
    return 0;
}

static mc_status read_run(const json_t *root, const struct mc_books_run *run, struct mc_books *b,
                          struct mc_err *err)
{
    mc_status st;
    MC_TRY(read_spikes(root, (int)run->recipe->anomaly.spike_window, &b->spikes, err));
    char *text = json_dumps(json_object_get(root, "cursor"), JSON_COMPACT);
    if (!text)
        return bad(err, "cursor", "an object");
    st = mc_cursor_read(run->data, text, &b->cursor, weights_differ(root, run->recipe), err);
    free(text); /* jansson's */
    MC_TRY(st);
    if (!run->hooks)
        return MC_OK;
    text = json_dumps(json_object_get(root, "hooks"), JSON_COMPACT);
    if (!text)
        return bad(err, "hooks", "an object");
    st = run->hooks->load_state(run->hooks->ctx, text, err);
    free(text); /* jansson's */
    return mc_err_trail(err, st, __FILE__, __LINE__);
}

static mc_status read_all(const json_t *root, const struct mc_books_run *run, struct mc_books *b,
                          struct mc_books_seen *seen, struct mc_err *err)
{
    const int64_t most = INT64_C(1) << 62;
    int64_t version, segment;
    struct mc_books_seen who = {0};
    MC_TRY(get_i64(root, "version", 0, most, &version, err));
    if (version != 1)
        return mc_err_set(err, MC_E_CORRUPT,
                          "books of the checkpoint: version %lld, this program reads version 1; "
                          "use the program that wrote it",
                          (long long)version);
    MC_TRY(get_i64(root, "step", 0, most, &b->at.steps, err));
    MC_TRY(get_i64(root, "samples", 0, most, &b->at.samples, err));
    MC_TRY(get_i64(root, "tokens", 0, most, &b->at.tokens, err));
    MC_TRY(get_i64(root, "skipped", 0, b->at.steps, &b->skipped, err));
    MC_TRY(get_i64(root, "successful", 0, b->at.steps - b->skipped, &b->successful, err));
    MC_TRY(get_i64(root, "skips_in_row", 0, b->skipped, &b->skips_in_row, err));
    MC_TRY(get_f64(root, "loss", &b->loss, err));
    MC_TRY(get_f64(root, "grad_norm", &b->grad_norm, err));
    MC_TRY(get_f64(root, "lr_scale", &b->lr_scale, err));
    if (!(b->lr_scale >= 0))
        return bad(err, "lr_scale", "a factor");
    MC_TRY(get_hash(root, "weights_hash", &b->weights_hash, err));
    MC_TRY(get_hash(root, "data_hash", &who.data_hash, err));
    MC_TRY(get_hash(root, "recipe_hash", &who.recipe_hash, err));
    MC_TRY(get_i64(root, "segment", 0, INT32_MAX, &segment, err));
    b->segment = (int)segment;
    MC_TRY(get_str(root, "software", who.software, sizeof who.software, err));
    MC_TRY(get_str(root, "fingerprint", who.fingerprint, sizeof who.fingerprint, err));
    MC_TRY(read_owed(root, b, err));
    MC_TRY(read_directive(root, &b->pending, err));
    if (run)
        MC_TRY(read_run(root, run, b, err));
    if (seen)
        *seen = who;
    return MC_OK;
}

static mc_status parse(const char *json, json_t **root, struct mc_err *err)
{
    json_error_t je;
    json_t *o = json_loads(json, JSON_REJECT_DUPLICATES, &je);
    if (!json_is_object(o)) {
        json_decref(o);
        return mc_err_set(err, MC_E_CORRUPT, "books of the checkpoint: not a JSON object (%s)",
                          o ? "another value" : je.text);
    }
    *root = o;
    return MC_OK;
}

mc_status mc_books_read(const char *json, const struct mc_books_run *run, struct mc_books *b,
                        struct mc_books_seen *seen, struct mc_err *err)
{
    json_t *root;
    MC_TRY(parse(json, &root, err));
    struct mc_books *tmp = mc_alloc(sizeof *tmp, "books");
    mc_status st = tmp ? MC_OK : mc_err_set(err, MC_E_NOMEM, "no memory for the books");
    if (st == MC_OK) {
        *tmp = *b;
        st = read_all(root, run, tmp, seen, err);
    }
    if (st == MC_OK)
        *b = *tmp;
    mc_free(tmp);
    json_decref(root);
    return st;
}

mc_status mc_books_sources(const char *json, void (*each)(void *, const struct mc_books_source *),
                           void *arg, struct mc_err *err)
{
    json_t *root, *e;
    double tokens = 0, weight = 0;
    size_t i;
    MC_TRY(parse(json, &root, err));
    const json_t *list = json_object_get(json_object_get(root, "cursor"), "sources");
    json_array_foreach(list, i, e)
    {
        tokens += json_number_value(json_object_get(e, "tokens"));
        weight += json_number_value(json_object_get(e, "weight"));
    }
    json_array_foreach(list, i, e)
    {
        struct mc_books_source s = {.name = json_string_value(json_object_get(e, "name")),
                                    .samples = json_integer_value(json_object_get(e, "taken")),
                                    .tokens = json_integer_value(json_object_get(e, "tokens"))};
        s.share = tokens > 0 ? (double)s.tokens / tokens : 0;
        s.weight = json_number_value(json_object_get(e, "weight")) / weight;
        if (s.name && weight > 0)
            each(arg, &s);
    }
    json_decref(root);
    return MC_OK;
}

mc_status mc_books_recipe(const char *json, struct mc_recipe_box **box, struct mc_err *err)
{
    json_t *root;
    MC_TRY(parse(json, &root, err));
    char *text = json_dumps(json_object_get(root, "recipe"), JSON_COMPACT);
    json_decref(root);
    if (!text)
        return bad(err, "recipe", "an object");
    struct mc_problems problems = {0};
    struct mc_value *v;
    struct mc_values *pool = mc_values_create();
    mc_status st = pool ? mc_value_from_json(pool, text, strlen(text), "checkpoint", &v, err)
                        : mc_err_set(err, MC_E_NOMEM, "no memory for a recipe");
    if (st == MC_OK) {
        struct mc_err why = {0};
        st = mc_recipe_bind(v, &problems, box, &why);
        if (st != MC_OK)
            st = mc_err_set(err, MC_E_CORRUPT, "recipe kept in the checkpoint: %s: %s",
                            problems.n ? problems.p[0].path : "?",
                            problems.n ? problems.p[0].message : why.msg);
    }
    mc_problems_fini(&problems);
    mc_values_destroy(pool);
    free(text); /* jansson's */
    return st;
}
