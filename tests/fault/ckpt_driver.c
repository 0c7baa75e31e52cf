/* ckpt_driver.c - does what it is told to one ckpt folder; the fault scripts preload faults into
 * it. links: mc_ckpt
 *
 *   ckpt_driver DIR COMMAND...     in order, until one fails
 *     save:STEP:EPOCH[:z]  the fixture's state of STEP (z: compressed)      -> "saved STEP"
 *     many:STEP:EPOCH[:z]  the same by three writers, in turns              -> "saved STEP"
 *     retain:KEEP:EPOCH                                                      -> "retained"
 *     load                 newest, in full, judged                           -> "loaded STEP"
 *     verify               every checkpoint that lists as whole              -> "verified N"
 *     rss:MIB              save and load MIB of state; growth of memory      -> "rss KIB"
 * Each answer is one write to stdout, and a mark in the I/O trace. Exit: 0; 20 + status when a
 * command failed ("failed NAME: message"); 3 when bytes came back that no save had written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "ckpt_group.h"
#include "../../core/base/arena.h"
#include "../../core/base/log.h"

static void say(const char *text, long long n)
{
    char line[128], mark[160];
    int len = snprintf(line, sizeof line, "%s %lld\n", text, n);
    snprintf(mark, sizeof mark, "mc-mark:%.*s", len - 1, line);
    if (write(1, line, (size_t)len) != len)
        _exit(9);
    (void)!access(mark, F_OK);
}

static mc_status verify_all(const char *dir, struct mc_err *err)
{
    struct mc_ckpt_info *l;
    int n, good = 0;
    MC_TRY(mc_ckpt_list(dir, &l, &n, err));
    mc_status st = MC_OK;
    for (int i = 0; i < n && st == MC_OK; i++) {
        struct mc_ckpt *c;
        if (!l[i].whole)
            continue;
        st = mc_ckpt_open(l[i].path, &c, err);
        if (st != MC_OK)
            break;
        st = mc_ckpt_verify(c, NULL, NULL, err);
        mc_ckpt_close(c);
        good++;
    }
    mc_free(l);
    if (st == MC_OK)
        say("verified", good);
    return st;
}

static mc_status measure(const char *dir, long mib, struct mc_err *err)
{
    struct mc_state_tensor t = fx_tensor("model/big", MC_F32, 2, (int64_t[]){mib, 1 << 18});
    struct mc_ckpt_save s = {.ckpt_dir = dir,
                             .step = 1,
                             .epoch = 1,
                             .tensor = &t,
                             .ntensors = 1,
                             .books = "{}",
                             .compress = 1};
    char path[1100];
    struct mc_ckpt *c;
    fx_fill(&t, 1);
    size_t before = mc_mem_rss_peak();
    mc_status st = mc_ckpt_save(&s, err);
    if (st == MC_OK)
        st = mc_ckpt_resolve(dir, -1, path, err);
    if (st == MC_OK && (st = mc_ckpt_open(path, &c, err)) == MC_OK) {
        st = mc_ckpt_load(c, &t, 1, 1, err);
        mc_ckpt_close(c);
    }
    if (st == MC_OK)
        say("rss", (long long)(mc_mem_rss_peak() - before) / 1024);
    free(t.data);
    return st;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    mc_log_init(MC_LOG_ERROR, -1);
    for (int i = 2; i < argc; i++) {
        struct mc_err e = {0};
        long a = 0, b = 0;
        char z = 0;
        mc_status st = MC_OK;
        if (sscanf(argv[i], "save:%ld:%ld:%c", &a, &b, &z) >= 2) {
            struct fx f;
            fx_make(&f, a);
            st = fx_save(argv[1], &f, a, (int)b, z == 'z', &e);
            fx_free(&f);
            if (st == MC_OK)
                say("saved", a);
        } else if (sscanf(argv[i], "many:%ld:%ld:%c", &a, &b, &z) >= 2) {
            st = fx_save_by(3, argv[1], a, (int)b, z == 'z', &e);
            if (st == MC_OK)
                say("saved", a);
        } else if (sscanf(argv[i], "retain:%ld:%ld", &a, &b) == 2) {
            st = mc_ckpt_retain(argv[1], (int)a, (int)b, &e);
            if (st == MC_OK)
                say("retained", a);
        } else if (!strcmp(argv[i], "load")) {
            int64_t step = fx_newest(argv[1], &e);
            if (step == -3)
                return 3;
            st = step == -1 ? MC_E_NOTFOUND : step == -2 ? e.code : MC_OK;
            if (st == MC_OK)
                say("loaded", step);
        } else if (!strcmp(argv[i], "verify")) {
            st = verify_all(argv[1], &e);
        } else if (sscanf(argv[i], "rss:%ld", &a) == 1) {
            st = measure(argv[1], a, &e);
        } else {
            return 2;
        }
        if (st != MC_OK) {
            printf("failed %s: %s\n", mc_status_name(st), e.msg);
            return 20 + st;
        }
    }
    return 0;
}
