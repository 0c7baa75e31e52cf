/* units.h - the one place where values with units are parsed and printed.
 *
 *   "200M tokens" "2B" "10k samples" "7 steps" "60 min" "1.5 h" "90 s" 500
 * Suffixes: k 1e3, M 1e6, B and G 1e9, T 1e12 (decimal). Units: step(s), sample(s), token(s), ms,
 * s/sec, min, h/hour(s), d/day(s). The product must be a whole number of its unit (time: of
 * nanoseconds) below 2^53 (tokens: 2^62): else an error. */
#pragma once
#include <stdint.h>

enum mc_unit { MC_UNIT_NONE, MC_UNIT_STEPS, MC_UNIT_SAMPLES, MC_UNIT_TOKENS, MC_UNIT_NS };
struct mc_quantity {
    int64_t n;
    enum mc_unit unit;
}; /* time: nanoseconds */

/* 0 ok; -1 with a message in why[128]. Non-negative only. */
int mc_units_parse(const char *s, struct mc_quantity *q, char why[128]);
void mc_units_print(struct mc_quantity q,
                    char dst[48]);        /* "200000000 tokens", "60 min"; reads back the same */
const char *mc_unit_name(enum mc_unit u); /* "", "steps", "samples", "tokens", "ns" */

/* Memory: 1073741824 "512 MiB" "1.5 GiB" "24 GB" (KiB MiB GiB TiB: powers of 1024; kB MB GB TB: of
 * 1000). Whole bytes below 2^53. 0 ok; -1 with a message. */
int mc_units_parse_bytes(const char *s, int64_t *bytes, char why[128]);
void mc_units_print_bytes(int64_t bytes, char dst[32]); /* "1.5 GiB": for people, rounded */
