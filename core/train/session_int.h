/* session_int.h - a model loaded for evaluation and generation: shared by session.c and
 * generate.c. */
#pragma once
#include "train_int.h"

enum mc_session_arena {
    MC_SESSION_PARAMS,
    MC_SESSION_SLOTS,
    MC_SESSION_TEMP,
    MC_SESSION_TABLES,
    MC_SESSION_KV,
    MC_SESSION_NARENAS
};
struct mc_session {
    const struct mc_recipe *recipe;
    struct mc_world world;
    const struct mc_line *line; /* NULL: no pipeline, as the next two */
    struct mc_pipe *pipe;
    struct mc_arena messages;
    struct mc_pool *pool;
    struct mc_device device;
    const struct mc_kern_ops *kern;
    struct mc_graph *graph[3]; /* by enum mc_graph_mode; made when first wanted */
    struct mc_arena arena[3][MC_SESSION_NARENAS];
    struct mc_arena params;
};
/* EVAL or INFER, bound to the session's parameters. */
mc_status mc_session_graph(struct mc_session *s, enum mc_graph_mode mode, struct mc_graph **g,
                           struct mc_err *err);
/* The id drawn from logits [vocab] with u in [0, 1); scratch: mc_generate_scratch bytes. */
int32_t mc_generate_draw(const double *logit, int64_t vocab, const struct mc_generate_cfg *cfg,
                         double u, void *scratch);
size_t mc_generate_scratch(int64_t vocab);
