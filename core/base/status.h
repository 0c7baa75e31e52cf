/* status.h - the one error model: a status code, and a record filled by the first function that
 * knows.
 *
 * A function that can fail returns mc_status: 0 (MC_OK) or one of the codes below. Cold paths take
 * `struct mc_err *err` (may be NULL); the first function that knows the cause fills it with what,
 * where and what to do; callers pass it on with MC_TRY, which adds file:line on the way up. Outputs
 * are written only on success. Asserts are for our own bugs; input, files and peers never reach
 * one.
 *
 * The code fixes the response (scope) and the exit code of the process:
 *   op    report or retry this call          comm  rebuild the group
 *   proc  restart this rank                  job   stop the job */
#pragma once
#include <stdarg.h>
#include <stdint.h>

typedef int mc_status;

enum mc_code {
    MC_OK = 0,
    MC_E_BUG,     /* job   exit 1   an invariant of ours is broken */
    MC_E_USAGE,   /* job   exit 2   command line */
    MC_E_RECIPE,  /* job   exit 2   recipe: unknown key, impossible combination, ... */
    MC_E_MACHINE, /* job   exit 3   memory, disk, devices, hosts that train stands on; a run that is
                     held */
    MC_E_DIFF,    /* job   exit 4   verify or diff found a difference */
    MC_E_NOTFOUND, /* op    exit 2   a named file or thing does not exist */
    MC_E_FORMAT, /* op    exit 2   foreign bytes that are not what they claim (user's data files) */
    MC_E_CORRUPT, /* op    exit 76  damage in a file of ours (checkpoint, resolved.json) */
    MC_E_IO,      /* op    exit 76  the system refused an I/O call; mc_err.sys_errno */
    MC_E_NOSPC,   /* op    exit 76  ENOSPC or EDQUOT */
    MC_E_NOMEM,   /* proc  exit 76  */
    MC_E_TIMEOUT, /* comm  exit 76  a deadline passed; the message names who is missing */
    MC_E_PEER,    /* comm  exit 76  a peer died or spoke out of protocol */
    MC_E_STOPPED, /* job   exit 75  orderly stop with a complete checkpoint and progress */
    MC_E_FAILED,  /* job   exit 76  failed or stopped without progress; a retry may help */
    MC_E_GIVEUP,  /* job   exit 77  a retry will not help (abort rule, hook limits) */
    MC_NCODES
};

struct mc_err {
    mc_status code;
    int sys_errno;   /* 0, or errno of the call that failed */
    char msg[1400];  /* one line, no newline: what, where, what to do */
    char trail[400]; /* "writer.c:88 < ckpt.c:31", innermost first */
};

/* Fill err (if not NULL) and return code. A second set keeps the first cause: it is ignored when
 * err->code is set, and that first code is returned. Start with a zeroed record. */
mc_status mc_err_set(struct mc_err *err, mc_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* As above from errno: ENOSPC/EDQUOT -> MC_E_NOSPC, ENOMEM -> MC_E_NOMEM, ENOENT/ENOTDIR ->
 * MC_E_NOTFOUND, EACCES/EPERM/EROFS -> MC_E_MACHINE, EISDIR -> MC_E_FORMAT, else MC_E_IO; appends
 * ": strerror" and, where errno alone tells it, what to do. */
mc_status mc_err_sys(struct mc_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
mc_status mc_err_trail(struct mc_err *err, mc_status st, const char *file, int line);
void mc_err_clear(struct mc_err *err);

const char *mc_status_name(mc_status st); /* "ok", "recipe", "nospc", ... */
int mc_status_exit_code(mc_status st);    /* DESIGN: 0 1 2 3 4 75 76 77 */

/* Both need a variable `err` (struct mc_err *) in scope. */
#define MC_TRY(expr)                                                                               \
    do {                                                                                           \
        mc_status st__ = (expr);                                                                   \
        if (st__ != MC_OK)                                                                         \
            return mc_err_trail(err, st__, __FILE__, __LINE__);                                    \
    } while (0)
/* st: an mc_status lvalue; on failure keeps it there and jumps. */
#define MC_TRY_GOTO(st, expr, label)                                                               \
    do {                                                                                           \
        (st) = (expr);                                                                             \
        if ((st) != MC_OK) {                                                                       \
            mc_err_trail(err, (st), __FILE__, __LINE__);                                           \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

_Noreturn void mc_assert_fail(const char *expr, const char *file, int line);
/* Our own bugs only: dumps the flight recorder to stderr, then aborts (exit code 1 at the agent).
 * Always on. */
#define MC_ASSERT(e) ((e) ? (void)0 : mc_assert_fail(#e, __FILE__, __LINE__))
