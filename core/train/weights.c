/* weights.c - the weights of a checkpoint: stored, or made again from the masters. Floor 6 (train).
 *
 * At bf16 the weight is its master rounded (optim.h), so `checkpoint.weights = "rebuild"` leaves
 * model/ out: 12 bytes a parameter instead of 14. Which of the two a checkpoint is, its own list of
 * tensors says, not the recipe that reads it: the key may change between segments.
 *
 * I1  In fp32 and fp64 the weights are the masters, and every checkpoint has them.
 *
 * Memory: none kept. Threads: one. */
#include "train_int.h"
#include "../../ckpt/ckpt.h"
#include <string.h>

int mc_weights_stored(const struct mc_ckpt *c)
{
    struct mc_state_tensor t;
    for (int i = 0; i < mc_ckpt_ntensors(c); i++)
        if (mc_ckpt_tensor(c, i, &t) == MC_OK && strncmp(t.name, "model/", 6) == 0)
            return 1;
    return 0;
}

int mc_weights_rebuilt(const struct mc_graph *model, enum mc_dtype precision)
{
    return mc_optim_dtype(precision) != precision ? mc_graph_nparams(model) : 0; /* I1 */
}

int mc_weights_lead(enum mc_dtype precision, const struct mc_state_tensor *t, int n)
{
    int lead = 0;
    if (mc_optim_dtype(precision) == precision) /* I1 */
        return 0;
    while (lead < n && strncmp(t[lead].name, "model/", 6) == 0)
        lead++;
    return lead;
}
