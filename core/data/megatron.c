/* megatron.c - the sample order of Megatron's GPT data sets, to the bit (data.order = "megatron").
 * Floor 3 (data). Includes: base recipe.
 *
 * Of a source's sequences [first, first + n) with T tokens together, S = sequence length, k samples
 * wanted:
 *   epochs           E, the fewest with E*T >= k*S + 1
 *   separate last    when E > 1 and k - ((E-1)*T - 1) div S < floor(0.80 * ((T-1) div S)): the last
 *                    epoch would give few samples, so it is shuffled apart and comes last
 *   document index   E copies of the sequence numbers, shuffled as one array; or E-1 copies and
 *                    then the last one, each shuffled by itself
 *   sample index     (E*T - 1) div S + 1 rows (place in the document index, offset in tokens) over
 *                    the concatenated sequences: row i is where sample i begins. A sample is S + 1
 *                    tokens; the next begins at its last token.
 *   shuffle index    the rows but the last, shuffled; with a separate last epoch its first
 *                    ((E-1)*T - 1) div S entries and the rest each by themselves
 * The i-th draw is row shuffle[i]. All shuffles of a source come from one generator, in this order:
 * MT19937 with Knuth's seeding, and a Fisher-Yates from the end whose j in [0, i] is the low bits
 * of a 32-bit draw, drawn again while above i (NumPy's RandomState(seed).shuffle).
 *
 * Blend of several sources: weights are divided by their sum, twice (the second changes last bits);
 * source s is built for ceil(ceil(k * w_s) * 1.005) samples (as Megatron Core 0.12 has it; up to
 * 0.9 it was ceil(k * w_s * 1.005), which differs by a sample here and there); draw i goes to the
 * source with the largest w_s * max(i, 1) - taken_s (ties: the first). There is no shuffle across
 * sources. A single source is built for k samples, whatever its weight. Split {a, b, c}: fractions
 * of their sum; training has the sequences from 0 to round(f_a * n), validation those up to
 * round((f_a + f_b) * n), rounding half to even; the rest is not read.
 *
 * I1  Everything is computed at open, and nothing is drawn at random after it. The state of the
 *     order is how many samples each source has given.
 * I2  No product or sum here can overflow: E, the index and the rows are bounded first.
 * I3  Doubles are added in NumPy's order (eight partial sums from eight numbers on).
 * Memory: handle life; 4 bytes a sequence and epoch, 16 a sample. Threads: read-only after build.
 */
#include "data_int.h"
#include <math.h>
#include <string.h>
#include "../base/arena.h"
#include "../base/hash.h"

/* ---- MT19937 ---- */

void mc_megatron_seed(struct mc_mt19937 *g, uint32_t seed)
{
    for (int i = 0; i < MC_MT_WORDS; i++) {
        g->key[i] = seed;
        seed = 1812433253u * (seed ^ seed >> 30) + (uint32_t)i + 1;
    }
    g->at = MC_MT_WORDS;
}

static void twist(struct mc_mt19937 *g)
{
    enum { AHEAD = 397 };
    for (int i = 0; i < MC_MT_WORDS; i++) {
        uint32_t y = (g->key[i] & 0x80000000u) | (g->key[(i + 1) % MC_MT_WORDS] & 0x7fffffffu);
        g->key[i] = g->key[(i + AHEAD) % MC_MT_WORDS] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    g->at = 0;
}

uint32_t mc_megatron_u32(struct mc_mt19937 *g)
{
    if (g->at == MC_MT_WORDS)
        twist(g);
    uint32_t y = g->key[g->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

void mc_megatron_shuffle(struct mc_mt19937 *g, uint32_t *v, int64_t n)
{
    for (int64_t i = n - 1; i > 0; i--) {
        uint32_t mask = (uint32_t)i, j;
        for (int s = 1; s < 32; s *= 2)
            mask |= mask >> s;
        while ((j = mc_megatron_u32(g) & mask) > (uint32_t)i)
            ;
        uint32_t t = v[i];
        v[i] = v[j];
        v[j] = t;
    }
}

/* ---- weights and split ---- */

/* I3 */
static double sum_of(const double *v, int n)
{
    double s = 0, r[8];
    int i = 0;
    if (n >= 8) {
        memcpy(r, v, sizeof r);
        for (i = 8; i < n - n % 8; i += 8)
            for (int k = 0; k < 8; k++)
                r[k] += v[i + k];
        s = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    }
    for (; i < n; i++)
        s += v[i];
    return s;
}

void mc_megatron_weights(const double *weight, int n, double *once, double *twice)
{
    double s = sum_of(weight, n);
    for (int i = 0; i < n; i++)
        once[i] = weight[i] / s;
    s = sum_of(once, n);
    for (int i = 0; i < n; i++)
        twice[i] = once[i] / s;
}

int64_t mc_megatron_share(int64_t samples, double weight)
{
    return (int64_t)ceil(ceil((double)samples * weight) * (1 + 0.005));
}

void mc_megatron_split(const double split[3], int64_t n, int64_t end[2])
{
    double s = sum_of(split, 3), a = split[0] / s;
    end[0] = (int64_t)rint(a * (double)n);
    end[1] = (int64_t)rint((a + split[1] / s) * (double)n);
}

int mc_megatron_next(const double *weight, int n, const uint64_t *taken, uint64_t total)
{
    double i = total > 1 ? (double)total : 1, most = 0;
    int best = 0;
    for (int s = 0; s < n; s++) {
        double behind = weight[s] * i - (double)taken[s];
        if (s == 0 || behind > most) {
            best = s;
            most = behind;
        }
    }
    return best;
}

/* ---- the three indices of a source ---- */

static mc_status count_epochs(const struct mc_megatron_cfg *c, struct mc_megatron *m,
                              struct mc_err *err)
{
    int64_t t = 0, s = c->seq;
    for (int64_t i = 0; i < c->n; i++) {
        int64_t off, len;
        MC_TRY(mc_indexed_sequence(c->x, c->first + i, &off, &len, err));
        t += len;
    }
    if (t < s + 1)
        return mc_err_set(
            err, MC_E_RECIPE,
            "data.order \"megatron\": source \"%s\" has %lld tokens in %lld sequences "
            "to train on, one sample of sequence length %lld needs %lld",
            c->name, (long long)t, (long long)c->n, (long long)s, (long long)s + 1);
    if (c->samples > (INT64_MAX >> 2) / s) /* I2 */
        return mc_err_set(err, MC_E_RECIPE, "data.samples: %lld is too many",
                          (long long)c->samples);
    m->epochs = (c->samples * s + t) / t; /* ceil((samples * s + 1) / t) */
    m->rows = (m->epochs * t - 1) / s;
    if (m->rows > UINT32_MAX - 2 || c->first + c->n > INT32_MAX ||
        m->epochs > ((int64_t)1 << 36) / c->n)
        return mc_err_set(err, MC_E_RECIPE,
                          "data.order \"megatron\": source \"%s\": %lld epochs of %lld sequences "
                          "make %lld samples, more than this order's index can hold (2^32 - 2 "
                          "samples, 2^36 entries); data.order \"mascon\" has no index",
                          c->name, (long long)m->epochs, (long long)c->n, (long long)m->rows);
    m->tokens = t;
    m->ndoc = m->epochs * c->n;
    m->first_rows = m->rows;
    if (m->epochs > 1) {
        int64_t before = ((m->epochs - 1) * t - 1) / s;
        m->separate_last = c->samples - before < (int64_t)(0.80 * (double)((t - 1) / s));
        if (m->separate_last)
            m->first_rows = before;
    }
    return MC_OK;
}

static void fill_documents(const struct mc_megatron_cfg *c, struct mc_megatron *m,
                           struct mc_mt19937 *g)
{
    int64_t head = m->ndoc - (m->separate_last ? c->n : 0);
    for (int64_t e = 0, k = 0; e < m->epochs; e++)
        for (int64_t i = 0; i < c->n; i++)
            m->doc[k++] = (uint32_t)(c->first + i);
    mc_megatron_shuffle(g, m->doc, head);
    mc_megatron_shuffle(g, m->doc + head, m->ndoc - head);
}

static mc_status fill_samples(const struct mc_megatron_cfg *c, struct mc_megatron *m,
                              struct mc_err *err)
{
    int64_t d = 0, from = 0, end = 0, byte, len; /* document d covers stream tokens [from, end) */
    MC_TRY(mc_indexed_sequence(c->x, m->doc[0], &byte, &len, err));
    end = len;
    m->at[0] = 0; /* also where sequence m->doc[0] is empty */
    m->off[0] = 0;
    for (int64_t r = 1; r <= m->rows; r++) {
        int64_t want = r * c->seq; /* the last token of sample r - 1: at most E*T - 1 */
        while (end <= want) {
            MC_ASSERT(d + 1 < m->ndoc);
            MC_TRY(mc_indexed_sequence(c->x, m->doc[++d], &byte, &len, err));
            from = end;
            end += len;
        }
        m->at[r] = d;
        m->off[r] = (int32_t)(want - from);
    }
    return MC_OK;
}

static void fill_shuffle(struct mc_megatron *m, struct mc_mt19937 *g)
{
    for (int64_t i = 0; i < m->rows; i++)
        m->shuffle[i] = (uint32_t)i;
    mc_megatron_shuffle(g, m->shuffle, m->first_rows);
    mc_megatron_shuffle(g, m->shuffle + m->first_rows, m->rows - m->first_rows);
}

mc_status mc_megatron_build(const struct mc_megatron_cfg *c, struct mc_megatron *out,
                            struct mc_err *err)
{
    struct mc_megatron m = {0};
    struct mc_mt19937 g;
    mc_status st;
    if (c->seed < 0 || c->seed > UINT32_MAX)
        return mc_err_set(err, MC_E_RECIPE,
                          "seed: %lld: data.order \"megatron\" takes a seed from 0 to 2^32 - 1",
                          (long long)c->seed);
    MC_TRY(count_epochs(c, &m, err));
    m.doc = mc_alloc((size_t)m.ndoc * sizeof *m.doc, "document index");
    m.at = mc_alloc((size_t)(m.rows + 1) * sizeof *m.at, "sample index");
    m.off = mc_alloc((size_t)(m.rows + 1) * sizeof *m.off, "sample index");
    m.shuffle = mc_alloc((size_t)m.rows * sizeof *m.shuffle, "shuffle index");
    if (!m.doc || !m.at || !m.off || !m.shuffle) {
        st = mc_err_set(err, MC_E_NOMEM,
                        "data.order \"megatron\": no memory for the index of source \"%s\": %lld "
                        "documents, %lld samples",
                        c->name, (long long)m.ndoc, (long long)m.rows);
        goto fail;
    }
    mc_megatron_seed(&g, (uint32_t)c->seed);
    fill_documents(c, &m, &g);
    MC_TRY_GOTO(st, fill_samples(c, &m, err), fail);
    fill_shuffle(&m, &g);
    m.hash = mc_hash64_seed(m.doc, (size_t)m.ndoc * sizeof *m.doc,
                            mc_hash64(m.shuffle, (size_t)m.rows * sizeof *m.shuffle));
    *out = m;
    return MC_OK;
fail:
    mc_megatron_fini(&m);
    return st;
}

void mc_megatron_fini(struct mc_megatron *m)
{
    mc_free(m->doc);
    mc_free(m->at);
    mc_free(m->off);
    mc_free(m->shuffle);
    memset(m, 0, sizeof *m);
}

mc_status mc_megatron_read(const struct mc_megatron *m, const struct mc_indexed *x, int64_t row,
                           int64_t n, int32_t *out, struct mc_err *err)
{
    int64_t d = m->at[row], skip = m->off[row], byte, len;
    for (int64_t done = 0; done < n; d++, skip = 0) {
        MC_ASSERT(d < m->ndoc);
        MC_TRY(mc_indexed_sequence(x, m->doc[d], &byte, &len, err));
        int64_t k = len - skip < n - done ? len - skip : n - done;
        MC_TRY(mc_indexed_read(x, mc_indexed_start(x, m->doc[d]) + skip, k, out + done, err));
        done += k;
    }
    return MC_OK;
}
