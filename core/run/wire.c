/* wire.c - one message of the control plane as bytes. Floor 3 (run).
 *
 *   offset  size  meaning (integers little-endian)
 *        0     4  "MCM1"
 *        4     2  kind
 *        6     2  0
 *        8     4  rank, signed
 *       12     4  seq
 *       16    80  v[0..9], signed
 *       96     4  t: bytes of text, at most 4096
 *      100     4  d: bytes of data, at most 32768
 *      104     t  text, no NUL in it
 *    104+t     d  data; the message ends here
 *
 *   kind          from         rank  seq       v                             text, data
 *   HELLO         rank         own             world, recipe hash, build,    -
 *                                              pid
 *   HELLO         agent              version   node, nodes, first rank,      host; run id
 *                                              ranks, world, recipe hash,
 *                                              build
 *   WELCOME       coordinator                                                -
 *   REFUSED       coord, agent                                               why
 *   SPAWN         coordinator                                                -
 *   SPAWNED       agent        rank            pid                           -
 *   SPAWN_FAILED  agent        rank            exit code                     why
 *   RANK_HELLO    agent        rank                                          -
 *   GATHER        rank, agent  rank  exchange  bytes of a member             what; the member
 *   GATHERED      coord, agent       exchange  bytes of a member, first      what; the members
 *                                              member here
 *   EXITED        agent        rank            struct of exit_values()       message; flight (JSON)
 *   SIGNAL        both         -1: all         signal                        -
 *   KILL          coordinator  -1: all                                       -
 *   END           coordinator                  exit code                     message
 *
 * I1  The reader trusts nothing: every length is compared with what is there before it is used, an
 *     unknown kind or a wrong length is MC_E_PEER, and nothing is allocated.
 * I2  read(write(m)) == m, for every m whose text and data keep the limits.
 *
 * Memory: the caller's. Threads: any. */
#include "wire.h"
#include <string.h>

#define MAGIC UINT32_C(0x314d434d) /* "MCM1" */

const char *mc_msg_name(enum mc_msg_kind k)
{
    static const char *const name[] = {
        "none",       "hello",  "welcome",  "refused", "spawn",  "spawned", "spawn_failed",
        "rank_hello", "gather", "gathered", "exited",  "signal", "kill",    "end"};
    return (unsigned)k < MC_MSG_NKINDS ? name[k] : "unknown";
}

static void put(unsigned char *p, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        p[i] = (unsigned char)(v >> (8 * i));
}

static uint64_t get(const unsigned char *p, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

size_t mc_wire_write(const struct mc_msg *m, unsigned char *buf, size_t cap)
{
    size_t t = m->ntext < MC_MSG_TEXT_MAX ? m->ntext : MC_MSG_TEXT_MAX, d = m->ndata;
    MC_ASSERT(cap >= MC_MSG_MAX && d <= MC_MSG_DATA_MAX);
    put(buf, MAGIC, 4);
    put(buf + 4, (uint64_t)m->kind, 2);
    put(buf + 6, 0, 2);
    put(buf + 8, (uint32_t)m->rank, 4);
    put(buf + 12, m->seq, 4);
    for (int i = 0; i < MC_MSG_VALUES; i++)
        put(buf + 16 + 8 * i, (uint64_t)m->v[i], 8);
    put(buf + 96, t, 4);
    put(buf + 100, d, 4);
    if (t)
        memcpy(buf + MC_MSG_HEAD, m->text, t);
    if (d)
        memcpy(buf + MC_MSG_HEAD + t, m->data, d);
    return MC_MSG_HEAD + t + d;
}

mc_status mc_wire_read(const unsigned char *buf, size_t n, struct mc_msg *m, struct mc_err *err)
{
    if (n < MC_MSG_HEAD || get(buf, 4) != MAGIC || get(buf + 6, 2) != 0) /* I1 */
        return mc_err_set(err, MC_E_PEER, "%zu bytes that are no message of the control plane", n);
    struct mc_msg x = {.kind = (enum mc_msg_kind)get(buf + 4, 2),
                       .rank = (int32_t)(uint32_t)get(buf + 8, 4),
                       .seq = (uint32_t)get(buf + 12, 4),
                       .ntext = (size_t)get(buf + 96, 4),
                       .ndata = (size_t)get(buf + 100, 4)};
    if (x.kind < MC_MSG_HELLO || x.kind >= MC_MSG_NKINDS)
        return mc_err_set(err, MC_E_PEER, "control message of unknown kind %d", (int)x.kind);
    if (x.ntext > MC_MSG_TEXT_MAX || x.ndata > MC_MSG_DATA_MAX ||
        n != MC_MSG_HEAD + x.ntext + x.ndata)
        return mc_err_set(err, MC_E_PEER, "control message \"%s\" of %zu bytes says %zu + %zu",
                          mc_msg_name(x.kind), n, x.ntext, x.ndata);
    for (int i = 0; i < MC_MSG_VALUES; i++)
        x.v[i] = (int64_t)get(buf + 16 + 8 * i, 8);
    x.text = (const char *)buf + MC_MSG_HEAD;
    x.data = buf + MC_MSG_HEAD + x.ntext;
    if (memchr(x.text, 0, x.ntext))
        return mc_err_set(err, MC_E_PEER, "control message \"%s\": a NUL in its text",
                          mc_msg_name(x.kind));
    *m = x;
    return MC_OK;
}
