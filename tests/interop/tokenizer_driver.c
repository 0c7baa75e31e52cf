/* tokenizer_driver.c - our tokenizers for a script to ask.
 * links: mc_data
 *
 *   ask TOKENIZER                     frames on stdin: u8 how, u32 n, n bytes; answers on stdout:
 *                                     u32 ids, ids, u32 bytes, the ids decoded
 *   bench TOKENIZER TEXT REPEATS      encodes TEXT; prints bytes, ids and the least seconds of
 *                                     processor time
 *   train WORDS VOCAB OUT SPECIAL,... TEXT...
 *
 * Numbers are little-endian, as the machine has them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../core/base/arena.h"
#include "../../core/base/clock.h"
#include "../../core/base/sysio.h"
#include "../../core/data/tokenizer.h"

static int fail(const struct mc_err *err)
{
    fprintf(stderr, "%s\n", err->msg);
    return 1;
}

static int ask(const struct mc_tokenizer *t, struct mc_encoder *e)
{
    struct mc_err err = {0};
    struct mc_ids ids = {0};
    unsigned char how;
    uint32_t n;
    char *text = NULL, *back = NULL;
    while (fread(&how, 1, 1, stdin) == 1 && fread(&n, 4, 1, stdin) == 1) {
        text = realloc(text, n + 1);
        if (!text || fread(text, 1, n, stdin) != n)
            return 1;
        ids.n = 0;
        if (mc_encode(e, text, n, how ? MC_ENCODE_SPECIAL : MC_ENCODE_TEXT, &ids, &err) != MC_OK)
            return fail(&err);
        uint32_t k = (uint32_t)ids.n;
        fwrite(&k, 4, 1, stdout);
        if (k > 0)
            fwrite(ids.v, 4, k, stdout);
        k = (uint32_t)mc_tokenizer_decode(t, ids.v, ids.n, 0, NULL, 0);
        back = realloc(back, k + 1);
        if (!back)
            return 1;
        mc_tokenizer_decode(t, ids.v, ids.n, 0, back, k);
        fwrite(&k, 4, 1, stdout);
        fwrite(back, 1, k, stdout);
        fflush(stdout);
    }
    free(text);
    free(back);
    mc_free(ids.v);
    return 0;
}

static int bench(struct mc_encoder *e, const char *path, int repeats)
{
    struct mc_err err = {0};
    struct mc_ids ids = {0};
    struct mc_map m;
    double best = 1e30;
    if (mc_sys_map_ro(path, &m, &err) != MC_OK)
        return fail(&err);
    for (int i = 0; i < repeats; i++) {
        int64_t t0 = mc_clock_thread_cpu_ns();
        ids.n = 0;
        if (mc_encode(e, m.data, (size_t)m.bytes, MC_ENCODE_TEXT, &ids, &err) != MC_OK)
            return fail(&err);
        double s = (double)(mc_clock_thread_cpu_ns() - t0) * 1e-9;
        best = s < best ? s : best;
    }
    printf("%lld %lld %.6f\n", (long long)m.bytes, (long long)ids.n, best);
    mc_sys_unmap(&m);
    mc_free(ids.v);
    return 0;
}

static int train(int argc, char **argv)
{
    struct mc_err err = {0};
    struct mc_bpe_trainer *t;
    struct mc_bpe_train_stats s;
    const char *special[64];
    struct mc_bpe_train_cfg cfg = {.special = special, .vocab = atoll(argv[1]), .min_frequency = 2};
    while (cfg.pretok < MC_NPRETOKS && strcmp(mc_pretok_names[cfg.pretok], argv[0]) != 0)
        cfg.pretok++;
    for (char *p = strtok(argv[3], ","); p && cfg.nspecial < 64; p = strtok(NULL, ","))
        special[cfg.nspecial++] = p;
    if (cfg.pretok == MC_NPRETOKS || mc_bpe_trainer_create(&cfg, &t, &err) != MC_OK)
        return fail(&err);
    for (int i = 4; i < argc; i++) {
        struct mc_map m;
        if (mc_sys_map_ro(argv[i], &m, &err) != MC_OK ||
            mc_bpe_trainer_add(t, m.data, (size_t)m.bytes, &err) != MC_OK)
            return fail(&err);
        mc_sys_unmap(&m);
    }
    if (mc_bpe_trainer_write(t, argv[2], &s, &err) != MC_OK)
        return fail(&err);
    mc_bpe_trainer_destroy(t);
    printf("%lld ids\n", (long long)s.vocab);
    return 0;
}

int main(int argc, char **argv)
{
    struct mc_err err = {0};
    struct mc_tokenizer *t;
    struct mc_encoder *e;
    if (argc > 6 && !strcmp(argv[1], "train"))
        return train(argc - 2, argv + 2);
    if (argc < 3)
        return 2;
    if (mc_tokenizer_open(argv[2], &t, &err) != MC_OK || mc_encoder_create(t, &e, &err) != MC_OK)
        return fail(&err);
    int rc = !strcmp(argv[1], "ask") ? ask(t, e) : argc > 4 ? bench(e, argv[3], atoi(argv[4])) : 2;
    mc_encoder_destroy(e);
    mc_tokenizer_close(t);
    return rc;
}
