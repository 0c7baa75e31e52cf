/* op_table.c - every op that a recipe may call, found by name, and what all rows share.
 *
 * Each op_*.c exports a NULL-ended list of its rows; the families are joined here once. A new op in
 * an existing family touches only its own file.
 *
 * I1  Names are unique.
 * I2  An attribute that a row does not name is an error with the nearest name, never ignored.
 *     Nothing here owns memory; the joined list is made once, by whichever thread asks first. */
#include <math.h>
#include <pthread.h>
#include <string.h>
#include "graph_int.h"

enum { MAX_OPS = 128 };
static const struct mc_op *g_all[MAX_OPS];
static int g_nall;
static pthread_once_t g_once = PTHREAD_ONCE_INIT;

static void join_families(void)
{
    const struct mc_op *const *families[] = {mc_ops_embed, mc_ops_linear, mc_ops_norm,
                                             mc_ops_attn,  mc_ops_rope,   mc_ops_act,
                                             mc_ops_misc,  mc_ops_comm,   mc_ops_loss};
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++)
        for (const struct mc_op *const *op = families[f]; *op; op++) {
            for (int i = 0; i < g_nall; i++)
                MC_ASSERT(strcmp(g_all[i]->name, (*op)->name) != 0); /* I1 */
            MC_ASSERT(g_nall < MAX_OPS);
            g_all[g_nall++] = *op;
        }
}

const struct mc_op *const *mc_op_all(int *n)
{
    pthread_once(&g_once, join_families);
    *n = g_nall;
    return g_all;
}

const struct mc_op *mc_op_find(const char *name)
{
    int n;
    const struct mc_op *const *all = mc_op_all(&n);
    for (int i = 0; i < n; i++)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}

/* -- Attributes ------------------------------------------------------------------------------- */

const struct mc_attr *mc_call_attr(const struct mc_call *c, const char *key)
{
    for (int i = 0; i < c->nattrs; i++)
        if (strcmp(c->attr[i].key, key) == 0)
            return &c->attr[i];
    return NULL;
}

double mc_call_num(const struct mc_call *c, const char *key, double dfl)
{
    const struct mc_attr *a = mc_call_attr(c, key);
    return a ? a->num : dfl;
}

const char *mc_call_str(const struct mc_call *c, const char *key, const char *dfl)
{
    const struct mc_attr *a = mc_call_attr(c, key);
    return a && a->kind == MC_V_STR ? a->str : dfl;
}

/* The few attributes that are words; all others are numbers or booleans. */
static int is_word(const char *key)
{
    static const char *const words[] = {"shard", "tied", "layout", "scaling"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(key, words[i]) == 0)
            return 1;
    return 0;
}

mc_status mc_op_check_attrs(const struct mc_op *op, const struct mc_call *c, struct mc_err *err)
{
    int n = 0;
    while (n < MC_OP_ATTRS && op->attrs[n])
        n++;
    for (int i = 0; i < c->nattrs; i++) {
        const struct mc_attr *a = &c->attr[i];
        int known = 0;
        for (int k = 0; k < n; k++)
            known |= strcmp(a->key, op->attrs[k]) == 0;
        if (!known) { /* I2 */
            const char *near = mc_nearest(a->key, op->attrs, n);
            if (near)
                return mc_err_set(err, MC_E_RECIPE,
                                  "unknown attribute \"%s\"; did you mean \"%s\"?", a->key, near);
            return mc_err_set(err, MC_E_RECIPE, "unknown attribute \"%s\"; it knows%s%s%s%s%s%s",
                              a->key, n ? " \"" : " none", n ? op->attrs[0] : "", n ? "\"" : "",
                              n > 1 ? " \"" : "", n > 1 ? op->attrs[1] : "", n > 1 ? "\" ..." : "");
        }
        if (is_word(a->key) != (a->kind == MC_V_STR))
            return mc_err_set(err, MC_E_RECIPE, "attribute \"%s\" must be a %s", a->key,
                              is_word(a->key) ? "string" : "number or boolean");
        if (a->kind != MC_V_STR && !isfinite(a->num))
            return mc_err_set(err, MC_E_RECIPE, "attribute \"%s\" is not a finite number", a->key);
    }
    return MC_OK;
}

mc_status mc_op_whole_number(const struct mc_op_infer *io, const char *key, double dfl, int64_t lo,
                             int64_t hi, int64_t *out, struct mc_err *err)
{
    double v = mc_call_num(io->call, key, dfl);
    if (!(v >= (double)lo && v <= (double)hi) || v != floor(v))
        return mc_err_set(err, MC_E_RECIPE,
                          "attribute \"%s\" is %.17g; it must be a whole number, %lld to %lld", key,
                          v, (long long)lo, (long long)hi);
    *out = (int64_t)v;
    return MC_OK;
}

/* -- States ----------------------------------------------------------------------------------- */

/* Memory of an extent on any rank; graph_build.c refuses what does not divide. */
static int64_t local(const struct mc_op_infer *io, const struct mc_value_info *v, int dim,
                     int64_t n)
{
    for (int a = 0; a < MC_NAXES; a++)
        if (v->sharding.on[a].kind == MC_SHARD && v->sharding.on[a].dim == dim) {
            int parts = mc_place_parts(&v->sharding.on[a], io->axis_size[a]);
            n = (n + parts - 1) / parts;
        }
    return n;
}

int64_t mc_op_local_cols(const struct mc_op_infer *io, const struct mc_value_info *v)
{
    return local(io, v, 1, v->cols);
}

int64_t mc_op_local_rows(const struct mc_op_infer *io, const struct mc_value_info *v)
{
    return local(io, v, 0, io->bound.b * io->bound.t);
}

mc_status mc_op_heads(const struct mc_op_infer *io, int in, int64_t d, const char *what,
                      int64_t *heads, struct mc_err *err)
{
    const struct mc_place *p = &io->want[in].sharding.on[MC_AXIS_TP];
    int parts =
        p->kind == MC_SHARD && p->dim == 1 ? mc_place_parts(p, io->axis_size[MC_AXIS_TP]) : 1;
    if (io->in[in].cols % d != 0)
        return mc_err_set(err, MC_E_RECIPE, "%s has %lld columns, not whole heads of head_dim %lld",
                          what, (long long)io->in[in].cols, (long long)d);
    *heads = io->in[in].cols / d;
    if (*heads % parts != 0)
        return mc_err_set(err, MC_E_RECIPE, "%s has %lld heads, which tp = %d does not divide",
                          what, (long long)*heads, io->axis_size[MC_AXIS_TP]);
    return MC_OK;
}

void mc_op_preset(struct mc_op_infer *io)
{
    int flags = io->op->flags;
    struct mc_place rows = flags & MC_OPF_TAKES_ROWS ? io->stream : (struct mc_place){0};
    for (int k = 0; k < io->nin; k++) {
        io->want[k] = io->in[k];
        for (int a = 0; a < MC_NAXES; a++) {
            struct mc_place *p = &io->want[k].sharding.on[a];
            if (p->kind == MC_PARTIAL && !(flags & MC_OPF_TAKES_PARTIAL))
                *p = a == MC_AXIS_TP ? rows : (struct mc_place){0};
            else if (p->kind == MC_SHARD &&
                     !(flags & (p->dim == 0 ? MC_OPF_TAKES_ROWS : MC_OPF_TAKES_COLS)))
                *p = (struct mc_place){0};
        }
    }
}

void mc_op_want_cols(struct mc_op_infer *io, int k)
{
    for (int a = 0; a < MC_NAXES; a++) {
        struct mc_place *p = &io->want[k].sharding.on[a];
        if (p->kind == MC_SHARD && p->dim == 1)
            *p = (struct mc_place){.kind = MC_REPLICATE};
    }
}

mc_status mc_op_check_states(const struct mc_op_infer *io, struct mc_err *err)
{
    for (int k = 0; k < io->nin; k++)
        for (int a = 0; a < MC_NAXES; a++) {
            const struct mc_place *p = &io->want[k].sharding.on[a];
            int flag = p->kind == MC_PARTIAL ? MC_OPF_TAKES_PARTIAL
                       : p->dim == 0         ? MC_OPF_TAKES_ROWS
                                             : MC_OPF_TAKES_COLS;
            char s[96];
            if (p->kind == MC_REPLICATE || io->op->flags & flag)
                continue;
            mc_sharding_print(&io->want[k].sharding, s, sizeof s);
            return mc_err_set(err, MC_E_BUG,
                              "asks for input %d in state %s, which its row does "
                              "not say it takes",
                              k, s);
        }
    return MC_OK;
}
