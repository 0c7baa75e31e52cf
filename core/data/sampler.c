/* sampler.c - the order in which samples are drawn: computed, never stored.
 * Floor 3 (data). Includes: base recipe.
 *
 * Source s has K samples (of T + 1 tokens, sample k at k*T of its stream). Its i-th draw, i from 0:
 *   epoch  e = i div K
 *   sample k = permute(key(seed, name(s), e), K, i mod K)
 * so each epoch gives every sample once, in an order of its own.
 * Which source gives the next draw: w_s its weight (normalised to sum 1), n_s the draws from s and
 * t all draws, both counted since the weights were last set. A source may be drawn while it is not
 * ahead, n_s < w_s * (t + 1); of those the one whose next draw is due first, at (n_s + 1) / w_s
 * (ties: the first). In every prefix of the run n_s is within one of its exact share w_s * t: this
 * is earliest-deadline-first on one machine that is exactly full, which meets every deadline.
 * (Taking the source that is furthest behind instead can leave one more than a sample behind.)
 *
 * I1  One cursor a source (`taken`); order within a source knows nothing of other sources, their
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

int mc_order_next(const struct mc_order *o, int n, const struct mc_cursor *c, uint64_t total)
{
    int best = 0;
    double first = INFINITY;
    for (int i = 0; i < n; i++) {
        double given = (double)(c->taken[i] - c->phase_base[i]), due = (given + 1) / o[i].weight;
        if (given < o[i].weight * ((double)total + 1) && due < first) {
            best = i;
            first = due;
        }
    }
    return best;
}

void mc_cursor_init(const struct mc_data *d, struct mc_cursor *c)
{
    memset(c, 0, sizeof *c);
    c->nsources = d->ntrain;
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

void mc_data_draw(const struct mc_data *d, struct mc_cursor *c, int64_t n, struct mc_sample *out)
{
    uint64_t total = 0;
    MC_ASSERT(d->ntrain > 0 || n == 0);
    for (int s = 0; s < d->ntrain; s++)
        total += c->taken[s] - c->phase_base[s];
    for (int64_t j = 0; j < n && d->megatron; j++, total++) { /* phase_base is 0 */
        int s = mc_megatron_next(d->blend, d->ntrain, c->taken, total);
        draw_megatron(&d->mega[s], c->taken[s]++, &out[j]);
        out[j].source = s;
    }
    for (int64_t j = 0; j < n && !d->megatron; j++, total++) {
        int s = mc_order_next(d->order, d->ntrain, c, total);
        out[j].source = s;
        mc_order_sample(&d->order[s], c->taken[s]++, &out[j].index, &out[j].epoch);
    }
}

/* ---- the cursor as JSON ---- */

void mc_cursor_write(const struct mc_data *d, const struct mc_cursor *c, struct mc_json *j)
{
    mc_json_open(j, NULL, '{');
    if (d->megatron)
        mc_json_str(j, "order", "megatron");
    mc_json_open(j, "sources", '[');
    for (int s = 0; s < d->ntrain; s++) {
        mc_json_open(j, NULL, '{');
        mc_json_str(j, "name", d->train[s].name);
        mc_json_i64(j, "samples", d->train[s].samples);
        mc_json_i64(j, "taken", (int64_t)c->taken[s]);
        mc_json_i64(j, "phase_base", (int64_t)c->phase_base[s]);
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

static mc_status read_source(const struct mc_data *d, int s, json_t *e, struct mc_cursor *c,
                             struct mc_err *err)
{
    const char *name = json_string_value(json_object_get(e, "name"));
    json_t *samples = json_object_get(e, "samples"), *taken = json_object_get(e, "taken"),
           *base = json_object_get(e, "phase_base");
    if (!name || !json_is_integer(samples) || !json_is_integer(taken) || !json_is_integer(base) ||
        json_integer_value(base) < 0 || json_integer_value(taken) < json_integer_value(base))
        return mc_err_set(err, MC_E_CORRUPT,
                          "data cursor: entry %d is not {name, samples, taken, phase_base} with 0 "
                          "<= phase_base <= taken",
                          s);
    if (strcmp(name, d->train[s].name) != 0)
        return mc_err_set(err, MC_E_RECIPE,
                          "data.train: source %d was \"%s\", is \"%s\" now: a cursor goes on only "
                          "over the same sources in the same order",
                          s + 1, name, d->train[s].name);
    if (d->megatron)
        MC_TRY(same_index(d, s, e, err));
    if (json_integer_value(samples) != d->train[s].samples)
        return mc_err_set(err, MC_E_RECIPE,
                          "data.train: source \"%s\" had %" JSON_INTEGER_FORMAT
                          " samples, has %lld now: its order would be another one; has its data, "
                          "the sequence length or the holdout changed?",
                          name, json_integer_value(samples), (long long)d->train[s].samples);
    c->taken[s] = (uint64_t)json_integer_value(taken);
    c->phase_base[s] = (uint64_t)json_integer_value(base);
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
    if (d->megatron && weights_changed) {
        st = mc_err_set(err, MC_E_RECIPE,
                        "data.train: weights may not change within a run of data.order "
                        "\"megatron\": samples would repeat; data.order \"mascon\" can do that");
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
    for (int s = 0; s < d->ntrain; s++)
        MC_TRY_GOTO(st, read_source(d, s, json_array_get(list, (size_t)s), &y, err), out);
    if (weights_changed)
        memcpy(y.phase_base, y.taken, sizeof y.phase_base); /* I2 */
    *c = y;
out:
    json_decref(root);
    return st;
}
