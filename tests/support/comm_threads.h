/* comm_threads.h - communicators among threads of one process, and a mesh made of them.
 *
 * For tests of what stands on core/comm: the full mc_comm_ops without processes or a transport.
 * Sums are in member order, so they are the bits that core/comm promises. */
#pragma once
#include "../../core/par/mesh.h"

enum { MC_THREADS_MAX = 16 }; /* members of a group */
/* The communicators of one group of `size` threads; member m drives comm[m], from one thread. */
mc_status mc_comm_threads_create(const char *name, int size, int64_t deadline_ns,
                                 struct mc_comm *comm[], struct mc_err *err);
/* Runs fn in layout->world threads, each with its rank's mesh; returns when all have ended. fn must
 * not use cmocka's asserts: it notes in arg what it found. Fails only when nothing could be
 * started. */
mc_status mc_test_mesh(const struct mc_layout *layout, int64_t deadline_ns,
                       void (*fn)(struct mc_mesh *mesh, void *arg), void *arg, struct mc_err *err);
/* How often the threads' copies of what they exchange called the allocator so far. */
int64_t mc_comm_threads_calls(void);
