/* pipe_maker.h - schedules that nobody wrote, for test_pipe*.c: made by running them. Stages lie
 * where chance puts them, and again and again a random rank does one of the things that it can do
 * next. They are sound by construction, and the proof must say so. */
#pragma once
#include "pipe_help.h"

MAYBE uint64_t g_seed;
MAYBE int any(int n)
{
    g_seed ^= g_seed << 13, g_seed ^= g_seed >> 7, g_seed ^= g_seed << 17;
    return (int)(g_seed >> 16 & 0x7fffffff) % n;
}

struct maker {
    int p, v, m, S;
    int at[64];                          /* of a stage: its rank */
    int f[64][MOST], i[64][MOST], w[64]; /* done; w: how many, ascending */
    int queue[2][16][16][64 * MOST], n[2][16][16], taken[2][16][16]; /* stage * m + mb, sent */
};
MAYBE int first_in_line(const struct maker *k, int kind, int from, int to, int stage, int mb)
{
    return from == to || (k->taken[kind][from][to] < k->n[kind][from][to] &&
                          k->queue[kind][from][to][k->taken[kind][from][to]] == stage * k->m + mb);
}
MAYBE int can(const struct maker *k, int op, int s, int mb)
{
    int r = k->at[s];
    if (op == MC_SCHED_F)
        return !k->f[s][mb] &&
               (s == 0 || (k->f[s - 1][mb] && first_in_line(k, 0, k->at[s - 1], r, s, mb)));
    if (op == MC_SCHED_W)
        return k->i[s][mb] && k->w[s] == mb;
    return k->f[s][mb] && !k->i[s][mb] && (op == MC_SCHED_I || k->w[s] == mb) &&
           (s == k->S - 1 || (k->i[s + 1][mb] && first_in_line(k, 1, k->at[s + 1], r, s, mb)));
}
MAYBE void does(struct maker *k, int op, int s, int mb)
{
    int kind = op != MC_SCHED_F, from = kind ? s + 1 : s - 1, to = kind ? s - 1 : s + 1;
    if (op == MC_SCHED_F)
        k->f[s][mb] = 1;
    else if (op != MC_SCHED_W)
        k->i[s][mb] = 1;
    k->w[s] += op == MC_SCHED_B || op == MC_SCHED_W;
    if (op == MC_SCHED_W)
        return;
    if (from >= 0 && from < k->S && k->at[from] != k->at[s])
        k->taken[kind][k->at[from]][k->at[s]]++;
    if (to >= 0 && to < k->S && k->at[to] != k->at[s])
        k->queue[kind][k->at[s]][k->at[to]][k->n[kind][k->at[s]][k->at[to]]++] = to * k->m + mb;
}
MAYBE struct mc_sched *made(int p, int v, int m)
{
    static struct maker k;
    static struct mc_sched_rec rec[16][64 * MOST * 3];
    int64_t counts[16] = {0};
    int chunk[64], left = 0, place[64];
    memset(&k, 0, sizeof k);
    k = (struct maker){.p = p, .v = v, .m = m, .S = p * v};
    for (int s = 0; s < k.S; s++)
        place[s] = s;
    for (int s = k.S - 1; s > 0; s--) {
        int j = any(s + 1), t = place[s];
        place[s] = place[j], place[j] = t;
    }
    for (int i = 0; i < k.S; i++) {
        k.at[place[i]] = i / v;
        chunk[place[i]] = i % v;
    }
    for (left = k.S * m * 2; left > 0;) { /* F, and what ends a pair */
        int r = any(p), op[3] = {MC_SCHED_F, MC_SCHED_B, MC_SCHED_W}, n = 0, pick = -1, ps = 0,
            pm = 0;
        op[1] = any(2) ? MC_SCHED_I : MC_SCHED_B;
        int o = op[any(3)];
        for (int s = 0; s < k.S; s++)
            for (int mb = 0; mb < m && k.at[s] == r; mb++)
                if (can(&k, o, s, mb) && any(++n) == 0)
                    pick = o, ps = s, pm = mb;
        if (pick < 0 && any(4) == 0) { /* B may be out of turn for ever: I is not */
            n = 0;
            for (int s = 0; s < k.S; s++)
                for (int mb = 0; mb < m && k.at[s] == r; mb++)
                    if (can(&k, MC_SCHED_I, s, mb) && any(++n) == 0)
                        pick = MC_SCHED_I, ps = s, pm = mb;
        }
        if (pick < 0)
            continue;
        does(&k, pick, ps, pm);
        rec[r][counts[r]++] =
            (struct mc_sched_rec){.op = (int8_t)pick, .mb = pm, .chunk = (int16_t)chunk[ps]};
        left -= pick != MC_SCHED_I;
    }
    struct mc_sched *s;
    struct mc_err err = {0};
    check_ok(mc_sched_create("made", p, v, m, counts, &s, &err), &err);
    memcpy(s->place, place, (size_t)k.S * sizeof *place);
    for (int r = 0; r < p; r++)
        memcpy(&s->rec[s->first[r]], rec[r], (size_t)counts[r] * sizeof rec[r][0]);
    return s;
}
