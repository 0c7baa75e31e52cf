/* learn.h - a new tokenizer from texts: what `data pack` reads, by the trainer of tokenizer.h. */
#pragma once
#include "data.h"
#include "tokenizer.h"

struct mc_learn_cfg {
    const char *const *inputs; /* files and folders, as for pack */
    int ninputs;
    enum mc_pack_format format;
    const char *key; /* of a JSONL line's text; NULL: "text" */
    const char *out; /* tokenizer.json; an existing file is not written over */
    struct mc_bpe_train_cfg bpe;
    int progress; /* a line on stderr */
};
mc_status mc_data_learn(const struct mc_learn_cfg *cfg, struct mc_bpe_train_stats *stats,
                        struct mc_err *err);
