/* optim_int.h - inside core/optim: what can be tested without a graph. */
#pragma once
#include "optim.h"

/* ---- rules.c ---- */
struct mc_rule_param { /* what a rule may look at */
    const char *name;
    enum mc_param_class cls;
};
/* `*`: any run of characters, dots too; `?`: one character. */
int mc_rules_glob(const char *pattern, const char *name);
/* decay [n], lr_scale [n]. */
mc_status mc_rules_resolve(const struct mc_optim_cfg *cfg, const struct mc_rule_param *p, int n,
                           double *decay, double *lr_scale, struct mc_err *err);
