/* fuzz_tokenizer.c - tokenizer.json is foreign bytes, and so is text. The first byte says which.
 * links: mc_data
 *
 * What is taken as a tokenizer must encode and decode; a text must come back from the bundled kind
 * of tokenizer, whose scanners are fed anything. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../core/base/arena.h"
#include "../../core/data/tokenizer_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* A tokenizer of bytes and no merges, made once for each kind of pre-tokenizer. */
static struct mc_encoder *made[MC_NPRETOKS];
static struct mc_tokenizer *tok[MC_NPRETOKS];

static void make(void)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/mc-fuzz-tokenizer-%d.json", (int)getpid());
    for (int k = 0; k < MC_NPRETOKS; k++) {
        static const char *const special[] = {"<|endoftext|>"};
        struct mc_bpe_train_cfg cfg = {.pretok = (enum mc_pretok_kind)k,
                                       .special = special,
                                       .nspecial = 1,
                                       .vocab = 300,
                                       .min_frequency = 1};
        struct mc_bpe_trainer *t;
        struct mc_bpe_train_stats s;
        if (mc_bpe_trainer_create(&cfg, &t, NULL) != MC_OK ||
            mc_bpe_trainer_add(t, "the moon the tide 12 34\n\n  'll", 31, NULL) != MC_OK ||
            mc_bpe_trainer_write(t, path, &s, NULL) != MC_OK ||
            mc_tokenizer_open(path, &tok[k], NULL) != MC_OK ||
            mc_encoder_create(tok[k], &made[k], NULL) != MC_OK)
            abort();
        mc_bpe_trainer_destroy(t);
    }
    unlink(path);
}

static void use(const struct mc_tokenizer *t, struct mc_encoder *e, const uint8_t *data, size_t n,
                int exact)
{
    struct mc_ids ids = {0};
    struct mc_err err = {0};
    static char back[1 << 16];
    for (int how = 0; how < 2; how++) {
        ids.n = 0;
        if (mc_encode(e, data, n, (enum mc_encode_special)how, &ids, &err) != MC_OK)
            break; /* a regex may give up */
        for (int64_t i = 0; i < ids.n; i++)
            if (ids.v[i] < 0 || ids.v[i] >= mc_tokenizer_vocab(t))
                abort();
        size_t k = mc_tokenizer_decode(t, ids.v, ids.n, 0, back, sizeof back);
        if (exact && n <= sizeof back && (k != n || memcmp(back, data, n) != 0))
            abort();
    }
    mc_free(ids.v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!tok[0])
        make();
    if (n == 0)
        return 0;
    if (data[0] < 4) {
        int k = data[0] % MC_NPRETOKS;
        use(tok[k], made[k], data + 1, n - 1, k != MC_PRETOK_QWEN2);
        return 0;
    }
    struct mc_tokenizer *t;
    struct mc_encoder *e;
    struct mc_err err = {0};
    if (mc_tokenizer_parse((const char *)data, n, "fuzz", &t, &err) != MC_OK)
        return 0;
    if (mc_encoder_create(t, &e, &err) == MC_OK) {
        use(t, e, data, n < 256 ? n : 256, 0);
        mc_encoder_destroy(e);
    }
    mc_tokenizer_close(t);
    return 0;
}
