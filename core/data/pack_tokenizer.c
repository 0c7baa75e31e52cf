/* pack_tokenizer.c - a tokenizer as the encoder of pack.
 * Floor 3 (data). Includes: base recipe.
 *
 * I1  Text is text: a special token's name in a document is encoded as its letters, so that no
 *     document can forge the end of another.
 * Memory: an encoder a thread, by open and close. Threads: see tokenizer.h. */
#include "pack_int.h"
#include "tokenizer.h"

static mc_status open_encoder(const void *ctx, void **state, struct mc_err *err)
{
    struct mc_encoder *e;
    MC_TRY(mc_encoder_create(ctx, &e, err));
    *state = e;
    return MC_OK;
}

static void close_encoder(void *state)
{
    mc_encoder_destroy(state);
}

static mc_status encode(void *state, const char *text, size_t n, struct mc_pack_ids *out,
                        struct mc_err *err)
{
    struct mc_ids ids = {out->v, out->n, out->cap};
    mc_status st = mc_encode(state, text, n, MC_ENCODE_TEXT, &ids, err); /* I1 */
    *out = (struct mc_pack_ids){ids.v, ids.n, ids.cap}; /* it may have grown before it failed */
    return st;
}

void mc_pack_tokenizer(const struct mc_tokenizer *t, const char *name, struct mc_pack_encoder *e)
{
    if (mc_tokenizer_is_bytes(t)) {
        *e = mc_pack_bytes;
        return;
    }
    *e = (struct mc_pack_encoder){.name = name,
                                  .hash = mc_tokenizer_hash(t),
                                  .vocab = mc_tokenizer_vocab(t),
                                  .eos = mc_tokenizer_eos(t),
                                  .ctx = t,
                                  .open = open_encoder,
                                  .close = close_encoder,
                                  .encode = encode};
}
