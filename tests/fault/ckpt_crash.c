/* ckpt_crash.c - every state that a power cut may leave of a recorded run of saves and retentions.
 * links: mc_ckpt
 *
 *   ckpt_crash RUN_BEFORE TRACE WORK RUN [bound]
 * RUN_BEFORE: copy of the run folder before the recording (all durable). TRACE: preload_io's record
 * of a ckpt_driver that worked below RUN (the path in the trace). WORK: an empty folder for states.
 *
 * The weak model. A crash may come after any call. Then
 *   - of a file's content, what came before its last fsync is there; of what came since: nothing,
 * or all of it, or its first half only, or its last half only (zeros before), or its size with
 * zeros for content;
 *   - of names made, moved or removed in a folder, what came before that folder's last fsync is
 *     there; of what came since, any subset, each in any combination with the contents. A rename
 * may be there without the creation before it. Syncing a file does not save its name. Up to `bound`
 * states a crash point (default 3000) are tried all, else that many drawn with a fixed seed. For
 * each distinct state the engine's own reader must find
 *   - a whole checkpoint, at least as new as the newest acknowledged one; none only if none was;
 *   - every manifest whole: proven by a full read, not by its presence;
 *   - the same newest after a retention in the next epoch, and, in one state of 16, after a new
 * save. Prints "states N points N bad N"; exit 0 when none is bad. Memory: malloc; this is a test.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ckpt_fixture.h"
#include "../../core/base/arena.h"
#include "../../core/base/hash.h"
#include "../../core/base/log.h"

enum op { OPEN = 1, WRITE, FSYNC, RENAME, UNLINK, MKDIR, RMDIR, FTRUNCATE, FALLOCATE, MARK };
enum { MAX_OPS = 4096, MAX_INODES = 512, MAX_NAMES = 512, MAX_PENDING = 256, MODES = 5 };

struct bytes {
    unsigned char *p;
    int64_t n;
};
struct rec {
    uint32_t op, na, nb, zero;
    int64_t off, n;
    char *a, *b;
    unsigned char *data;
};
struct inode {
    int dir, dirty, first_op; /* first_op: index of the first record since its last fsync */
    struct bytes now, durable;
};
struct name {
    char path[512]; /* relative to the run */
    int inode;
};
struct change { /* to names, not yet synced */
    char parent[512], from[512], to[512];
    int inode;
};
static struct rec g_rec[MAX_OPS];
static int g_nrec;
static struct inode g_inode[MAX_INODES];
static int g_ninodes;
static struct name g_now[MAX_NAMES], g_durable[MAX_NAMES]; /* names seen by the program; synced */
static int g_nnow, g_ndurable;
static struct change g_change[MAX_PENDING];
static int g_nchanges;
static const char *g_run, *g_work;
static uint64_t g_seen[1 << 18];
static long g_states, g_bad;

static void die(const char *what)
{
    fprintf(stderr, "ckpt_crash: %s: %s\n", what, strerror(errno));
    exit(2);
}

/* ---- names ---- */

static int find(const struct name *t, int n, const char *path)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(t[i].path, path))
            return i;
    return -1;
}

static void drop(struct name *t, int *n, const char *path)
{
    int i = find(t, *n, path);
    if (i >= 0)
        t[i] = t[--*n];
}

static void put(struct name *t, int *n, const char *path, int inode)
{
    drop(t, n, path);
    if (*n == MAX_NAMES)
        die("too many names");
    snprintf(t[*n].path, sizeof t[*n].path, "%s", path);
    t[(*n)++].inode = inode;
}

static void apply(struct name *t, int *n, const struct change *c)
{
    if (c->from[0])
        drop(t, n, c->from);
    if (c->to[0])
        put(t, n, c->to, c->inode);
}

static void changed(const char *from, const char *to, int inode)
{
    struct change *c = &g_change[g_nchanges++];
    if (g_nchanges == MAX_PENDING)
        die("too many pending changes");
    memset(c, 0, sizeof *c);
    snprintf(c->from, sizeof c->from, "%s", from);
    snprintf(c->to, sizeof c->to, "%s", to);
    snprintf(c->parent, sizeof c->parent, "%s", to[0] ? to : from);
    char *slash = strrchr(c->parent, '/');
    *(slash ? slash : c->parent) = 0;
    c->inode = inode;
    apply(g_now, &g_nnow, c);
}

static int new_inode(int dir)
{
    if (g_ninodes == MAX_INODES)
        die("too many files");
    memset(&g_inode[g_ninodes], 0, sizeof g_inode[0]);
    g_inode[g_ninodes].dir = dir;
    return g_ninodes++;
}

static const char *relative(const char *path)
{
    size_t n = strlen(g_run);
    if (strncmp(path, g_run, n))
        die("a path outside the run");
    return path[n] == '/' ? path + n + 1 : path + n;
}

/* ---- contents ---- */

static void resize(struct bytes *b, int64_t n)
{
    unsigned char *p = calloc(1, (size_t)n + 1);
    if (b->n)
        memcpy(p, b->p, (size_t)(b->n < n ? b->n : n));
    free(b->p);
    b->p = p;
    b->n = n;
}

static struct bytes copy_of(const struct bytes *b)
{
    struct bytes r = {0};
    resize(&r, b->n);
    if (b->n)
        memcpy(r.p, b->p, (size_t)b->n);
    return r;
}

static void patch(struct bytes *b, const struct rec *r, int64_t from, int64_t to)
{
    if (r->op == FTRUNCATE)
        resize(b, r->off);
    else if (r->op == FALLOCATE && r->off > b->n)
        resize(b, r->off);
    else if (r->op == WRITE) {
        if (r->off + r->n > b->n)
            resize(b, r->off + r->n);
        if (to > from)
            memcpy(b->p + r->off + from, r->data + from, (size_t)(to - from));
    }
}

/* Content of an unsynced file in mode m, given the records up to `upto`. */
static struct bytes content(int inode, int mode, int upto)
{
    struct inode *x = &g_inode[inode];
    struct bytes b = copy_of(&x->durable);
    int64_t total = 0, at = 0;
    if (mode == 0 || !x->dirty)
        return b;
    for (int pass = 0; pass < 2; pass++)
        for (int i = x->first_op; i < upto; i++) {
            const struct rec *r = &g_rec[i];
            if ((r->op != WRITE && r->op != FTRUNCATE && r->op != FALLOCATE) ||
                (int)r->zero != inode)
                continue;
            if (pass == 0) {
                total += r->op == WRITE ? r->n : 0;
                continue;
            }
            int64_t a = 0, z = r->n, half = total / 2;
            if (mode == 2) /* first half */
                z = half - at < 0 ? 0 : half - at < r->n ? half - at : r->n;
            if (mode == 3) /* last half, zeros before */
                a = half - at < 0 ? 0 : half - at < r->n ? half - at : r->n;
            if (mode == 4) /* size only */
                z = 0;
            if (mode == 2 && at >= half)
                continue;
            patch(&b, r, a, z);
            at += r->op == WRITE ? r->n : 0;
        }
    return b;
}

/* ---- loading ---- */

static void load_tree(const char *dir, const char *rel)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    if (!d)
        die(dir);
    while ((e = readdir(d))) {
        char path[1024], r[512];
        struct stat s;
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        snprintf(r, sizeof r, "%s%s%s", rel, rel[0] ? "/" : "", e->d_name);
        if (stat(path, &s))
            die(path);
        int i = new_inode(S_ISDIR(s.st_mode));
        put(g_now, &g_nnow, r, i);
        put(g_durable, &g_ndurable, r, i);
        if (S_ISDIR(s.st_mode)) {
            load_tree(path, r);
            continue;
        }
        resize(&g_inode[i].now, s.st_size);
        int fd = open(path, O_RDONLY);
        if (read(fd, g_inode[i].now.p, (size_t)s.st_size) != s.st_size)
            die(path);
        close(fd);
        g_inode[i].durable = copy_of(&g_inode[i].now);
    }
    closedir(d);
}

static void load_trace(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        die(path);
    for (; g_nrec < MAX_OPS; g_nrec++) {
        struct rec *r = &g_rec[g_nrec];
        if (fread(r, 32, 1, f) != 1)
            break;
        r->a = calloc(1, r->na + 1);
        r->b = calloc(1, r->nb + 1);
        r->data = malloc((size_t)r->n + 1);
        if (fread(r->a, 1, r->na, f) != r->na || fread(r->b, 1, r->nb, f) != r->nb ||
            fread(r->data, 1, (size_t)r->n, f) != (size_t)r->n)
            die("trace cut short");
    }
    if (g_nrec == MAX_OPS)
        die("trace too long");
    fclose(f);
}

/* ---- one call ---- */

static void step(int i, int64_t *acked)
{
    struct rec *r = &g_rec[i];
    const char *a = r->op == MARK ? r->a : relative(r->a);
    int at = r->op == MARK ? -1 : find(g_now, g_nnow, a), node = at < 0 ? -1 : g_now[at].inode;
    long long n;
    switch (r->op) {
    case OPEN:
    case MKDIR:
        changed("", a, new_inode(r->op == MKDIR));
        break;
    case UNLINK:
    case RMDIR:
        changed(a, "", node);
        break;
    case RENAME:
        changed(a, relative(r->b), node);
        break;
    case WRITE:
    case FTRUNCATE:
    case FALLOCATE:
        if (node < 0)
            die("trace writes to a file that it did not open");
        if (!g_inode[node].dirty) {
            g_inode[node].dirty = 1;
            g_inode[node].first_op = i;
        }
        r->zero = (uint32_t)node;
        patch(&g_inode[node].now, r, 0, r->n);
        break;
    case FSYNC:
        if (node < 0 || g_inode[node].dir) { /* the run folder itself has the empty name */
            int left = 0;
            for (int k = 0; k < g_nchanges; k++)
                if (!strcmp(g_change[k].parent, a))
                    apply(g_durable, &g_ndurable, &g_change[k]);
                else
                    g_change[left++] = g_change[k];
            g_nchanges = left;
        } else {
            free(g_inode[node].durable.p);
            g_inode[node].durable = copy_of(&g_inode[node].now);
            g_inode[node].dirty = 0;
        }
        break;
    case MARK:
        if (sscanf(a, "saved %lld", &n) == 1)
            *acked = n;
        break;
    default:
        die("unknown record");
    }
}

/* ---- one state ---- */

static void wipe(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    char path[1024];
    if (!d)
        return;
    while ((e = readdir(d))) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (unlink(path)) {
            wipe(path);
            rmdir(path);
        }
    }
    closedir(d);
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct name *)a)->path, ((const struct name *)b)->path);
}

static int seen_before(uint64_t h)
{
    for (size_t i = h & 0x3ffff;; i = (i + 1) & 0x3ffff) {
        if (g_seen[i] == h)
            return 1;
        if (!g_seen[i]) {
            g_seen[i] = h;
            return 0;
        }
    }
}

static const char *judge(int64_t acked, int64_t top)
{
    static char why[2048];
    char dir[600];
    struct mc_err e = {0};
    struct mc_ckpt_info *l;
    int n;
    snprintf(dir, sizeof dir, "%s/ckpt", g_work);
    if (mc_ckpt_list(dir, &l, &n, &e) != MC_OK)
        return "list failed";
    why[0] = 0;
    for (int i = 0; i < n && !why[0]; i++) {
        struct mc_ckpt *c;
        if (mc_ckpt_open(l[i].path, &c, &e) != MC_OK)
            snprintf(why, sizeof why, "a manifest that does not hold: %s", e.msg);
        else if (mc_ckpt_verify(c, NULL, NULL, &e) != MC_OK)
            snprintf(why, sizeof why, "a manifest without its data: %s", e.msg);
        if (!why[0])
            mc_ckpt_close(c);
    }
    int64_t newest = why[0] ? -1 : fx_newest(dir, &e);
    mc_free(l);
    if (why[0])
        return why;
    if (newest < -1 || newest < acked || newest > top || (newest == -1 && acked >= 0)) {
        snprintf(why, sizeof why, "newest is %lld; acknowledged %lld, begun %lld: %s",
                 (long long)newest, (long long)acked, (long long)top, e.msg);
        return why;
    }
    memset(&e, 0, sizeof e);
    if (mc_ckpt_retain(dir, 2, 1000, &e) != MC_OK || fx_newest(dir, &e) != newest) {
        snprintf(why, sizeof why, "retention after the crash lost %lld: %s", (long long)newest,
                 e.msg);
        return why;
    }
    if (g_states % 16 == 0) {
        struct fx f;
        fx_make(&f, 999999);
        mc_status st = fx_save(dir, &f, 999999, 1000, 0, &e);
        fx_free(&f);
        if (st != MC_OK || fx_newest(dir, &e) != 999999) {
            snprintf(why, sizeof why, "no save after the crash: %s", e.msg);
            return why;
        }
    }
    return NULL;
}

static void try_state(uint64_t choice, int upto, int64_t acked, int64_t top)
{
    struct name t[MAX_NAMES];
    int n = g_ndurable;
    uint64_t h = 0;
    memcpy(t, g_durable, sizeof t);
    for (int i = 0; i < g_nchanges; i++, choice >>= 1)
        if (choice & 1)
            apply(t, &n, &g_change[i]);
    qsort(t, (size_t)n, sizeof *t, by_path);
    struct bytes b[MAX_NAMES] = {0};
    for (int i = 0; i < n; i++) {
        struct inode *x = &g_inode[t[i].inode];
        int mode = 0;
        if (x->dirty) {
            mode = (int)(choice % MODES);
            choice /= MODES;
        }
        b[i] = content(t[i].inode, mode, upto);
        h = mc_hash64_seed(t[i].path, strlen(t[i].path), h ^ (uint64_t)x->dir);
        h = mc_hash64_seed(b[i].p ? b[i].p : (unsigned char *)"", (size_t)b[i].n, h);
    }
    h = mc_hash64_seed(&acked, sizeof acked, h) | 1;
    if (!seen_before(h)) {
        g_states++;
        wipe(g_work);
        for (int i = 0; i < n; i++) { /* in path order: a folder comes before what is in it */
            char path[1200];
            snprintf(path, sizeof path, "%s/%.511s", g_work, t[i].path);
            if (g_inode[t[i].inode].dir) {
                mkdir(path, 0755);
                continue;
            }
            int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
            if (fd < 0)
                continue; /* its folder's name did not make it */
            if (b[i].n && write(fd, b[i].p, (size_t)b[i].n) != b[i].n)
                die(path);
            close(fd);
        }
        const char *why = judge(acked, top);
        if (why && g_bad++ == 0)
            fprintf(stderr, "after call %d of %d (%d names pending): %s\n", upto, g_nrec,
                    g_nchanges, why);
    }
    for (int i = 0; i < n; i++)
        free(b[i].p);
}

int main(int argc, char **argv)
{
    int64_t acked = -1, top = -1;
    uint64_t rng = 12345;
    if (argc < 5)
        return 2;
    uint64_t bound = argc > 5 ? strtoull(argv[5], NULL, 10) : 3000;
    g_work = argv[3];
    g_run = argv[4];
    mc_log_init(MC_LOG_ERROR, -1);
    load_tree(argv[1], "");
    load_trace(argv[2]);
    char dir[1024];
    struct mc_err e = {0};
    snprintf(dir, sizeof dir, "%s/ckpt", argv[1]);
    acked = top = fx_newest(dir, &e);
    for (int i = 0; i < g_nrec; i++) {
        long long n;
        if (g_rec[i].op == MARK && sscanf(g_rec[i].a, "saved %lld", &n) == 1 && n > top)
            top = n;
    }
    for (int i = 0; i <= g_nrec; i++) {
        uint64_t all = g_nchanges < 40 ? 1ull << g_nchanges : 1ull << 40;
        for (int k = 0; k < g_ninodes; k++)
            if (g_inode[k].dirty && all < 1ull << 50)
                all *= MODES;
        if (all <= bound) {
            for (uint64_t c = 0; c < all; c++)
                try_state(c, i, acked, top);
        } else {
            for (uint64_t c = 0; c < bound; c++) {
                rng = rng * 6364136223846793005u + 1442695040888963407u;
                try_state(c == 0 ? 0 : c == 1 ? ~0ull : rng >> 7, i, acked, top);
            }
        }
        if (i < g_nrec)
            step(i, &acked);
    }
    printf("states %ld points %d bad %ld\n", g_states, g_nrec + 1, g_bad);
    return g_bad != 0;
}
