/* log.h - levelled lines on stderr, one write(2) a line, with the rank where there is more than
 * one. */
#pragma once

enum mc_log_level { MC_LOG_ERROR, MC_LOG_WARN, MC_LOG_INFO, MC_LOG_DEBUG };

/* level: lines above it are dropped. rank < 0: no rank prefix. Default: MC_LOG_INFO, -1. */
void mc_log_init(enum mc_log_level level, int rank);
void mc_log(enum mc_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
