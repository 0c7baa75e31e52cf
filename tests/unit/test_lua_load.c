/* test_lua_load.c - from text to bound recipe: places, inherit, --set, tracing, functions of
 * progress. links: mc_lua Expected values are written out by hand in each test. */
#include "lua_util.h"
#include <math.h>
#include "../../lua/lines.h"

static void set_text(struct loaded *x, const char *text, const char *a, const char *b,
                     const char *c)
{
    const char *set[3] = {a, b, c};
    load_file(x, write_file("recipe.lua", text), set, c ? 3 : b ? 2 : a ? 1 : 0);
}
static const struct mc_recipe *recipe(const struct loaded *x)
{
    expect_ok(x);
    return mc_recipe_of(x->l.box);
}

/* -- Lines ----------------------------------------------------------------------------------- */

static int line_of(const struct mc_lines *l, const char *dotted)
{
    int node = mc_lines_returned(l), line = -1;
    char word[64];
    while (*dotted && node >= 0) {
        const size_t n = strcspn(dotted, ".");
        snprintf(word, sizeof word, "%.*s", (int)n, dotted);
        node =
            atoi(word) > 0 ? mc_lines_position(l, node, atoi(word)) : mc_lines_key(l, node, word);
        line = node >= 0 ? l->node[node].line : -1;
        dotted += n + (dotted[n] == '.');
    }
    return line;
}
static void lines_follow_nested_constructors(void **state)
{
    (void)state;
    const char *text = "local t = { a = 1 }\n"                                   /* 1 */
                       "--[[ { x = 1,\n } ]] local s = \"{ y = 2\"\n"            /* 2 3 */
                       "return f.g {\n"                                          /* 4 */
                       "  a = 1, ['b'] = [[\n{ c = 3 ]],\n"                      /* 5 6 */
                       "  c = { 10,\n 20; d = function(x)\n"                     /* 7 8 */
                       "    local q = { z = 1, 2 }; if x then return q, 1 end\n" /* 9 */
                       "    for i = 1, 2 do while x do q = i end end\n"          /* 10 */
                       "  end,\n"                                                /* 11 */
                       "  e = m.h({ k = 1,\n l = 2 }) },\n"                      /* 12 13 */
                       "  f = 2 == 3, -- { no = 1 }\n"                           /* 14 */
                       "  g = 1 }\n";                                            /* 15 */
    struct mc_lines *l = mc_lines_create(text, strlen(text));
    assert_int_equal(line_of(l, "a"), 5);
    assert_int_equal(line_of(l, "b"), 5);
    assert_int_equal(line_of(l, "c"), 7);
    assert_int_equal(line_of(l, "c.1"), 7);
    assert_int_equal(line_of(l, "c.2"), 8);
    assert_int_equal(line_of(l, "c.d"), 8);
    assert_int_equal(line_of(l, "c.e"), 12);
    assert_int_equal(line_of(l, "c.e.l"), 13);
    assert_int_equal(line_of(l, "f"), 14);
    assert_int_equal(line_of(l, "g"), 15);
    assert_int_equal(line_of(l, "y"), -1);
    mc_lines_destroy(l);
}
static void lines_survive_any_text(void **state)
{
    (void)state;
    const char *texts[] = {"",
                           "{",
                           "}",
                           "return {",
                           "return { a = { b = \"",
                           "[==[",
                           "--[[",
                           "end end }",
                           "return { [",
                           "return { ['",
                           "return {{{{{{",
                           "a.b.c{d=1",
                           "\\\"'",
                           "return { a = ) }"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        mc_lines_destroy(mc_lines_create(texts[i], strlen(texts[i])));
    char deep[2000];
    memset(deep, '{', sizeof deep);
    mc_lines_destroy(mc_lines_create(deep, sizeof deep));
}
static void literals_are_told_from_words(void **state)
{
    (void)state;
    const char *yes[] = {"1",
                         "-1.5e-3",
                         "0x10",
                         "true",
                         "false",
                         "'a b'",
                         "\"x\"",
                         "[[x]]",
                         "{}",
                         "{ 1, 2 }",
                         "{ a = 1, ['b'] = { 2; 3 }, [4] = 'x', }"};
    const char *no[] = {"",         "bf16", "60 min",  "1-2",     "2^3",       "a/b",
                        "data.txt", "nil",  "{ f() }", "{ a }",   "{ a = b }", "function() end",
                        "1, 2",     "{",    "}",       "'a",      "1 2",       "{ 1 } { 2 }",
                        "a = 1",    "x.y",  "-",       "'a'..'b'"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        if (!mc_lines_is_literal(yes[i]))
            fail_msg("%s is a literal", yes[i]);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        if (mc_lines_is_literal(no[i]))
            fail_msg("%s is no literal", no[i]);
}

/* -- Places ---------------------------------------------------------------------------------- */

static void load_gives_each_value_its_line(void **state)
{
    struct loaded x;
    (void)state;
    load_text(&x, RECIPE("", "  checkpoint = {\n    keep = 5 },\n"));
    (void)recipe(&x);
    const struct {
        const char *key;
        int line;
    } want[] = {{"name", 3},        {"model.layers", 4},   {"model.heads", 5},
                {"model.seq", 5},   {"data.tokenizer", 6}, {"batch.micro", 7},
                {"steps.steps", 7}, {"lr.peak", 8},        {"checkpoint.keep", 10}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        char file[256];
        int line;
        mc_recipe_where(x.l.box, want[i].key, file, &line);
        if (line != want[i].line || !strstr(file, "/recipe.lua"))
            fail_msg("%s: %s:%d", want[i].key, file, line);
    }
    assert_string_equal(mc_recipe_origin(x.l.box, "checkpoint.every"), "default");
    unload(&x);
}
static void load_follows_constructors_in_locals_and_modules(void **state)
{
    struct loaded x;
    (void)state;
    write_file("parts.lua", "local m = require 'mascon'\n"
                            "return {\n"
                            "  lr = m.lr.cosine {\n"
                            "    peak = 'high' },\n"
                            "}\n");
    load_text(
        &x,
        "local m = require 'mascon'\n"
        "local optim = m.adamw {\n"
        "  clip = -1 }\n"
        "return { model = m.models.llama { layers = 1, hidden = 8, heads = 2, ffn = 8, seq = 8 },\n"
        "  data = { tokenizer = 'bytes', train = 'x' }, batch = { global = 1 }, steps = { steps = "
        "1 },\n"
        "  lr = require('parts').lr, optim = optim }\n");
    const struct mc_problem *p = NULL;
    for (int i = 0; i < x.problems.n; i++)
        if (!strcmp(x.problems.p[i].path, "lr.peak"))
            p = &x.problems.p[i];
    assert_non_null(p);
    assert_int_equal(p->line, 4);
    assert_non_null(strstr(p->file, "parts.lua"));
    p = NULL;
    for (int i = 0; i < x.problems.n; i++)
        if (!strcmp(x.problems.p[i].path, "optim.clip"))
            p = &x.problems.p[i];
    assert_non_null(p);
    assert_int_equal(p->line, 3);
    unload(&x);
}
static void load_shows_all_problems_at_once(void **state)
{
    struct loaded x;
    (void)state;
    load_text(
        &x, "local m = require 'mascon'\n"
            "return m.recipe { name = 'x', stepz = 1,\n"
            "  model = m.models.llama { layers = 0, hidden = 16, heads = 4, seq = 8, headz = 4 },\n"
            "  data = { tokenizer = 'bytes', train = 'x' }, batch = { global = 4, micro = {} },\n"
            "  steps = { steps = 10 }, lr = m.lr.constant { peak = 1, warmup = '5 parsecs' } }\n");
    const char *paths[] = {"stepz", "model.layers", "model.headz", "batch.micro", "lr.warmup"};
    assert_int_equal(x.st, MC_E_RECIPE);
    for (size_t i = 0; i < 5; i++) {
        int found = 0;
        for (int k = 0; k < x.problems.n; k++)
            found |= !strcmp(x.problems.p[k].path, paths[i]);
        if (!found) {
            show(&x);
            fail_msg("%s", paths[i]);
        }
    }
    unload(&x);
}
static void load_reports_files_that_cannot_be_read(void **state)
{
    struct loaded x;
    (void)state;
    load_file(&x, path_of("nothing.lua"), NULL, 0);
    assert_int_equal(x.st, MC_E_NOTFOUND);
    unload(&x);
    load_file(&x, g_dir, NULL, 0);
    assert_int_not_equal(x.st, MC_OK);
    unload(&x);
    load_text(&x, "");
    expect_problem(&x, "returned nothing", "", 0);
    unload(&x);
    load_text(&x, "return {\n  name = ,\n}");
    expect_problem(&x, "unexpected symbol", "", 2);
    unload(&x);
}

/* -- inherit and --set ----------------------------------------------------------------------- */

static void inherit_merges_deeply_and_lists_replace(void **state)
{
    struct loaded x;
    (void)state;
    write_file("base.lua",
               RECIPE("", "  optim = m.adamw { clip = 2, no_decay = { 'norm', 'bias' } },\n"));
    load_text(&x, "local m = require 'mascon'\n"
                  "return { inherit = 'base.lua', name = 'y', model = { layers = 3 },\n"
                  "  optim = { no_decay = { 'embedding' } }, steps = { tokens = 640 },\n"
                  "  lr = m.lr.cosine { peak = 2e-3 } }\n");
    const struct mc_recipe *r = recipe(&x);
    assert_string_equal(r->name, "y");
    assert_int_equal(r->model.layers, 3);
    assert_int_equal(r->model.hidden, 16);
    assert_int_equal(r->model.stem.ncalls, 1);
    assert_true(r->optim.clip == 2);
    assert_int_equal(r->optim.nno_decay, 1);
    assert_string_equal(r->optim.no_decay[0], "embedding");
    assert_int_equal(r->steps.unit, MC_UNIT_TOKENS); /* replaced steps.steps */
    assert_int_equal(r->steps.n, 640);
    assert_int_equal(r->lr.kind, MC_LR_COSINE);
    assert_true(r->lr.peak == 2e-3);
    char file[256];
    int line;
    mc_recipe_where(x.l.box, "model.layers", file, &line);
    assert_non_null(strstr(file, "recipe.lua"));
    assert_int_equal(line, 2);
    mc_recipe_where(x.l.box, "model.hidden", file, &line);
    assert_non_null(strstr(file, "base.lua"));
    assert_int_equal(line, 4);
    unload(&x);
}
static void inherit_keeps_paths_of_the_other_folder(void **state)
{
    struct loaded x;
    char want[300];
    (void)state;
    mkdir(path_of("sub"), 0755);
    write_file("sub/base.lua", RECIPE("", ""));
    write_file("sub/text.txt", "hello");
    load_text(&x, "return { inherit = 'sub/base.lua' }");
    snprintf(want, sizeof want, "%s/sub/text.txt", g_dir);
    assert_string_equal(recipe(&x)->data.train[0].path, want);
    unload(&x);
}
static void inherit_refuses_circles_and_missing_files(void **state)
{
    struct loaded x;
    (void)state;
    write_file("a.lua", "return { inherit = 'recipe.lua' }");
    load_text(&x, "return {\n inherit = 'a.lua' }");
    expect_problem(&x, "circle", "inherit", 1);
    unload(&x);
    load_text(&x, "return {\n inherit = 'none.lua' }");
    expect_problem(&x, "none.lua", "inherit", 2);
    unload(&x);
    load_text(&x, "return {\n inherit = 7 }");
    expect_problem(&x, "must be the path", "inherit", 2);
    unload(&x);
}
static void set_takes_literals_and_texts(void **state)
{
    struct loaded x;
    (void)state;
    set_text(&x, RECIPE("", ""), "lr.peak=0.5", "precision=fp64", "checkpoint.every=7 steps");
    const struct mc_recipe *r = recipe(&x);
    assert_true(r->lr.peak == 0.5);
    assert_int_equal(r->precision, MC_F64);
    assert_int_equal(r->checkpoint.every.n, 7);
    assert_string_equal(mc_recipe_origin(x.l.box, "lr.peak"), "--set");
    unload(&x);
    set_text(&x, RECIPE("", ""), "parallel.tp=2", "optim.no_decay={ 'bias' }", "name='a-b'");
    r = recipe(&x);
    assert_int_equal(r->parallel.tp, 2);
    assert_int_equal(r->optim.nno_decay, 1);
    assert_string_equal(r->name, "a-b");
    unload(&x);
}
static void set_replaces_exclusive_siblings(void **state)
{
    struct loaded x;
    (void)state;
    set_text(&x, RECIPE("", ""), "steps.tokens=2k", NULL, NULL);
    assert_int_equal(recipe(&x)->steps.unit, MC_UNIT_TOKENS);
    assert_int_equal(recipe(&x)->steps.n, 2000);
    unload(&x);
}
static void set_changes_what_the_trace_sees(void **state)
{
    struct loaded x;
    (void)state;
    set_text(&x, RECIPE("", ""), "model.layers=5", "model.hidden=32", NULL);
    assert_int_equal(recipe(&x)->model.layers, 5);
    assert_int_equal(recipe(&x)->model.layer_block[4], 0);
    unload(&x);
}
static void set_reports_what_it_cannot_do(void **state)
{
    struct loaded x;
    (void)state;
    set_text(&x, RECIPE("", ""), "lr.peek=1", "noequals", "name.x=1");
    expect_problem(&x, "not of the form key=value", "", 0);
    expect_problem(&x, "is no table in the recipe", "name.x", 0);
    assert_true(x.problems.n >= 3);
    unload(&x);
    set_text(&x, "local m = require 'mascon'\nreturn { lr = function() return 1 end }", "lr.peak=1",
             NULL, NULL);
    expect_problem(&x, "a function here", "lr.peak", 0);
    unload(&x);
}
static void set_paths_are_of_the_current_folder_first(void **state)
{
    struct loaded x;
    char cwd[1024], want[300];
    (void)state;
    assert_non_null(getcwd(cwd, sizeof cwd));
    mkdir(path_of("here"), 0755);
    write_file("here/book.txt", "one");
    assert_int_equal(chdir(path_of("here")), 0);
    set_text(&x, RECIPE("", ""), "data.train=book.txt", NULL, NULL);
    snprintf(want, sizeof want, "%s/here/book.txt", g_dir);
    assert_string_equal(recipe(&x)->data.train[0].path, want);
    unload(&x);
    write_file("book.txt", "two"); /* now beside the recipe too, and another file */
    set_text(&x, RECIPE("", ""), "data.train=book.txt", NULL, NULL);
    expect_problem(&x, "both in the current folder and beside the recipe", "data.train", 0);
    unload(&x);
    set_text(&x, RECIPE("", ""), "data.train=./book.txt", NULL, NULL);
    assert_non_null(strstr(recipe(&x)->data.train[0].path, "here/"));
    unload(&x);
    write_file("here/packed.idx", "x"); /* packed data is named without its ending */
    set_text(&x, RECIPE("", ""), "data.train={ { 'packed', weight = 2 } }", NULL, NULL);
    snprintf(want, sizeof want, "%s/here/packed", g_dir);
    assert_string_equal(recipe(&x)->data.train[0].path, want);
    unload(&x);
    assert_int_equal(chdir(cwd), 0);
}

/* -- Tracing --------------------------------------------------------------------------------- */

#define DECODER(body)                                                                              \
    "local m = require 'mascon'\nlocal nn = m.nn\n"                                                \
    "local function block(x, c, layer)\n" body "\nend\n"                                           \
    "return { name = 'x', model = m.decoder { layers = 3, hidden = 16, heads = 2, seq = 8, block " \
    "= block },\n"                                                                                 \
    "  data = { tokenizer = 'bytes', train = 'x' }, batch = { global = 1 }, steps = { steps = 1 "  \
    "},\n"                                                                                         \
    "  lr = m.lr.constant { peak = 1 } }\n"

static void trace_writes_the_calls_down(void **state)
{
    struct loaded x;
    (void)state;
    load_text(&x, DECODER("local h = nn.layernorm('n', x, { eps = 0.5 })\n"
                          "return x + nn.linear('p', h, 16, { bias = true, std = 0.25 }) * 0.5"));
    const struct mc_recipe *r = recipe(&x);
    assert_int_equal(r->model.nblocks, 1);
    const struct mc_func *f = &r->model.block[0];
    assert_int_equal(f->ncalls, 4);
    assert_string_equal(f->call[0].op, "layernorm");
    assert_string_equal(f->call[0].name, "n");
    assert_int_equal(f->call[0].in[0], 0);
    assert_int_equal(f->call[0].line, 4);
    assert_string_equal(f->call[1].op, "linear");
    assert_int_equal(f->call[1].in[0], 1);
    assert_int_equal(f->call[1].nattrs, 3);
    assert_string_equal(f->call[1].attr[0].key, "bias");
    assert_true(f->call[1].attr[0].kind == MC_V_BOOL && f->call[1].attr[0].num == 1);
    assert_string_equal(f->call[1].attr[1].key, "out");
    assert_true(f->call[1].attr[1].num == 16);
    assert_true(f->call[1].attr[2].num == 0.25);
    assert_string_equal(f->call[2].op, "scale");
    assert_true(f->call[2].attr[0].num == 0.5);
    assert_string_equal(f->call[3].op, "add");
    assert_int_equal(f->call[3].nin, 2);
    assert_int_equal(f->call[3].in[0], 0);
    assert_int_equal(f->call[3].in[1], 3);
    /* the default stem and head */
    assert_string_equal(r->model.stem.call[0].op, "embedding");
    assert_string_equal(r->model.stem.call[0].name, "embed");
    assert_string_equal(r->model.head.call[r->model.head.ncalls - 1].name, "head");
    unload(&x);
}
static void trace_shares_equal_layers(void **state)
{
    struct loaded x;
    (void)state;
    load_text(&x, DECODER("if layer == 2 then return nn.gelu(x) end\nreturn nn.silu(x)"));
    const struct mc_recipe *r = recipe(&x);
    assert_int_equal(r->model.nblocks, 2);
    assert_int_equal(r->model.layer_block[0], 0);
    assert_int_equal(r->model.layer_block[1], 1);
    assert_int_equal(r->model.layer_block[2], 0);
    unload(&x);
}
static void trace_says_what_is_wrong_and_where(void **state)
{
    static const struct {
        const char *body, *expect;
        int line;
    } cases[] = {
        {"return", "must return a traced value, not nil", 0},
        {"return 1", "must return a traced value, not number", 0},
        {"return x", "calls no op", 0},
        {"return nn.gelu(x), x", "must return one value", 0},
        {"nn.gelu(x)\nreturn nn.silu(x)", "gelu '' on line 4 is not used", 0},
        {"return nn.gelo(x)", "nn has no 'gelo'; did you mean 'gelu'?", 4},
        {"return nn.gelu(y)", "unknown name 'y'", 4},
        {"return nn.gelu(nil)", "x must be a traced value, not nil", 4},
        {"return nn.linear('a', x, c.hiden)", "no scalar 'hiden'; did you mean 'hidden'?", 4},
        {"return nn.linear('a', x)", "output width must be a whole number", 4},
        {"return nn.linear(x, 16)", "first argument is the name", 4},
        {"return nn.linear('a b', x, 16)", "'a b' is no name", 4},
        {"return nn.linear('a', x, 16, { shard = 'rows' })", "'shard' must be", 4},
        {"return nn.linear('a', x, 16, { sharde = 'row' })", "did you mean 'shard'?", 4},
        {"return nn.linear('a', x, 16, x)", "options must be a table, not a value", 4},
        {"return nn.linear('a', nn.linear('a', x, 16), 16)", "'a' is taken already, on line 4", 4},
        {"return x + nn.linear('a', x, 8)", "widths differ: 16 and 8", 4},
        {"return nn.linear('a', x, 8)", "width 8, not 16", 0},
        {"return x - x", "no operator '-'", 4},
        {"return x * x", "only by a number", 4},
        {"return x.y", "no member 'y'", 4},
        {"x.y = 1", "cannot be changed", 4},
        {"c.layers = 1", "cannot be changed while", 4},
        {"return nn.dropout('d', x, 1)", "from 0 to below 1", 4},
        {"return nn.rope(x, x, { head_dim = 3 })", "head_dim 3 is odd", 4},
        {"return nn.attention(x, x, x, { head_dim = 5 })", "no multiple of head_dim 5", 4},
        {"return nn.embedding('e', x, 10)", "must be the token ids", 4},
        {"kept = kept or x\nreturn kept + x", "another function's trace", 5},
        {"local q = nil\nreturn q.x", "index local 'q'", 5},
        {"return nn.gelu(x, { erf = 1 })", "'erf' must be true or false", 4},
        {"while true do nn.gelu(x) end", "", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024];
        struct loaded x;
        /* `kept` must be a global that exists */
        snprintf(text, sizeof text,
                 "local kept local m = require 'mascon'\nlocal nn = m.nn\nlocal function block(x, "
                 "c, layer)\n%s\nend\n%s",
                 cases[i].body,
                 "return { name = 'x', model = m.decoder { layers = 2, hidden = 16, heads = 2, seq "
                 "= 8, block = block },\n"
                 "  data = { tokenizer = 'bytes', train = 'x' }, batch = { global = 1 }, steps = { "
                 "steps = 1 },\n"
                 "  lr = m.lr.constant { peak = 1 } }\n");
        load_text(&x, text);
        expect_problem(&x, cases[i].expect, "model", cases[i].line);
        if (x.problems.n != 1) {
            show(&x);
            fail_msg("more than the one problem");
        }
        unload(&x);
    }
}
static void trace_leaves_bad_scalars_to_the_binder(void **state)
{
    struct loaded x;
    (void)state;
    load_text(
        &x,
        "local m = require 'mascon'\n"
        "return { model = m.models.gpt2 { layers = 'two', hidden = true, heads = 2,\n seq = 8 },\n"
        "  data = { tokenizer = 'bytes', train = 'x' }, batch = { global = 1 }, steps = { steps = "
        "1 },\n"
        "  lr = m.lr.constant { peak = 1 } }\n");
    assert_int_equal(x.st, MC_E_RECIPE);
    for (int i = 0; i < x.problems.n; i++)
        assert_null(strstr(x.problems.p[i].message, "arithmetic"));
    assert_int_equal(x.problems.n, 2);
    unload(&x);
}
static void trace_refuses_plain_and_blockless_models(void **state)
{
    struct loaded x;
    (void)state;
    load_text(&x,
              "return { name = 'x',\n model = { layers = 1, hidden = 8, heads = 1, seq = 8 } }");
    expect_problem(&x, "not a plain table", "model", 2);
    unload(&x);
    load_text(&x, "local m = require 'mascon'\nreturn { name = 'x',\n model = m.decoder { layers = "
                  "1, hidden = 8, heads = 1, seq = 8 } }");
    expect_problem(&x, "required, not given", "model.block", 3);
    unload(&x);
    load_text(&x, "local m = require 'mascon'\nreturn { name = 'x',\n model = m.decoder { layers = "
                  "1, hidden = 8, heads = 1, seq = 8,\n block = 'gpt' } }");
    expect_problem(&x, "must be a function", "model.block", 4);
    unload(&x);
}
static void gpt2_has_positions_biases_and_a_tied_head(void **state)
{
    struct loaded x;
    (void)state;
    load_text(&x, "local m = require 'mascon'\n"
                  "return { model = m.models.gpt2 { layers = 2, hidden = 16, heads = 2, seq = 8, "
                  "dropout = 0.1 },\n"
                  "  data = { tokenizer = 'bytes', train = 'x' }, batch = { global = 1 }, steps = "
                  "{ steps = 1 },\n"
                  "  lr = m.lr.constant { peak = 1 } }\n");
    const struct mc_model_cfg *m = &recipe(&x)->model;
    assert_int_equal(m->stem.ncalls, 3);
    assert_string_equal(m->stem.call[1].op, "positions");
    assert_string_equal(m->stem.call[2].op, "dropout");
    assert_true(m->tied && m->bias);
    const struct mc_call *head = &m->head.call[m->head.ncalls - 1];
    int tied = 0, stds = 0;
    for (int i = 0; i < head->nattrs; i++)
        tied |= !strcmp(head->attr[i].key, "tied") && !strcmp(head->attr[i].str, "embed.weight");
    assert_true(tied);
    for (int i = 0; i < m->block[0].ncalls; i++)
        for (int k = 0; k < m->block[0].call[i].nattrs; k++)
            if (!strcmp(m->block[0].call[i].attr[k].key, "std")) {
                assert_true(fabs(m->block[0].call[i].attr[k].num - 0.01) <
                            1e-12); /* 0.02 / sqrt(4) */
                stds++;
            }
    assert_int_equal(stds, 2);
    unload(&x);
}

/* -- Functions of progress ------------------------------------------------------------------- */

static void tabulate_gives_every_step_its_rate(void **state)
{
    struct loaded x;
    (void)state;
    load_text(
        &x,
        "local m = require 'mascon'\n"
        "return { name = 'x', model = m.models.llama { layers = 1, hidden = 8, heads = 2, seq = 8 "
        "},\n"
        "  data = { tokenizer = 'bytes', train = 'x' }, steps = { samples = 20 },\n"
        "  batch = { global = function(s) return s.samples < 6 and 2 or 4 end },\n"
        "  lr = function(s) return (s.step * 1000 + s.tokens / 8 + s.global / 10) / 1e6 end }\n");
    (void)recipe(&x);
    assert_int_equal(mc_lua_tabulate(&x.l, &x.problems, &x.err), MC_OK);
    const struct mc_recipe *r = recipe(&x);
    /* batches 2 2 2 4 4 4 4: samples with each 2 4 6 10 14 18 22 -> 7 steps reach 20 */
    const double samples[] = {2, 4, 6, 10, 14, 18, 22}, global[] = {2, 2, 2, 4, 4, 4, 4};
    assert_int_equal(r->lr.ntable, 7);
    for (int i = 0; i < 7; i++)
        assert_true(fabs(r->lr.table[i] - ((i + 1) * 1000 + samples[i] + global[i] / 10) / 1e6) <
                    1e-15);
    assert_int_equal(r->batch.nramp, 2);
    assert_int_equal(r->batch.ramp[0].at.n, 0);
    assert_int_equal(r->batch.ramp[0].global, 2);
    assert_int_equal(r->batch.ramp[1].at.n, 6);
    assert_int_equal(r->batch.ramp[1].at.unit, MC_UNIT_SAMPLES);
    assert_int_equal(r->batch.ramp[1].global, 4);
    unload(&x);
}
static void tabulate_says_what_is_wrong(void **state)
{
    static const struct {
        const char *steps, *lr, *batch, *expect, *path;
    } cases[] = {
        {"steps = 5", "function(s) return nil end", "1", "returned nil at step 1", "lr"},
        {"steps = 5", "function(s) return 1 / 0 end", "1", "not finite at step 1", "lr"},
        {"steps = 5", "function(s) return -s.step end", "1", "not a rate", "lr"},
        {"steps = 5", "function(s) return s.stp.x end", "1", "index field 'stp'", "lr"},
        {"steps = 2000000", "function(s) return 1 end", "1", "2^20 steps", "lr"},
        {"steps = 5", "m.lr.constant { peak = 1 }", "function(s) return 1.5 end", "whole number",
         "batch.global"},
        {"steps = 50", "m.lr.constant { peak = 1 }", "function(s) return s.step end", "pieces",
         "batch.global"},
        {"steps = 50", "function() while true do end end", "1", "ran longer", "lr"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024];
        struct loaded x;
        snprintf(text, sizeof text,
                 "local m = require 'mascon'\n"
                 "return { name = 'x', model = m.models.llama { layers = 1, hidden = 8, heads = 2, "
                 "seq = 8 },\n"
                 "  data = { tokenizer = 'bytes', train = 'x' }, steps = { %s },\n"
                 "  lr = %s, batch = { global = %s } }\n",
                 cases[i].steps, cases[i].lr, cases[i].batch);
        load_text(&x, text);
        expect_ok(&x);
        assert_int_equal(mc_lua_tabulate(&x.l, &x.problems, &x.err), MC_E_RECIPE);
        const struct mc_problem *p = find_problem(&x, cases[i].expect);
        if (!p || strcmp(p->path, cases[i].path)) {
            show(&x);
            fail_msg("%s", cases[i].expect);
        }
        unload(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_follow_nested_constructors),
        cmocka_unit_test(lines_survive_any_text),
        cmocka_unit_test(literals_are_told_from_words),
        cmocka_unit_test(load_gives_each_value_its_line),
        cmocka_unit_test(load_follows_constructors_in_locals_and_modules),
        cmocka_unit_test(load_shows_all_problems_at_once),
        cmocka_unit_test(load_reports_files_that_cannot_be_read),
        cmocka_unit_test(inherit_merges_deeply_and_lists_replace),
        cmocka_unit_test(inherit_keeps_paths_of_the_other_folder),
        cmocka_unit_test(inherit_refuses_circles_and_missing_files),
        cmocka_unit_test(set_takes_literals_and_texts),
        cmocka_unit_test(set_replaces_exclusive_siblings),
        cmocka_unit_test(set_changes_what_the_trace_sees),
        cmocka_unit_test(set_reports_what_it_cannot_do),
        cmocka_unit_test(set_paths_are_of_the_current_folder_first),
        cmocka_unit_test(trace_writes_the_calls_down),
        cmocka_unit_test(trace_shares_equal_layers),
        cmocka_unit_test(trace_says_what_is_wrong_and_where),
        cmocka_unit_test(trace_leaves_bad_scalars_to_the_binder),
        cmocka_unit_test(trace_refuses_plain_and_blockless_models),
        cmocka_unit_test(gpt2_has_positions_biases_and_a_tied_head),
        cmocka_unit_test(tabulate_gives_every_step_its_rate),
        cmocka_unit_test(tabulate_says_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
