/* sampler.c - the order in which samples are drawn: computed, never stored.
 * Floor 3 (data). Includes: base recipe.
 *
 * Source s has K blocks of B tokens (data.h). Pass e over it takes block
 *   permute(key(seed, name(s), e), K, i)         i = 0 .. K-1
 * as its i-th: every block once, each pass in an order of its own. At T = B a block is a sample. At
 * T = B / m, m > 1, blocks are taken in groups of W = max(1, K / 32) (the last of a pass may be
 * smaller), and the W m samples of a group drawn in an order permuted by its own key: so what is
 * read next to each other does not lie next to each other.
 *
 * A change of the sequence length, to T2, keeps the pass and its books:
 *   - if T2 divides the pass's B, the pass goes on with the next block that no group has touched.
 *     No token is read twice in a pass, and lost to it is only what the group in hand had left: at
 *     most a 32nd of the source, or one block.
 *   - if not (a longer phase was added than the run had room for), the pass ends there and the next
 *     begins, in blocks of data.block: tokens may come again before all have come once. Give
 *     data.block from the start to leave room.
 * A pass that ends by itself is followed by one in blocks of data.block.
 *
 * Which source gives the next draw: w_s its weight (normalised to sum 1), n_s the draws from s and
 * t all draws, both counted since the weights were last set. A source may be drawn while it is not
 * ahead, n_s < w_s * (t + 1); of those the one whose next draw is due first, at (n_s + 1) / w_s
 * (ties: the first). In every prefix of the run n_s is within one of its exact share w_s * t: this
 * is earliest-deadline-first on one machine that is exactly full, which meets every deadline.
 * (Taking the source that is furthest behind instead can leave one more than a sample behind.)
 *
 * I1  One place a source in the cursor; order within a source knows nothing of other sources, their
 *     weights, the batch, the ranks or how long the run is.
 * I2  New weights only move `phase_base`: the source goes on where it was, nothing repeats.
 * I3  A source is known by its name: the last two components of its absolute path, without .idx or
 *     .bin; a second source of the same name becomes NAME#2, then #3, in the order of the recipe.
 *     So the order survives moving a data tree, and a cursor does not fit other data by accident.
 * I4  With data.order = "megatron" the order is that of megatron.c; the cursor is the same, with
 *     `phase_base` 0, and goes on only over the same index (order_hash) and weights.
 * Threads: the draw is the control thread's; everything else is pure. */
#include "data_int.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "../base/hash.h"
#include "../base/rng.h"

/* ---- names ---- */

mc_status mc_order_abs(const char *base, const char *path, char dst[MC_PATH], struct mc_err *err)
{
    char all[4 * MC_PATH], cwd[MC_PATH] = "";
    if (path[0] == 0)
        return mc_err_set(err, MC_E_NOTFOUND, "the path of a data source is empty");
    if (path[0] != '/' && (!base || base[0] != '/') && !getcwd(cwd, sizeof cwd))
        return mc_err_sys(err, "name of the working folder");
    int n;
    if (path[0] == '/')
        n = snprintf(all, sizeof all, "%s", path);
    else
        n = snprintf(all, sizeof all, "%s/%s/%s", cwd, base ? base : ".", path);
    if (n < 0 || (size_t)n >= sizeof all)
        return mc_err_set(err, MC_E_NOTFOUND, "path is too long: %.80s...", path);
    size_t len = 0; /* dst holds "/a/b", or nothing for the root */
    for (const char *p = all; *p;) {
        size_t c = strcspn(p, "/");
        if (c == 2 && p[0] == '.' && p[1] == '.') {
            while (len > 0 && dst[--len] != '/')
                ;
        } else if (c > 0 && !(c == 1 && p[0] == '.')) {
            if (len + c + 2 > MC_PATH)
                return mc_err_set(err, MC_E_NOTFOUND, "path is too long: %.80s...", path);
            dst[len++] = '/';
            memcpy(dst + len, p, c);
            len += c;
        }
        p += c + (p[c] == '/');
    }
    if (len == 0)
        dst[len++] = '/';
    dst[len] = 0;
    return MC_OK;
}

void mc_order_name(const char *abs_path, char *dst, size_t cap)
{
    size_t n = strlen(abs_path);
    if (n > 4 && (!strcmp(abs_path + n - 4, ".idx") || !strcmp(abs_path + n - 4, ".bin")))
        n -= 4;
    size_t at = n;
    for (int slashes = 0; at > 0; at--)
        if (abs_path[at - 1] == '/' && ++slashes == 2)
            break;
    if (at < n && abs_path[at] == '/')
        at++; /* only one component */
    snprintf(dst, cap, "%.*s", (int)(n - at), abs_path + at);
}

/* ---- order ---- */

uint64_t mc_order_key(int64_t seed, const char *name)
{
    char key[MC_PATH + 32];
    snprintf(key, sizeof key, "data.order/%s", name);
    return mc_rng_key((uint64_t)seed, key);
}

void mc_order_sample(const struct mc_order *o, uint64_t taken, uint64_t *index, uint64_t *epoch)
{
    *epoch = taken / o->samples;
    *index = mc_rng_permute(mc_rng_u64(o->key, *epoch, 0), o->samples, taken % o->samples);
}

int mc_order_next(const double *weight, int n, const struct mc_cursor *c, uint64_t total)
{
    int best = -1, some = 0;
    double first = INFINITY;
    for (int i = 0; i < n; i++) {
        double given = (double)(c->taken[i] - c->phase_base[i]), due = (given + 1) / weight[i];
        some = weight[some] > 0 ? some : i;
        if (given < weight[i] * ((double)total + 1) && due < first) {
            best = i;
            first = due;
        }
    }
    return best >= 0 ? best : some; /* none, by a rounding: any that has a share */
}

void mc_cursor_init(const struct mc_data *d, struct mc_cursor *c)
{
    memset(c, 0, sizeof *c);
    c->nsources = d->ntrain;
    c->seq = d->seq;
    for (int s = 0; s < d->ntrain; s++) {
        c->weight[s] = d->weight[s];
        c->block[s] = d->block;
    }
}

/* Blocks of the pass in hand. */
static uint64_t blocks(const struct mc_data *d, const struct mc_cursor *c, int s)
{
    return (uint64_t)((d->train[s].tokens - 1) / c->block[s]);
}

/* Blocks of the group in hand; m: samples of a block. */
static uint64_t group(uint64_t k, uint64_t m, uint64_t at)
{
    uint64_t w = m > 1 && k / 32 > 1 ? k / 32 : 1;
    return w < k - at ? w : k - at;
}

static void end_pass(const struct mc_data *d, struct mc_cursor *c, int s)
{
    c->pass[s]++;
    c->at[s] = c->in_group[s] = 0;
    c->block[s] = d->block;
}

static void end_group(const struct mc_data *d, struct mc_cursor *c, int s, uint64_t w)
{
    c->at[s] += w;
    c->in_group[s] = 0;
    if (c->at[s] == blocks(d, c, s))
        end_pass(d, c, s);
}

static void change_length(const struct mc_data *d, struct mc_cursor *c, int s, int64_t seq)
{
    uint64_t k = blocks(d, c, s), m = (uint64_t)(c->block[s] / c->seq);
    if (c->in_group[s] > 0)
        end_group(d, c, s, group(k, m, c->at[s]));
    if (c->block[s] % seq == 0)
        return;
    if (c->at[s] > 0)
        end_pass(d, c, s);
    c->block[s] = d->block;
}

int mc_cursor_phase(const struct mc_data *d, struct mc_cursor *c, int64_t seq, const double *weight)
{
    size_t n = (size_t)d->ntrain * sizeof *weight;
    const double *w = weight ? weight : d->weight;
    int news = c->seq != seq || memcmp(c->weight, w, n) != 0;
    if (d->megatron) /* one length, one set of weights: the recipe's (I4) */
        return 0;
    for (int s = 0; s < d->ntrain && c->seq != seq; s++)
        change_length(d, c, s, seq);
    c->seq = seq;
    if (memcmp(c->weight, w, n) != 0) { /* I2 */
        memcpy(c->phase_base, c->taken, sizeof c->phase_base);
        memcpy(c->weight, w, n);
    }
    return news;
}

void mc_cursor_mixture(const struct mc_cursor *c, struct mc_mixture *x)
{
    double tokens = 0, weight = 0;
    x->n = c->nsources;
    for (int s = 0; s < c->nsources; s++) {
        tokens += (double)c->tokens[s];
        weight += c->weight[s];
    }
    for (int s = 0; s < c->nsources; s++) {
        x->of[s].samples = (int64_t)c->taken[s];
        x->of[s].tokens = (int64_t)c->tokens[s];
        x->of[s].share = tokens > 0 ? (double)c->tokens[s] / tokens : 0;
        x->of[s].weight = c->weight[s] / weight;
    }
}

/* Past the end of the order: a row that is none, which the fetch refuses. */
static void draw_megatron(const struct mc_megatron *m, uint64_t taken, struct mc_sample *out)
{
    out->index = out->epoch = UINT64_MAX;
    if (taken >= (uint64_t)m->rows)
        return;
    out->index = m->shuffle[taken];
    out->epoch = (uint64_t)(m->at[out->index] / (m->ndoc / m->epochs));
}

static void draw_one(const struct mc_data *d, struct mc_cursor *c, int s, struct mc_sample *out)
{
    const struct mc_order *o = &d->order[s];
    uint64_t k = blocks(d, c, s), m = (uint64_t)(c->block[s] / c->seq), at = c->at[s];
    uint64_t w = group(k, m, at), x = 0;
    if (m > 1)
        x = mc_rng_permute(mc_rng_u64(o->key, c->pass[s], at + 1), w * m, c->in_group[s]);
    uint64_t block = mc_rng_permute(mc_rng_u64(o->key, c->pass[s], 0), k, at + x / m);
    out->index = block * m + x % m;
    out->epoch = c->pass[s];
    if (++c->in_group[s] == w * m)
        end_group(d, c, s, w);
}

void mc_data_draw(const struct mc_data *d, struct mc_cursor *c, int64_t n, struct mc_sample *out)
{
    uint64_t total = 0;
    double weight[MC_MAX_SOURCES], sum = 0;
    MC_ASSERT(d->ntrain > 0 || n == 0);
    for (int s = 0; s < d->ntrain; s++) {
        total += c->taken[s] - c->phase_base[s];
        sum += c->weight[s];
    }
    for (int s = 0; s < d->ntrain; s++)
        weight[s] = c->weight[s] / sum;
    for (int64_t j = 0; j < n; j++, total++) {
        int s = d->megatron ? mc_megatron_next(d->blend, d->ntrain, c->taken, total)
                            : mc_order_next(weight, d->ntrain, c, total);
        if (d->megatron) /* phase_base is 0 */
            draw_megatron(&d->mega[s], c->taken[s], &out[j]);
        else
            draw_one(d, c, s, &out[j]);
        out[j].source = s;
        out[j].seq = c->seq;
        c->taken[s]++;
        c->tokens[s] += (uint64_t)c->seq;
    }
}

/* ---- the cursor as JSON ----
 * {"order": "megatron" (else absent), "seq", "sources": [{"name", "samples": blocks of the pass, or
 * Megatron's rows, "taken", "phase_base", "tokens", "weight", "block", "pass", "at", "in_group",
 * "order_hash": Megatron's}]}. Before phases came there were name, samples, taken and phase_base
 * alone. */

static int64_t samples_of(const struct mc_data *d, int64_t block, int s)
{
    return d->megatron ? d->train[s].samples : (d->train[s].tokens - 1) / block;
}

void mc_cursor_write(const struct mc_data *d, const struct mc_cursor *c, struct mc_json *j)
{
    mc_json_open(j, NULL, '{');
    if (d->megatron)
        mc_json_str(j, "order", "megatron");
    mc_json_i64(j, "seq", c->seq);
    mc_json_open(j, "sources", '[');
    for (int s = 0; s < d->ntrain; s++) {
        mc_json_open(j, NULL, '{');
        mc_json_str(j, "name", d->train[s].name);
        mc_json_i64(j, "samples", samples_of(d, c->block[s], s));
        mc_json_i64(j, "taken", (int64_t)c->taken[s]);
        mc_json_i64(j, "phase_base", (int64_t)c->phase_base[s]);
        mc_json_i64(j, "tokens", (int64_t)c->tokens[s]);
        mc_json_f64(j, "weight", c->weight[s]);
        mc_json_i64(j, "block", c->block[s]);
        mc_json_i64(j, "pass", (int64_t)c->pass[s]);
        mc_json_i64(j, "at", (int64_t)c->at[s]);
        mc_json_i64(j, "in_group", (int64_t)c->in_group[s]);
        if (d->megatron) {
            char hex[17];
            mc_hash_hex(d->mega[s].hash, hex);
            mc_json_str(j, "order_hash", hex);
        }
        mc_json_close(j, '}');
    }
    mc_json_close(j, ']');
    mc_json_close(j, '}');
}

/* In Megatron's order a source's index is one for the whole run: it must be the same one. */
static mc_status same_index(const struct mc_data *d, int s, json_t *e, struct mc_err *err)
{
    const char *was = json_string_value(json_object_get(e, "order_hash"));
    char now[17];
    if (!was)
        return mc_err_set(err, MC_E_CORRUPT, "data cursor: entry %d has no order_hash", s);
    mc_hash_hex(d->mega[s].hash, now);
    if (!strcmp(was, now))
        return MC_OK;
    return mc_err_set(
        err, MC_E_RECIPE,
        "data.order \"megatron\": the order of source \"%s\" would be another one now, "
        "and samples would repeat or be left out: it is shuffled anew when the number "
        "of samples asks for other epochs, or when seed, data or weights change; keep "
        "data.samples as the run began (and begin a run with as many as it may ever "
        "need)",
        d->train[s].name);
}

static mc_status not_a_cursor(int s, struct mc_err *err)
{
    return mc_err_set(err, MC_E_CORRUPT,
                      "data cursor: entry %d: a member is missing or out of its range", s);
}

static int count_of(const json_t *e, const char *key, int64_t lo, int64_t hi, int64_t *out)
{
    const json_t *v = json_object_get(e, key);
    *out = json_is_integer(v) ? json_integer_value(v) : -1;
    return json_is_integer(v) && *out >= lo && *out <= hi;
}

enum { LONGEST = 1 << 24 }; /* tokens of a sequence, of a block */

/* Where the pass is. An entry of before: of one length, that of the recipe. */
static int read_place(const struct mc_data *d, int s, const json_t *e, struct mc_cursor *c)
{
    int64_t tokens, block, pass, at, in_group, k = samples_of(d, c->block[s], s);
    if (!json_object_get(e, "block")) {
        c->tokens[s] = c->taken[s] * (uint64_t)c->seq;
        c->pass[s] = d->megatron ? 0 : c->taken[s] / (uint64_t)k;
        c->at[s] = d->megatron ? 0 : c->taken[s] % (uint64_t)k;
        return 1;
    }
    const json_t *weight = json_object_get(e, "weight");
    if (!count_of(e, "block", 1, LONGEST, &block) ||
        !count_of(e, "tokens", 0, INT64_MAX, &tokens) ||
        !count_of(e, "pass", 0, INT64_MAX, &pass) || !count_of(e, "at", 0, k - 1, &at) ||
        !json_is_number(weight) || !(json_number_value(weight) >= 0) || block % c->seq != 0)
        return 0;
    int64_t m = block / c->seq, w = (int64_t)group((uint64_t)k, (uint64_t)m, (uint64_t)at);
    if (!count_of(e, "in_group", 0, w * m - 1, &in_group))
        return 0;
    c->tokens[s] = (uint64_t)tokens;
    c->pass[s] = (uint64_t)pass;
    c->at[s] = (uint64_t)at;
    c->in_group[s] = (uint64_t)in_group;
    c->weight[s] = json_number_value(weight);
    return 1;
}

static mc_status read_source(const struct mc_data *d, int s, json_t *e, struct mc_cursor *c,
                             struct mc_err *err)
{
    const char *name = json_string_value(json_object_get(e, "name"));
    int64_t samples, taken, base, block = c->seq;
    if (!name || !count_of(e, "samples", 0, INT64_MAX, &samples) ||
        !count_of(e, "taken", 0, INT64_MAX, &taken) || !count_of(e, "phase_base", 0, taken, &base))
        return not_a_cursor(s, err);
    if (json_object_get(e, "block") && !count_of(e, "block", 1, LONGEST, &block))
        return not_a_cursor(s, err);
    if (strcmp(name, d->train[s].name) != 0)
        return mc_err_set(err, MC_E_RECIPE,
                          "data.train: source %d was \"%s\", is \"%s\" now: a cursor goes on only "
                          "over the same sources in the same order",
                          s + 1, name, d->train[s].name);
    if (d->megatron)
        MC_TRY(same_index(d, s, e, err));
    if (samples != samples_of(d, block, s) || samples < 1)
        return mc_err_set(
            err, MC_E_RECIPE,
            "data.train: source \"%s\" had %lld samples, has %lld now: its order would "
            "be another one; has its data or the holdout changed?",
            name, (long long)samples, (long long)samples_of(d, block, s));
    c->taken[s] = (uint64_t)taken;
    c->phase_base[s] = (uint64_t)base;
    c->block[s] = block;
    return read_place(d, s, e, c) ? MC_OK : not_a_cursor(s, err);
}

static mc_status same_weights(const struct mc_data *d, const struct mc_cursor *c, int changed,
                              struct mc_err *err)
{
    for (int s = 0; s < d->ntrain; s++)
        changed |= c->weight[s] != d->weight[s];
    if (!changed && c->seq == d->seq)
        return MC_OK;
    return mc_err_set(err, MC_E_RECIPE,
                      "data.train: weights and sequence length may not change within a run of "
                      "data.order \"megatron\": samples would repeat; data.order \"mascon\" can do "
                      "that");
}

static mc_status some_weight(const struct mc_cursor *c, struct mc_err *err)
{
    double sum = 0;
    for (int s = 0; s < c->nsources; s++)
        sum += c->weight[s];
    if (isfinite(sum) && (sum > 0 || c->nsources == 0))
        return MC_OK;
    return mc_err_set(err, MC_E_CORRUPT, "data cursor: no source has a weight");
}

/* The length of the cursor's next draw; one of before has the recipe's. */
static mc_status read_length(const json_t *root, struct mc_cursor *c, struct mc_err *err)
{
    if (json_object_get(root, "seq") && !count_of(root, "seq", 1, LONGEST, &c->seq))
        return mc_err_set(err, MC_E_CORRUPT, "data cursor: \"seq\" is no sequence length");
    return MC_OK;
}

mc_status mc_cursor_read(const struct mc_data *d, const char *json, struct mc_cursor *c,
                         int weights_changed, struct mc_err *err)
{
    json_error_t why;
    json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, &why);
    if (!root)
        return mc_err_set(err, MC_E_CORRUPT, "data cursor: not JSON: line %d: %s", why.line,
                          why.text);
    struct mc_cursor y;
    mc_cursor_init(d, &y);
    json_t *list = json_object_get(root, "sources");
    mc_status st = MC_OK;
    if (!json_object_get(root, "order") != !d->megatron) {
        st = mc_err_set(
            err, MC_E_RECIPE,
            "data.order: the run began in the order \"%s\", is \"%s\" now: a cursor goes "
            "on only in its own order",
            d->megatron ? "mascon" : "megatron", d->megatron ? "megatron" : "mascon");
        goto out;
    }
    if (!json_is_array(list)) {
        st = mc_err_set(err, MC_E_CORRUPT, "data cursor: no list \"sources\"");
        goto out;
    }
    if (json_array_size(list) != (size_t)d->ntrain) {
        st = mc_err_set(err, MC_E_RECIPE,
                        "data.train: there were %zu sources, there are %d now: a cursor goes on "
                        "only over the same sources in the same order",
                        json_array_size(list), d->ntrain);
        goto out;
    }
    MC_TRY_GOTO(st, read_length(root, &y, err), out);
    for (int s = 0; s < d->ntrain; s++)
        MC_TRY_GOTO(st, read_source(d, s, json_array_get(list, (size_t)s), &y, err), out);
    if (d->megatron)
        MC_TRY_GOTO(st, same_weights(d, &y, weights_changed, err), out);
    MC_TRY_GOTO(st, some_weight(&y, err), out);
    if (weights_changed) { /* I2 */
        memcpy(y.phase_base, y.taken, sizeof y.phase_base);
        memcpy(y.weight, d->weight, sizeof y.weight);
    }
    *c = y;
out:
    json_decref(root);
    return st;
}
