/* link.h - a connection between an agent and the coordinator: TCP, both sides proven to hold the
 * run's key, messages of wire.h sealed. Nothing here blocks but mc_link_connect. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "wire.h"

enum { MC_LINK_KEY = 32 };
struct mc_link;

/* Listens on `port` of all addresses (0: the kernel chooses), *bound: which. A port that is taken
 * is MC_E_MACHINE, with who has it where that can be seen. */
mc_status mc_link_listen(int port, int *fd, int *bound, struct mc_err *err);
/* *l NULL and MC_OK: nobody is waiting. key is copied. */
mc_status mc_link_accept(int listen_fd, const unsigned char key[MC_LINK_KEY], struct mc_link **l,
                         struct mc_err *err);
/* Tries until the span is over, then MC_E_TIMEOUT; returns when both sides are proven.
 * MC_E_MACHINE: whoever listens there holds another key, or is no coordinator; stop (may be NULL):
 * called while it waits, nonzero ends it with MC_E_STOPPED. */
mc_status mc_link_connect(const char *host, int port, const unsigned char key[MC_LINK_KEY],
                          int64_t span_ns, int (*stop)(void), struct mc_link **l,
                          struct mc_err *err);
int mc_link_fd(const struct mc_link *l);
int mc_link_is_proven(const struct mc_link *l);
int mc_link_has_output(const struct mc_link *l);   /* poll for POLLOUT, too */
const char *mc_link_peer(const struct mc_link *l); /* "10.0.0.7:41234" */
/* Queues one message; it goes out with mc_link_turn. */
mc_status mc_link_send(struct mc_link *l, const struct mc_msg *m, struct mc_err *err);
/* Reads and writes what goes now. MC_E_PEER: closed, or not what it must be; then the link is
 * dead, but for messages that came whole before. */
mc_status mc_link_turn(struct mc_link *l, struct mc_err *err);
/* The next whole message; 0: none. It lives until the next mc_link_next or mc_link_turn.
 * *err is set, and 0 returned, by a message that cannot be opened or read: drop the link. */
int mc_link_next(struct mc_link *l, struct mc_msg *m, struct mc_err *err);
void mc_link_close(struct mc_link *l); /* NULL is fine */
