/* seat.c - a rank's place among the others: the page that its agent reads, the socket to the agent,
 * the net to its peers and the groups on it. Floor 8 (cli).
 *
 * I1  What the agent must know is in the page before the process ends; result_valid is written
 *     last.
 * I2  Groups are torn down after the page is filled: the agent must not see a victim's complaint
 *     before the cause.
 *
 * Memory: the seat owns page, socket, net and mesh. Threads: main; mc_cli_seat_result also the
 * watchdog's, without a lock. */
#include "cli.h"
#include "../base/arena.h"
#include "../base/flight.h"
#include "../base/hash.h"
#include "../pipe/line.h"
#include "../run/ctl.h"
#include "../run/page.h"
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

void mc_cli_seat_init(struct mc_cli_seat *s)
{
    memset(s, 0, sizeof *s);
    s->number = 0;
    s->world = 1;
    s->page_fd = s->ctl_fd = -1;
    s->wait_s = 120;
    s->stall_s = 600;
}

mc_status mc_cli_seat_page(struct mc_cli_seat *s, struct mc_err *err)
{
    if (s->page_fd < 0)
        return MC_OK;
    MC_TRY(mc_page_attach((int)s->page_fd, &s->page, err));
    mc_flight_use(&s->page->flight);
    mc_bus_page(s->page);
    return MC_OK;
}

mc_status mc_cli_seat_hash(const struct mc_recipe *recipe, const struct mc_line *line,
                           uint64_t *hash, struct mc_err *err)
{
    char *text = NULL;
    *hash = mc_recipe_hash(recipe);
    if (!line)
        return MC_OK;
    MC_TRY(mc_line_text(line, &text, err));
    *hash = mc_hash64_seed(text, strlen(text), *hash);
    mc_free(text);
    return MC_OK;
}

mc_status mc_cli_seat_join(struct mc_cli_seat *s, const struct mc_recipe *recipe,
                           const struct mc_line *line, const struct mc_layout *layout,
                           struct mc_err *err)
{
    uint64_t hash;
    MC_TRY(mc_cli_seat_hash(recipe, line, &hash, err));
    int64_t span = 2 * s->wait_s * 1000000000; /* the coordinator, who knows what is missing, waits
                                                  half as long and says it */
    if (s->ctl_fd < 0)
        return s->world == 1 ? MC_OK
                             : mc_err_set(err, MC_E_USAGE, "rank: %lld ranks need a --ctl-fd each",
                                          (long long)s->world);
    const struct mc_ctl_cfg cfg = {.fd = (int)s->ctl_fd,
                                   .rank = (int)s->number,
                                   .world = (int)s->world,
                                   .recipe_hash = hash,
                                   .build = mc_ctl_build_id(),
                                   .deadline_ns = span};
    MC_TRY(mc_ctl_open(&cfg, &s->ctl, err));
    if (s->world == 1)
        return MC_OK;
    s->peers = (struct mc_comm_peers){
        .arg = s->ctl, .exchange = mc_ctl_exchange, .describe = mc_ctl_describe};
    const struct mc_comm_net_cfg net = {.world = (int)s->world,
                                        .me = (int)s->number,
                                        .peers = &s->peers,
                                        .deadline_ns = span,
                                        .collective_seq = s->page ? &s->page->collective_seq : NULL,
                                        .bytes_moved = s->page ? &s->page->bytes_moved : NULL};
    MC_TRY(mc_comm_net_open(&net, &s->net, err));
    return mc_mesh_create(layout, (int)s->number, s->net, "", s->stall_s * 1000000000, &s->mesh,
                          err);
}

void mc_cli_seat_result(struct mc_cli_seat *s, const struct mc_train_result *res, int exit_code,
                        mc_status status, const char *message)
{
    struct mc_page *p = s->page;
    if (!p)
        return;
    p->status = status;
    snprintf(p->message, sizeof p->message, "%.1000s", message);
    p->exit_code = exit_code;
    p->result_step = res->step;
    p->segment_steps = res->segment_steps;
    p->committed_step = res->committed_step;
    p->loss = res->loss;
    p->weights_hash = res->weights_hash;
    atomic_store_explicit(&p->result_valid, 1, memory_order_release); /* I1 */
}

void mc_cli_seat_leave(struct mc_cli_seat *s, mc_status st)
{
    if (st != MC_OK && s->mesh) /* I2 */
        mc_mesh_abort(s->mesh);
    mc_mesh_destroy(s->mesh);
    mc_comm_net_close(s->net);
    mc_ctl_close(s->ctl);
    s->mesh = NULL;
    s->net = NULL;
    s->ctl = NULL;
}

void mc_cli_seat_give_back(struct mc_cli_seat *s)
{
    mc_flight_use(NULL);
    mc_bus_page(NULL);
    mc_page_detach(s->page);
    s->page = NULL;
}
