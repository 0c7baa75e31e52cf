/* rules.c - weight decay and rate factor of each parameter, by name.
 * Floor 5 (optim). Includes: graph (parameter classes), recipe.
 *
 * For each parameter:
 *   rules      the first whose `match` fits gives weight_decay and lr_scale, each where it is set
 *   no_decay   else, decay is 0 when one of these words fits
 *   else       optim.weight_decay; lr_scale 1
 * So a rule goes before no_decay: it is the more particular word.
 * A word is a class, "norm" | "bias" | "embedding" (token and position tables), or else a glob over
 * full names ("layers.*.attn.q.weight"): * any run of characters, ? one.
 *
 * I1  A glob that fits no parameter is an error with the nearest name; so is a rule that earlier
 *     rules leave nothing to. A class may be empty: a model without biases may say "bias".
 * Threads: pure. */
#include <math.h>
#include <string.h>
#include "optim_int.h"
#include "../base/arena.h"

int mc_rules_glob(const char *pattern, const char *name)
{
    const char *star = NULL, *back = NULL; /* last *, and where its run ends so far */
    while (*name) {
        if (*pattern == '*') {
            star = pattern++;
            back = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star + 1;
            name = ++back;
        } else {
            return 0;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == 0;
}

static int is_class(const char *word)
{
    return !strcmp(word, "norm") || !strcmp(word, "bias") || !strcmp(word, "embedding");
}

static int fits(const char *word, const struct mc_rule_param *p)
{
    if (!strcmp(word, "norm"))
        return p->cls == MC_PARAM_NORM;
    if (!strcmp(word, "bias"))
        return p->cls == MC_PARAM_BIAS;
    if (!strcmp(word, "embedding"))
        return p->cls == MC_PARAM_EMBEDDING || p->cls == MC_PARAM_POSITION;
    return mc_rules_glob(word, p->name);
}

static mc_status check_word(const char *key, int i, const char *word, const struct mc_rule_param *p,
                            int n, struct mc_err *err)
{
    for (int k = 0; k < n; k++)
        if (fits(word, &p[k]))
            return MC_OK;
    if (is_class(word))
        return MC_OK;
    const char **names = mc_alloc((size_t)n * sizeof *names + 8, "names of parameters");
    if (!names)
        return mc_err_set(err, MC_E_NOMEM, "no memory for %d names", n);
    for (int k = 0; k < n; k++)
        names[k] = p[k].name;
    const char *near = mc_nearest(word, names, n);
    mc_free(names);
    if (near)
        return mc_err_set(err, MC_E_RECIPE,
                          "optim.%s[%d]: \"%s\" fits no parameter; did you mean \"%s\"?", key,
                          i + 1, word, near);
    return mc_err_set(err, MC_E_RECIPE,
                      "optim.%s[%d]: \"%s\" fits no parameter; names are like \"%s\", classes are "
                      "norm, bias, embedding",
                      key, i + 1, word, n ? p[0].name : "");
}

mc_status mc_rules_resolve(const struct mc_optim_cfg *cfg, const struct mc_rule_param *p, int n,
                           double *decay, double *lr_scale, struct mc_err *err)
{
    int used[MC_MAX_RULES] = {0};
    for (int i = 0; i < cfg->nrules; i++)
        MC_TRY(check_word("rules", i, cfg->rule[i].match, p, n, err)); /* I1 */
    for (int i = 0; i < cfg->nno_decay; i++)
        MC_TRY(check_word("no_decay", i, cfg->no_decay[i], p, n, err));
    for (int k = 0; k < n; k++) {
        decay[k] = cfg->weight_decay;
        lr_scale[k] = 1;
        for (int i = 0; i < cfg->nno_decay; i++)
            if (fits(cfg->no_decay[i], &p[k]))
                decay[k] = 0;
        for (int i = 0; i < cfg->nrules; i++)
            if (fits(cfg->rule[i].match, &p[k])) {
                used[i] = 1;
                if (!isnan(cfg->rule[i].weight_decay))
                    decay[k] = cfg->rule[i].weight_decay;
                if (!isnan(cfg->rule[i].lr_scale))
                    lr_scale[k] = cfg->rule[i].lr_scale;
                break;
            }
    }
    for (int i = 0; i < cfg->nrules; i++)
        if (!used[i] && !is_class(cfg->rule[i].match))
            return mc_err_set(
                err, MC_E_RECIPE,
                "optim.rules[%d]: earlier rules take every parameter that \"%s\" fits; "
                "move it up, or leave it out",
                i + 1, cfg->rule[i].match);
    return MC_OK;
}
