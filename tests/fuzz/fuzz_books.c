/* fuzz_books.c - any text as the books of a checkpoint: counters, anomaly window, the recipe
 * inside, and the data cursor against open data. Refused with a message, or inside its bounds.
 * links: mc_train
 * Input: byte 0 odd: a cursor; even: books. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../core/train/books.h"

static struct mc_data *open_data(void)
{
    static struct mc_recipe r; /* some 200 KiB */
    struct mc_data *d = NULL;
    struct mc_err e = {0};
    char dir[] = "/dev/shm/mc_fuzz.XXXXXX", path[64];
    if (!mkdtemp(dir))
        abort();
    snprintf(path, sizeof path, "%s/text", dir);
    FILE *f = fopen(path, "w");
    for (int i = 0; f && i < 400; i++)
        fprintf(f, "%d ", i);
    if (!f || fclose(f))
        abort();
    snprintf(r.data.tokenizer, sizeof r.data.tokenizer, "bytes");
    r.data.ntrain = 1;
    snprintf(r.data.train[0].path, sizeof r.data.train[0].path, "%s", path);
    r.data.train[0].weight = 1;
    r.model.seq = 16;
    r.model.vocab = 257;
    if (mc_data_open(&r, dir, &d, &e) != MC_OK) {
        fprintf(stderr, "%s\n", e.msg);
        abort();
    }
    unlink(path); /* it is open or mapped */
    rmdir(dir);
    return d;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct mc_data *d;
    static struct mc_books b;
    if (!d)
        d = open_data();
    if (size < 1)
        return 0;
    struct mc_err e = {0};
    char *text = malloc(size);
    if (!text)
        abort();
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    if (data[0] & 1) {
        struct mc_cursor c;
        struct mc_sample s[4];
        mc_cursor_init(d, &c);
        if (mc_cursor_read(d, text, &c, data[0] & 2, &e) == MC_OK)
            mc_data_draw(d, &c, 4, s);
        else if (!e.msg[0])
            abort();
    } else {
        struct mc_books_seen seen;
        struct mc_recipe_box *box = NULL;
        memset(&b, 0, sizeof b);
        if (mc_books_read(text, NULL, &b, &seen, &e) != MC_OK && !e.msg[0])
            abort();
        if (b.spikes.n < 0 || b.spikes.n > MC_SPIKES_MAX || b.at.steps < 0 || b.at.tokens < 0)
            abort();
        struct mc_err e2 = {0};
        if (mc_books_recipe(text, &box, &e2) == MC_OK)
            mc_recipe_destroy(box);
        else if (!e2.msg[0])
            abort();
    }
    free(text);
    return 0;
}
