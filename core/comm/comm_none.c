/* comm_none.c - the net of a build without a transport. Floor 2 (comm).
 *
 * It stands where comm_ucx.c does when configure found no UCX: a world of one rank works, a larger
 * one is refused with what to install. A net of one holds nothing, so one static object is it.
 *
 * Memory: none. Threads: any. */
#include "comm.h"

struct mc_comm_net {
    char unused;
};
static struct mc_comm_net g_alone;

const char *mc_comm_net_name(void)
{
    return NULL;
}

mc_status mc_comm_net_open(const struct mc_comm_net_cfg *cfg, struct mc_comm_net **net,
                           struct mc_err *err)
{
    if (cfg->world != 1)
        return mc_err_set(err, MC_E_MACHINE,
                          "%d ranks asked for, but this build was configured without UCX and runs "
                          "one rank only; install UCX (Debian: libucx-dev) and configure again",
                          cfg->world);
    *net = &g_alone;
    return MC_OK;
}

void mc_comm_net_abort(struct mc_comm_net *net)
{
    (void)net;
}

void mc_comm_net_close(struct mc_comm_net *net)
{
    (void)net;
}

mc_status mc_comm_group_create(struct mc_comm_net *net, const struct mc_comm_cfg *cfg,
                               struct mc_comm **c, struct mc_err *err)
{
    (void)net;
    return mc_comm_self_create(cfg, c, err); /* refuses more than one member */
}
