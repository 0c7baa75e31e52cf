/* generate.c - text from a model, one token at a time. Floor 6 (train).
 *
 * The prompt is fed at once, then each drawn token alone; keys and values of earlier positions come
 * from the cache. With softmax probabilities p of the logits / temperature:
 *     temperature 0   the largest logit; ties: the lowest id
 *     top_k           only the k largest (ties: lower ids first)
 *     top_p           of those, the fewest from the largest down whose mass reaches top_p
 * and the draw is the first id, from the largest down, at which the running mass passes u times
 * the mass kept.
 *
 * I1  u is Philox keyed by (seed, "generate") at the position of the token: the same seed, prompt
 *     and settings give the same text, whatever was streamed or in how many pieces.
 * I2  All sums are fp64. A logit that is not finite ends generation with an error: the weights are
 *     at fault, and any token drawn would be noise.
 * I4  On several ranks every one has all logits and draws the same token; rank 0 emits it, and
 *     whether that was enough is its word.
 * I3  Position never passes the model's context: generation ends there.
 *
 * Memory: two arrays of one vocabulary, for the call. Threads: the session's. */
#include "session_int.h"
#include "../base/rng.h"
#include "../tensor/bf16.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct ranked {
    double logit;
    int32_t id;
};
static int by_logit(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

int32_t mc_generate_draw(const double *logit, int64_t vocab, const struct mc_generate_cfg *cfg,
                         double u, void *scratch)
{
    struct ranked *kept = scratch;
    for (int64_t i = 0; i < vocab; i++)
        kept[i] = (struct ranked){.logit = logit[i], .id = (int32_t)i};
    if (!(cfg->temperature > 0)) {
        struct ranked best = kept[0];
        for (int64_t i = 1; i < vocab; i++)
            if (kept[i].logit > best.logit)
                best = kept[i];
        return best.id;
    }
    qsort(kept, (size_t)vocab, sizeof *kept, by_logit);
    int64_t n = cfg->top_k > 0 && cfg->top_k < vocab ? cfg->top_k : vocab;
    double top = kept[0].logit, all = 0;
    for (int64_t i = 0; i < n; i++) {
        kept[i].logit = exp((kept[i].logit - top) / cfg->temperature); /* now a mass */
        all += kept[i].logit;
    }
    double sum = 0;
    int64_t keep = 0;
    while (keep < n && (keep == 0 || sum < cfg->top_p * all))
        sum += kept[keep++].logit;
    double run = 0;
    for (int64_t i = 0; i < keep; i++) {
        run += kept[i].logit;
        if (run > u * sum)
            return kept[i].id;
    }
    return kept[keep - 1].id; /* u * sum rounded up to the whole */
}

size_t mc_generate_scratch(int64_t vocab)
{
    return (size_t)vocab * sizeof(struct ranked);
}

static mc_status to_doubles(const struct mc_session *s, const void *logits, double *dst,
                            struct mc_err *err)
{
    int64_t vocab = s->recipe->model.vocab;
    for (int64_t i = 0; i < vocab; i++) {
        dst[i] = s->kern->dtype == MC_F64    ? ((const double *)logits)[i]
                 : s->kern->dtype == MC_BF16 ? (double)mc_bf16_to_f32(((const uint16_t *)logits)[i])
                                             : (double)((const float *)logits)[i];
        if (!isfinite(dst[i])) /* I2 */
            return mc_err_set(err, MC_E_CORRUPT,
                              "the model's logit of token %lld is not finite: its weights are "
                              "damaged or the run had diverged; use an earlier checkpoint",
                              (long long)i);
    }
    return MC_OK;
}

static mc_status check(const struct mc_recipe *r, const struct mc_generate_cfg *c, int64_t n,
                       struct mc_err *err)
{
    if (n >= mc_recipe_longest(r))
        return mc_err_set(err, MC_E_USAGE,
                          "the prompt has %lld tokens and the model's context is %lld: shorten the "
                          "prompt to at most %lld",
                          (long long)n, (long long)mc_recipe_longest(r),
                          (long long)mc_recipe_longest(r) - 1);
    if (c->nprompt == 0 && (c->eos < 0 || c->eos >= r->model.vocab))
        return mc_err_set(err, MC_E_USAGE,
                          "the model's tokenizer has no EOS to begin a document with: give a "
                          "prompt");
    for (int64_t i = 0; i < c->nprompt; i++)
        if (c->prompt[i] < 0 || c->prompt[i] >= r->model.vocab)
            return mc_err_set(err, MC_E_USAGE, "token %d of the prompt is past the vocabulary %lld",
                              c->prompt[i], (long long)r->model.vocab);
    return MC_OK;
}

static mc_status infer(struct mc_session *s, struct mc_graph *g, const int32_t *tokens, int64_t n,
                       int64_t pos, const void **logits, struct mc_err *err)
{
    if (s->pipe)
        return mc_pipe_infer(s->pipe, g, tokens, n, pos, logits, err);
    return mc_graph_infer(g, tokens, n, pos, logits, err);
}

mc_status mc_session_generate(struct mc_session *s, const struct mc_generate_cfg *cfg,
                              int64_t *ntokens, struct mc_err *err)
{
    const int32_t start = cfg->eos; /* nothing said: the beginning of a document */
    const int32_t *prompt = cfg->nprompt > 0 ? cfg->prompt : &start;
    int64_t n = cfg->nprompt > 0 ? cfg->nprompt : 1, made = 0;
    int64_t vocab = s->recipe->model.vocab;
    struct mc_graph *g;
    MC_TRY(check(s->recipe, cfg, n, err));
    MC_TRY(mc_session_graph(s, MC_GRAPH_INFER, &g, err)); /* made by mc_session_open() */
    double *logit = mc_alloc((size_t)vocab * sizeof *logit, "logits");
    void *scratch = mc_alloc(mc_generate_scratch(vocab), "ranked logits");
    mc_status st = logit && scratch
                       ? MC_OK
                       : mc_err_set(err, MC_E_NOMEM, "no memory for %lld logits", (long long)vocab);
    st = mc_world_vote(&s->world, st, NULL, err);
    uint64_t key = mc_rng_key(cfg->seed, "generate");
    const void *out = NULL;
    if (st == MC_OK && cfg->max_tokens > 0)
        st = infer(s, g, prompt, n, 0, &out, err);
    int64_t pos = n;
    while (st == MC_OK && made < cfg->max_tokens) {
        st = to_doubles(s, out, logit, err);
        if (st != MC_OK)
            break;
        double u = mc_rng_uniform(key, 0, (uint64_t)pos); /* I1 */
        int32_t id = mc_generate_draw(logit, vocab, cfg, u, scratch);
        if (cfg->stop_at_eos && id == cfg->eos)
            break;
        made++;
        int32_t enough = s->world.rank == 0 ? cfg->emit(cfg->arg, id) : 0;
        st = mc_world_tell(&s->world, &enough, sizeof enough, err); /* I4 */
        if (st != MC_OK || enough != 0 || made == cfg->max_tokens)
            break;
        if (pos >= mc_recipe_longest(s->recipe)) /* I3 */
            break;
        st = infer(s, g, &id, 1, pos, &out, err);
        pos++;
    }
    mc_free(scratch);
    mc_free(logit);
    if (st == MC_OK)
        *ntokens = made;
    return st;
}
