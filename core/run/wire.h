/* wire.h - one message of the control plane as bytes: between a rank and its agent, and between an
 * agent and the coordinator. The table of messages stands in wire.c. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

enum mc_msg_kind {
    MC_MSG_HELLO = 1,
    MC_MSG_WELCOME,
    MC_MSG_REFUSED,
    MC_MSG_SPAWN,
    MC_MSG_SPAWNED,
    MC_MSG_SPAWN_FAILED,
    MC_MSG_RANK_HELLO,
    MC_MSG_GATHER,
    MC_MSG_GATHERED,
    MC_MSG_EXITED,
    MC_MSG_SIGNAL,
    MC_MSG_KILL,
    MC_MSG_END,
    MC_MSG_NKINDS
};
enum {
    MC_MSG_VALUES = 10,
    MC_MSG_TEXT_MAX = 4096,
    MC_MSG_DATA_MAX = 32768, /* a packet of a local socket takes it whole */
    MC_MSG_HEAD = 104,
    MC_MSG_MAX = MC_MSG_HEAD + MC_MSG_TEXT_MAX + MC_MSG_DATA_MAX
};
struct mc_msg {
    enum mc_msg_kind kind;
    int rank; /* -1: all, or none */
    uint32_t seq;
    int64_t v[MC_MSG_VALUES];
    const char *text; /* ntext bytes without NUL; read: points into the packet */
    size_t ntext;
    const void *data;
    size_t ndata;
};
const char *mc_msg_name(enum mc_msg_kind k);
/* Bytes written; text longer than MC_MSG_TEXT_MAX is cut. cap >= MC_MSG_MAX. */
size_t mc_wire_write(const struct mc_msg *m, unsigned char *buf, size_t cap);
/* MC_E_PEER when the n bytes are no message. Nothing is copied. */
mc_status mc_wire_read(const unsigned char *buf, size_t n, struct mc_msg *m, struct mc_err *err);
