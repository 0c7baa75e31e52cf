/* rows.c - every key of a recipe, one row each: the single source for binding, ranges, defaults,
 * JSON, explain, comparison on resume and the reference documentation.
 * Floor 1 (recipe). Includes: own folder.
 *
 * I1  Rows are in strcmp order of their paths, each path once: JSON nests by walking them, look-up
 *     is a binary search (a test checks the order).
 * I2  A group is any proper prefix of a row's path; no group is itself a row.
 * I3  A key that the recipe's language cannot spell gets a spelling it can: `end` and `until` are
 *     words of Lua, so the keys are lr.stop and pieces[].upto.
 * What a resume may do: free = may change; logged = may change, the difference is written down;
 * frozen = needs --allow KEY.
 * Memory: constants. Threads: any. */
#include "recipe_int.h"
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define AT(m)       .off = offsetof(struct mc_recipe, m), .size = sizeof(((struct mc_recipe *)0)->m)
#define RANGE(a, b) .min = (a), .max = (b)
#define MODEL       .resume = MC_FROZEN, .model_scalar = 1
#define P2(n)       ((double)((int64_t)1 << (n)))
#define IN(u)       (1u << (u))
enum {
    PROGRESS = IN(MC_UNIT_STEPS) | IN(MC_UNIT_SAMPLES) | IN(MC_UNIT_TOKENS),
    TIME = IN(MC_UNIT_NS),
    LR_PEAK = IN(MC_LR_CONSTANT) | IN(MC_LR_LINEAR) | IN(MC_LR_COSINE) | IN(MC_LR_WSD) |
              IN(MC_LR_INVERSE_SQRT) | IN(MC_LR_POWER),
    LR_STOP = IN(MC_LR_LINEAR) | IN(MC_LR_COSINE) | IN(MC_LR_WSD) | IN(MC_LR_INVERSE_SQRT) |
              IN(MC_LR_POWER),
    LR_KINDS = LR_PEAK | IN(MC_LR_PIECES) | IN(MC_LR_TABLE)
};

const char *const mc_lr_kind_words[] = {"constant", "linear", "cosine", "wsd", "inverse_sqrt",
                                        "power",    "pieces", "table",  NULL};
const char *const mc_lr_shape_words[] = {"linear",      "cosine",   "sqrt",
                                         "exponential", "constant", NULL};
const char *const mc_rope_scaling_words[] = {"none", "linear", "llama3", "yarn", NULL};
static const char *const action_words[] = {"abort", "skip", NULL};
static const char *const weights_words[] = {"store", "rebuild", NULL};
static const char *const mode_words[] = {"auto", "confirm", NULL};
static const char *const order_words[] = {"mascon", "megatron", NULL};
static const char *const device_words[] = {"cpu", "cuda", NULL};
static const char *const tail_words[] = {"linear", "cosine", "sqrt", "exponential", NULL};
static const char *const precision_words[] = {
    [MC_F32] = "fp32", [MC_F64] = "fp64", [MC_BF16] = "bf16", NULL};

const struct mc_row mc_rows[] = {
    {"anomaly.max_skips", MC_ROW_I64, AT(anomaly.max_skips), RANGE(1, 1e6), .dfl = "10",
     .unit = "updates", .doc = "This many skipped updates in a row stop the run (exit code 77)."},
    {"anomaly.nonfinite", MC_ROW_ENUM, AT(anomaly.nonfinite), .words = action_words, .dfl = "skip",
     .doc =
         "What to do when the loss or the gradient norm is not finite: skip the update, or abort."},
    {"anomaly.spike", MC_ROW_ENUM, AT(anomaly.spike), .words = action_words, .dfl = "skip",
     .doc = "What to do on a spike of the gradient norm; used where `spike_factor` is above 0."},
    {"anomaly.spike_factor", MC_ROW_F64, AT(anomaly.spike_factor), RANGE(0, 1e6), .dfl = "0",
     .doc = "A spike is a gradient norm above this factor times the median of the window; 0: no "
            "spike rule."},
    {"anomaly.spike_window", MC_ROW_I64, AT(anomaly.spike_window), RANGE(8, 1024), .dfl = "128",
     .unit = "steps", .doc = "Successful steps whose median is the measure of a spike."},
    {"batch.global", MC_ROW_OTHER, AT(batch.global), RANGE(1, P2(31)), .bind = mc_bind_batch_global,
     .write = mc_write_batch_global, .unit = "samples", .resume = MC_LOGGED,
     .form = "a whole number, or a function of progress",
     .dfl_doc = "the last point of the ramp; required without a ramp",
     .doc = "Samples of one step, over all ranks and microbatches."},
    {"batch.micro", MC_ROW_I64, AT(batch.micro), RANGE(1, P2(20)), .dfl = "1", .unit = "samples",
     .resume = MC_LOGGED,
     .doc = "Samples that one rank computes at a time. It changes memory and speed, never the "
            "meaning."},
    {"batch.ramp", MC_ROW_OTHER, AT(batch.ramp), .bind = mc_bind_ramp, .write = mc_write_ramp,
     .resume = MC_LOGGED, .form = "a list of { steps | samples | tokens = from, global = n }",
     .dfl_doc = "none",
     .doc = "Global batch from each point of progress on; the first point is 0, points rise, the "
            "last one is `batch.global`."},
    {"checkpoint.async", MC_ROW_BOOL, AT(checkpoint.async), .dfl = "false",
     .doc = "Write checkpoints while training goes on."},
    {"checkpoint.every", MC_ROW_QUANTITY, AT(checkpoint.every), RANGE(1, P2(62)),
     .base = MC_UNIT_STEPS, .units = PROGRESS | TIME, .dfl = "30 min", .unit = "steps",
     .doc = "Distance between checkpoints, in steps, samples, tokens or time."},
    {"checkpoint.keep", MC_ROW_I64, AT(checkpoint.keep), RANGE(2, 100000), .dfl = "3",
     .unit = "checkpoints", .doc = "Newest checkpoints that are kept."},
    {"checkpoint.stall", MC_ROW_SPAN, AT(checkpoint.stall_s), RANGE(0, 1e7), .dfl = "0",
     .unit = "s",
     .doc = "Declared time that training stands still for one checkpoint; the planner takes it "
            "instead of its model. 0: not declared."},
    {"checkpoint.weights", MC_ROW_ENUM, AT(checkpoint.weights), .words = weights_words,
     .dfl = "store",
     .doc = "At bf16: store the weights beside the masters, or rebuild them from the masters when "
            "loading."},
    {"cluster.mem", MC_ROW_BYTES, AT(cluster.mem_bytes), RANGE(0, P2(50)), .dfl = "0",
     .unit = "bytes",
     .doc = "Declared memory of one device (on CPUs: of one rank), such as \"24 GiB\". 0: not "
            "declared."},
    {"cluster.mtbf", MC_ROW_SPAN, AT(cluster.mtbf_h), RANGE(0, 1e9), .dfl = "0", .unit = "h",
     .doc = "Declared mean time between failures of the whole job, such as \"7.9 h\". 0: not "
            "declared."},
    {"cluster.nodes", MC_ROW_I64, AT(cluster.nodes), RANGE(0, 1e6), .dfl = "0",
     .doc = "Declared number of nodes. 0: not declared."},
    {"cluster.peak.bf16", MC_ROW_F64, AT(cluster.peak_bf16), RANGE(0, 1e9), .dfl = "0",
     .unit = "TFLOP/s",
     .doc = "Declared peak of one device (on CPUs: of one rank's cores) in bf16, for `mfu`. 0: not "
            "declared; mfu is null then."},
    {"cluster.peak.fp32", MC_ROW_F64, AT(cluster.peak_fp32), RANGE(0, 1e9), .dfl = "0",
     .unit = "TFLOP/s", .doc = "The same in fp32."},
    {"cluster.peak.fp64", MC_ROW_F64, AT(cluster.peak_fp64), RANGE(0, 1e9), .dfl = "0",
     .unit = "TFLOP/s", .doc = "The same in fp64."},
    {"cluster.per_node", MC_ROW_I64, AT(cluster.per_node), RANGE(0, 1024), .dfl = "0",
     .unit = "ranks", .doc = "Declared ranks (devices) of one node. 0: not declared."},
    {"data.block", MC_ROW_I64, AT(data.block), RANGE(0, P2(24)), .dfl = "0", .unit = "tokens",
     .base = MC_UNIT_TOKENS, .resume = MC_LOGGED,
     .doc = "Sources are read in blocks of this length, each whole and once in a pass; every "
            "sequence length of the run divides it. 0: the longest of them. Give it to leave room "
            "for a longer phase that is added later."},
    {"data.declared.tokens", MC_ROW_I64, AT(data.declared_tokens), RANGE(0, P2(53)), .dfl = "0",
     .unit = "tokens", .base = MC_UNIT_TOKENS, .resume = MC_LOGGED,
     .doc = "m.data.declared: tokens of a data set that is not here. Such a recipe can be planned, "
            "not trained."},
    {"data.declared.vocab", MC_ROW_I64, AT(data.declared_vocab), RANGE(0, P2(24)), .dfl = "0",
     .resume = MC_LOGGED, .doc = "m.data.declared: vocabulary of the tokenizer that is not here."},
    {"data.holdout", MC_ROW_F64, AT(data.holdout), RANGE(0, 0.9), .dfl = "0", .resume = MC_FROZEN,
     .doc = "The last fraction of every training source, held out for validation. Not together "
            "with `data.valid`."},
    {"data.mask_eod", MC_ROW_BOOL, AT(data.mask_eod), .dfl = "false", .resume = MC_LOGGED,
     .doc = "No loss on the token that follows an end of document."},
    {"data.order", MC_ROW_ENUM, AT(data.order), .words = order_words, .dfl = "mascon",
     .resume = MC_FROZEN,
     .doc = "mascon: computed draw by draw, knows neither the length of the run nor other sources. "
            "megatron: the sample order of Megatron's GPT data sets, to the bit; packed sources "
            "only, seed below 2^32."},
    {"data.phases", MC_ROW_OTHER, AT(data.phase), .bind = mc_bind_phases, .write = mc_write_phases,
     .resume = MC_LOGGED,
     .form = "a list of { from = point, seq = n, weights = { ... }, batch = n }", .dfl_doc = "none",
     .doc = "From each point of progress (such as \"2B tokens\"; the first step that begins at or "
            "after it) another sequence length, other weights of data.train (in its order; 0: none "
            "of it), another global batch (\"64 samples\", or \"4M tokens\": whole samples of the "
            "phase). What a phase does not give goes on as before; before the first, `model.seq`, "
            "`data.train` and `batch` hold. `batch.micro` is in samples, the same in every phase. "
            "Evaluation keeps `model.seq`."},
    {"data.samples", MC_ROW_I64, AT(data.samples), RANGE(0, P2(40)), .dfl = "0", .unit = "samples",
     .base = MC_UNIT_SAMPLES, .resume = MC_LOGGED,
     .doc = "Samples that data.order = \"megatron\" is computed for. 0: as many as the target of "
            "`steps` takes. That order is another one when this asks for other epochs, and a run "
            "cannot go on in another order: give it from the start if the run may get longer."},
    {"data.split", MC_ROW_OTHER, AT(data.split), .bind = mc_bind_split, .write = mc_write_split,
     .resume = MC_FROZEN, .form = "three numbers such as { 969, 30, 1 }", .dfl_doc = "none",
     .doc = "With data.order = \"megatron\": shares of every training source for training, "
            "validation and neither, cut between sequences."},
    {"data.tokenizer", MC_ROW_STR, AT(data.tokenizer), .dfl = "bytes", .resume = MC_FROZEN,
     .doc =
         "\"bytes\" (ids 0-255 and EOS 256), or the path of a tokenizer.json (byte-level BPE) that "
         "packed the data (mascon data pack --tokenizer FILE), or, for token files of others, a "
         "name: then model.vocab must be given."},
    {"data.train", MC_ROW_OTHER, AT(data.train), .bind = mc_bind_train, .write = mc_write_train,
     .form = "a path, or a list of paths and { path, weight = w }, or m.data.required",
     .dfl_doc = "required",
     .doc = "Training sources: text files, folders, or .bin/.idx pairs. Paths are free on resume, "
            "weights are logged."},
    {"data.valid", MC_ROW_OTHER, AT(data.valid), .bind = mc_bind_valid, .write = mc_write_valid,
     .form = "as data.train", .dfl_doc = "none", .doc = "Validation sources."},
    {"device", MC_ROW_ENUM, AT(device), .words = device_words, .dfl = "cpu", .resume = MC_LOGGED,
     .doc = "What computes."},
    {"eval.every", MC_ROW_QUANTITY, AT(eval.every), RANGE(0, P2(62)), .base = MC_UNIT_STEPS,
     .units = PROGRESS, .dfl = "0 steps", .unit = "steps",
     .doc = "Distance between evaluations on the validation data. 0: never."},
    {"eval.samples", MC_ROW_I64, AT(eval.samples), RANGE(0, P2(40)), .dfl = "0", .unit = "samples",
     .base = MC_UNIT_SAMPLES,
     .doc = "Validation samples of one evaluation, from the start. 0: all."},
    {"hooks", MC_ROW_OTHER, AT(hook), .bind = mc_bind_hooks, .write = mc_write_hooks,
     .dfl_doc = "none", .form = "a list of paths and { path, allow = { ... }, option = value ... }",
     .doc = "Hook files, called in this order; other keys of an entry are the hook's `options`."},
    {"log.mixture.every", MC_ROW_I64, AT(log_mixture), RANGE(0, 1e9), .dfl = "100", .unit = "steps",
     .doc = "Steps between lines of metrics.jsonl that show what was read of each source so far; "
            "the last step's does, too. 0: never."},
    {"log.norms.every", MC_ROW_I64, AT(log_norms), RANGE(0, 1e9), .dfl = "0", .unit = "steps",
     .doc = "Steps between lines of norms.jsonl: gradient norm and activation size of every layer. "
            "0: never."},
    {"log_every", MC_ROW_I64, AT(log_every), RANGE(1, 1e9), .dfl = "10", .unit = "steps",
     .doc = "Steps between log lines. metrics.jsonl has every step, always."},
    {"lr.decay", MC_ROW_QUANTITY, AT(lr.decay), RANGE(1, P2(62)), .base = MC_UNIT_STEPS,
     .units = PROGRESS, .unit = "steps", .lr_kinds = IN(MC_LR_WSD), .required = 1,
     .resume = MC_LOGGED, .doc = "Length of the final decay, which ends at `lr.stop`."},
    {"lr.floor", MC_ROW_F64, AT(lr.floor), RANGE(0, 1e3), .dfl = "0", .lr_kinds = LR_STOP,
     .resume = MC_LOGGED, .doc = "Rate at the end of the decay and ever after."},
    {"lr.init", MC_ROW_F64, AT(lr.init), RANGE(0, 1e3), .dfl = "0", .lr_kinds = LR_PEAK,
     .resume = MC_LOGGED, .doc = "Rate from which the warm-up rises."},
    {"lr.kind", MC_ROW_OTHER, AT(lr.kind), .bind = mc_bind_lr_kind, .write = mc_write_lr_kind,
     .resume = MC_LOGGED,
     .form = "m.lr.constant, linear, cosine, wsd, inverse_sqrt, power, pieces, or a function of "
             "progress",
     .dfl_doc = "required: lr = m.lr.KIND { ... }", .doc = "The schedule of the learning rate."},
    {"lr.peak", MC_ROW_F64, AT(lr.peak), RANGE(0, 1e3), .required = 1, .lr_kinds = LR_PEAK,
     .resume = MC_LOGGED, .doc = "Rate at the end of the warm-up."},
    {"lr.pieces", MC_ROW_OTHER, AT(lr.piece), .bind = mc_bind_pieces, .write = mc_write_pieces,
     .required = 1, .lr_kinds = IN(MC_LR_PIECES), .resume = MC_LOGGED,
     .form = "m.lr.pieces { { upto = x, from = a, to = b, shape = s }, ... }",
     .doc = "Pieces of the schedule, each up to a point of progress; shape: linear, cosine, sqrt, "
            "exponential or constant."},
    {"lr.power", MC_ROW_F64, AT(lr.power), RANGE(0, 100), .above = 1, .required = 1,
     .lr_kinds = IN(MC_LR_POWER), .resume = MC_LOGGED,
     .doc = "Exponent p of the decay: peak x (progress / warm-up)^-p."},
    {"lr.stop", MC_ROW_QUANTITY, AT(lr.end), RANGE(0, P2(62)), .base = MC_UNIT_STEPS,
     .units = PROGRESS, .unit = "steps", .dfl = "0 steps",
     .dfl_doc = "linear, cosine, wsd: the target of `steps`; else never", .lr_kinds = LR_STOP,
     .resume = MC_LOGGED,
     .doc = "Where the schedule ends, counted from the start of the run; the rate is `lr.floor` "
            "from there on."},
    {"lr.tail", MC_ROW_ENUM, AT(lr.tail), .words = tail_words, .dfl = "linear",
     .lr_kinds = IN(MC_LR_WSD), .resume = MC_LOGGED, .doc = "Shape of the final decay."},
    {"lr.values", MC_ROW_OTHER, AT(lr.table), .bind = mc_bind_table, .write = mc_write_table,
     .lr_kinds = IN(MC_LR_TABLE), .resume = MC_LOGGED, .form = "a list of numbers, one a step",
     .dfl_doc = "from the function given as `lr`", .doc = "Rate of every step, from the first."},
    {"lr.warmup", MC_ROW_QUANTITY, AT(lr.warmup), RANGE(0, P2(62)), .base = MC_UNIT_STEPS,
     .units = PROGRESS, .unit = "steps", .dfl = "0 steps", .lr_kinds = LR_PEAK, .resume = MC_LOGGED,
     .doc = "Length of the linear rise from `lr.init` to `lr.peak`."},
    {"model.bias", MC_ROW_BOOL, AT(model.bias), .dfl = "false", MODEL,
     .doc = "Linears have biases (the block function decides)."},
    {"model.blocks", MC_ROW_OTHER, AT(model.block), .bind = mc_bind_blocks,
     .write = mc_write_blocks, .resume = MC_FROZEN, .form = "traced from the block function",
     .dfl_doc = "traced", .doc = "The distinct blocks, as lists of calls."},
    {"model.documents", MC_ROW_BOOL, AT(model.documents), .dfl = "false", MODEL,
     .doc = "Attention sees its own document only; documents end at `model.eos`. What nn.attention "
            "takes where the block does not say."},
    {"model.dropout", MC_ROW_F64, AT(model.dropout), RANGE(0, 0.99), .dfl = "0", MODEL,
     .doc = "Fraction of values that dropout sets to zero."},
    {"model.eos", MC_ROW_I64, AT(model.eos), RANGE(0, P2(24)), .word = "unknown", .word_value = -1,
     .dfl_doc = "the tokenizer's (256 for bytes)", .unit = "id", MODEL,
     .doc = "Token that ends a document."},
    {"model.eps", MC_ROW_F64, AT(model.eps), RANGE(0, 1), .dfl = "1e-05", MODEL,
     .doc = "Added to the mean square (the variance) in norms."},
    {"model.ffn", MC_ROW_I64, AT(model.ffn), RANGE(1, P2(24)), .dfl_doc = "4 x hidden", MODEL,
     .doc = "Width of the feed-forward part."},
    {"model.head", MC_ROW_OTHER, AT(model.head), .bind = mc_bind_head, .write = mc_write_head,
     .resume = MC_FROZEN, .form = "traced from the head function", .dfl_doc = "traced",
     .doc = "From the residual stream to logits, as a list of calls."},
    {"model.head_dim", MC_ROW_I64, AT(model.head_dim), RANGE(1, 4096), .dfl_doc = "hidden / heads",
     MODEL, .doc = "Width of one attention head."},
    {"model.heads", MC_ROW_I64, AT(model.heads), RANGE(1, 65536), .required = 1, MODEL,
     .doc = "Query heads."},
    {"model.hidden", MC_ROW_I64, AT(model.hidden), RANGE(1, P2(24)), .required = 1, MODEL,
     .doc = "Width of the residual stream."},
    {"model.init_std", MC_ROW_F64, AT(model.init_std), RANGE(0, 10), .dfl = "0.02", MODEL,
     .doc = "Standard deviation of initial weights."},
    {"model.kv_heads", MC_ROW_I64, AT(model.kv_heads), RANGE(1, 65536), .dfl_doc = "heads", MODEL,
     .doc = "Key and value heads; divides heads."},
    {"model.label_smoothing", MC_ROW_F64, AT(model.label_smoothing), RANGE(0, 0.99), .dfl = "0",
     .resume = MC_LOGGED,
     .doc = "Share of each target that is spread over the whole vocabulary. In training only: "
            "evaluation reports the plain loss."},
    {"model.layer_block", MC_ROW_OTHER, AT(model.layer_block), .bind = mc_bind_layer_block,
     .write = mc_write_layer_block, .resume = MC_FROZEN,
     .form = "traced: for every layer the index of its block", .dfl_doc = "traced",
     .doc = "Which block each layer is."},
    {"model.layers", MC_ROW_I64, AT(model.layers), RANGE(1, 4096), .required = 1, MODEL,
     .doc = "Blocks, one after the other."},
    {"model.preset", MC_ROW_STR, AT(model.preset), .dfl = "", MODEL,
     .doc = "Name of the preset that made the model; \"\": the recipe's own functions."},
    {"model.rope_factor", MC_ROW_F64, AT(model.rope_factor), RANGE(1, 1e6), .dfl = "1", MODEL,
     .doc = "How many times longer than `model.rope_original` the scaled rotary positions reach."},
    {"model.rope_original", MC_ROW_I64, AT(model.rope_original), RANGE(0, P2(31)), .dfl = "0",
     .unit = "tokens", MODEL,
     .doc = "Length that the unscaled rotary frequencies were trained for (llama3, yarn). 0: not "
            "given."},
    {"model.rope_scaling", MC_ROW_ENUM, AT(model.rope_scaling), .words = mc_rope_scaling_words,
     .dfl = "none", MODEL,
     .doc = "How rotary frequencies are stretched by `model.rope_factor`. What nn.rope takes where "
            "the block does not say."},
    {"model.seq", MC_ROW_I64, AT(model.seq), RANGE(1, P2(24)), .required = 1, .unit = "tokens",
     .base = MC_UNIT_TOKENS, MODEL, .doc = "Length of a sample."},
    {"model.stem", MC_ROW_OTHER, AT(model.stem), .bind = mc_bind_stem, .write = mc_write_stem,
     .resume = MC_FROZEN, .form = "traced from the stem function", .dfl_doc = "traced",
     .doc = "From token ids to the residual stream, as a list of calls."},
    {"model.theta", MC_ROW_F64, AT(model.theta), RANGE(0, 1e12), .above = 1, .dfl = "10000", MODEL,
     .doc = "Base of the rotary frequencies."},
    {"model.tied", MC_ROW_BOOL, AT(model.tied), .dfl = "false", MODEL,
     .doc = "The head uses the embedding's weights."},
    {"model.vocab", MC_ROW_I64, AT(model.vocab), RANGE(1, P2(24)),
     .dfl_doc = "the tokenizer's (257 for bytes)", .unit = "ids", MODEL,
     .doc = "Vocabulary; at least the tokenizer's."},
    {"model.window", MC_ROW_I64, AT(model.window), RANGE(0, P2(24)), .dfl = "0", .unit = "tokens",
     MODEL,
     .doc = "Attention sees this many tokens, its own among them; 0: all before it. What "
            "nn.attention takes where the block does not say."},
    {"model.z_loss", MC_ROW_F64, AT(model.z_loss), RANGE(0, 1), .dfl = "0", .resume = MC_LOGGED,
     .doc = "Times the squared logarithm of the softmax's sum, added to each token's loss. In "
            "training only: evaluation reports the plain loss."},
    {"name", MC_ROW_STR, AT(name), .dfl_doc = "the recipe's file name",
     .doc = "Name of the run; its folder is runs/NAME."},
    {"optim.betas", MC_ROW_OTHER, AT(optim.betas), .bind = mc_bind_betas, .write = mc_write_betas,
     .resume = MC_LOGGED, .form = "two numbers in [0, 1)", .dfl_doc = "{ 0.9, 0.95 }",
     .doc = "Decay of the two moments."},
    {"optim.clip", MC_ROW_F64, AT(optim.clip), RANGE(0, 1e9), .dfl = "1", .resume = MC_LOGGED,
     .doc = "Largest gradient norm; 0: no clipping."},
    {"optim.eps", MC_ROW_F64, AT(optim.eps), RANGE(0, 1), .above = 1, .dfl = "1e-08",
     .resume = MC_LOGGED, .doc = "Added outside the root."},
    {"optim.kind", MC_ROW_OTHER, AT(optim), .bind = mc_bind_optim_kind,
     .write = mc_write_optim_kind, .resume = MC_FROZEN, .form = "m.adamw", .dfl_doc = "adamw",
     .doc = "The optimizer: optim = m.adamw { ... }."},
    {"optim.no_decay", MC_ROW_OTHER, AT(optim.no_decay), .bind = mc_bind_no_decay,
     .write = mc_write_no_decay, .resume = MC_LOGGED,
     .form = "a list of \"norm\", \"bias\", \"embedding\" or globs over parameter names",
     .dfl_doc = "{ \"norm\", \"bias\" }", .doc = "Parameters without weight decay."},
    {"optim.rules", MC_ROW_OTHER, AT(optim.rule), .bind = mc_bind_rules, .write = mc_write_rules,
     .resume = MC_LOGGED, .form = "a list of { \"glob\", weight_decay = w, lr_scale = s }",
     .dfl_doc = "none",
     .doc = "Exceptions by parameter name: the first match wins, a rule that matches nothing is an "
            "error."},
    {"optim.weight_decay", MC_ROW_F64, AT(optim.weight_decay), RANGE(0, 100), .dfl = "0.1",
     .resume = MC_LOGGED, .doc = "Decoupled weight decay."},
    {"parallel.chunks", MC_ROW_I64, AT(parallel.chunks), RANGE(1, 64), .dfl = "1",
     .resume = MC_LOGGED, .doc = "Model chunks of one pipeline rank."},
    {"parallel.cp", MC_ROW_I64, AT(parallel.cp), RANGE(1, P2(20)), .dfl = "1", .unit = "ranks",
     .resume = MC_LOGGED, .doc = "Ranks that share one sequence."},
    {"parallel.dp", MC_ROW_I64, AT(parallel.dp), RANGE(1, P2(20)), .word = "auto", .word_value = 0,
     .dfl = "auto", .unit = "ranks", .resume = MC_LOGGED,
     .doc =
         "Copies of the model, each with its part of the batch; \"auto\": what the ranks leave."},
    {"parallel.ep", MC_ROW_I64, AT(parallel.ep), RANGE(1, P2(20)), .dfl = "1", .unit = "ranks",
     .resume = MC_LOGGED, .doc = "Ranks that share the experts."},
    {"parallel.order", MC_ROW_STR, AT(parallel.order), .dfl = "tp-cp-ep-dp-pp", .resume = MC_LOGGED,
     .doc = "Which coordinate of a rank runs fastest, from the left."},
    {"parallel.overlap.grads", MC_ROW_BOOL, AT(parallel.overlap_grads), .dfl = "false",
     .doc = "Reduce gradients while backward goes on. The same numbers either way."},
    {"parallel.overlap.params", MC_ROW_BOOL, AT(parallel.overlap_params), .dfl = "false",
     .doc = "Gather parameters while the next forward goes on. The same numbers either way."},
    {"parallel.pad.F", MC_ROW_SPAN, AT(parallel.pad_f), RANGE(0, 3600), .dfl = "0", .unit = "s",
     .doc = "A microbatch's forward through all chunks of a pipeline rank takes at least so long, "
            "by sleeping; a chunk its share. A rehearsal of other machines' times: the same "
            "numbers."},
    {"parallel.pad.I", MC_ROW_SPAN, AT(parallel.pad_i), RANGE(0, 3600), .dfl = "0", .unit = "s",
     .doc = "The same of gradients of inputs; B takes I and W together."},
    {"parallel.pad.W", MC_ROW_SPAN, AT(parallel.pad_w), RANGE(0, 3600), .dfl = "0", .unit = "s",
     .doc = "The same of gradients of weights."},
    {"parallel.pp", MC_ROW_I64, AT(parallel.pp), RANGE(1, 4096), .dfl = "1", .unit = "ranks",
     .resume = MC_LOGGED, .doc = "Pipeline ranks: each has some of the layers."},
    {"parallel.recompute", MC_ROW_OTHER, AT(parallel.recompute), .bind = mc_bind_recompute,
     .write = mc_write_recompute, .resume = MC_LOGGED,
     .form = "\"none\", \"block\" or a list of op names", .dfl_doc = "\"none\"",
     .doc = "What backward computes again instead of keeping it. Beside ops that the model calls, "
            "\"all_gather\": what tensor parallel ranks joined is joined again."},
    {"parallel.schedule", MC_ROW_OTHER, AT(parallel.schedule), .bind = mc_bind_schedule,
     .write = mc_write_schedule, .resume = MC_LOGGED,
     .form = "gpipe, one_f_one_b, interleaved, zb_h1, zb_v, a Lua file, or a function",
     .dfl_doc = "\"one_f_one_b\"", .doc = "Order of work of the pipeline ranks."},
    {"parallel.shard_optimizer", MC_ROW_BOOL, AT(parallel.shard_optimizer), .dfl = "false",
     .resume = MC_LOGGED, .doc = "Optimizer state is split over the data-parallel ranks."},
    {"parallel.sp", MC_ROW_BOOL, AT(parallel.sp), .dfl = "false", .resume = MC_LOGGED,
     .doc = "Sequence parallel: between tensor-parallel parts, each rank holds a part of the "
            "sequence."},
    {"parallel.stages", MC_ROW_OTHER, AT(parallel.stages), .bind = mc_bind_stages,
     .write = mc_write_stages, .resume = MC_LOGGED,
     .form = "\"even\", \"auto\" or a list of whole numbers", .dfl_doc = "\"even\"",
     .doc = "How layers are cut into the stages of a pipeline, pp x chunks of them in the model's "
            "order: as many in each; by predicted cost, embedding and head being work too; or so "
            "many in each."},
    {"parallel.tp", MC_ROW_I64, AT(parallel.tp), RANGE(1, 4096), .dfl = "1", .unit = "ranks",
     .resume = MC_LOGGED, .doc = "Ranks that share every matrix; inside one node."},
    {"precision", MC_ROW_ENUM, AT(precision), .words = precision_words, .dfl = "fp32",
     .resume = MC_FROZEN, .doc = "Numbers that the run computes with."},
    {"restart.max", MC_ROW_I64, AT(restart.max), RANGE(0, 1e6), .word = "auto", .word_value = -1,
     .dfl = "auto",
     .doc = "Restarts after a failure; \"auto\": 0 for train, by budget for launch."},
    {"restart.mode", MC_ROW_ENUM, AT(restart.confirm), .words = mode_words, .dfl = "auto",
     .doc = "Restart alone, or wait for a person."},
    {"seed", MC_ROW_SEED, AT(seed), RANGE(0, 9223372036854775807.0), .dfl = "1234",
     .resume = MC_FROZEN,
     .doc = "Key of initial weights, data order and dropout; from 2^53 on as a string of digits."},
    {"steps.samples", MC_ROW_TARGET, AT(steps), RANGE(1, P2(53)), .base = MC_UNIT_SAMPLES,
     .unit = "samples", .dfl_doc = "one of steps.* is required",
     .doc = "Target of the run in samples."},
    {"steps.steps", MC_ROW_TARGET, AT(steps), RANGE(1, P2(40)), .base = MC_UNIT_STEPS,
     .unit = "steps", .dfl_doc = "one of steps.* is required",
     .doc = "Target of the run in steps."},
    {"steps.tokens", MC_ROW_TARGET, AT(steps), RANGE(1, P2(62)), .base = MC_UNIT_TOKENS,
     .unit = "tokens", .dfl_doc = "one of steps.* is required",
     .doc = "Target of the run in tokens."},
    {"time_limit", MC_ROW_QUANTITY, AT(time_limit), RANGE(0, P2(53)), .base = MC_UNIT_NONE,
     .units = TIME, .dfl = "0 s",
     .doc = "Length of one segment, such as \"4 h\"; a clean stop with a checkpoint ends it. 0 s: "
            "none."},
};
const int mc_nrows = sizeof mc_rows / sizeof mc_rows[0];

/* Spellings from other sources: ["end"] in Lua, "end" in JSON. */
static const char *const aliases[][2] = {{"lr.end", "lr.stop"}};

int mc_rows_find(const char *path)
{
    int lo = 0, hi = mc_nrows;

    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++)
        if (strcmp(path, aliases[i][0]) == 0)
            path = aliases[i][1];
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2, c = strcmp(mc_rows[mid].path, path);
        if (c == 0)
            return mid;
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return -1;
}

int mc_rows_is_group(const char *path)
{
    size_t n = strlen(path);

    for (int i = 0; i < mc_nrows; i++)
        if (strncmp(mc_rows[i].path, path, n) == 0 && mc_rows[i].path[n] == '.')
            return 1;
    return 0;
}

int mc_rows_active(const struct mc_row *row, const struct mc_recipe *r)
{
    if (row->lr_kinds)
        return (row->lr_kinds >> r->lr.kind) & 1;
    if (row->type == MC_ROW_TARGET)
        return r->steps.unit == row->base;
    return 1;
}

/* The keys directly in group `prefix`, groups among them, each once. */
static int keys_of(const char *prefix, char (*name)[32], const char **list, int cap)
{
    size_t n = strlen(prefix);
    int count = 0;

    for (int i = 0; i < mc_nrows && count < cap; i++) {
        const char *p = mc_rows[i].path;
        size_t len;
        if (n > 0 && (strncmp(p, prefix, n) != 0 || p[n] != '.'))
            continue;
        p += n > 0 ? n + 1 : 0;
        len = strcspn(p, ".");
        if (count > 0 && strlen(name[count - 1]) == len && strncmp(name[count - 1], p, len) == 0)
            continue;
        snprintf(name[count], sizeof name[count], "%.*s", (int)len, p);
        list[count] = name[count];
        count++;
    }
    return count;
}

void mc_rows_hint(const char *prefix, const char *key, char hint[160])
{
    char name[64][32];
    const char *list[64], *near;
    int n = keys_of(prefix, name, list, 64);

    hint[0] = '\0';
    for (int i = 0; i < mc_nrows; i++) { /* the right word in the wrong place */
        const char *last = strrchr(mc_rows[i].path, '.');
        if (last && strcmp(last + 1, key) == 0) {
            snprintf(hint, 160, "did you mean \"%s\"?", mc_rows[i].path);
            break;
        }
    }
    near = mc_nearest(key, list, n);
    if (near && hint[0] == '\0')
        snprintf(hint, 160, "did you mean \"%s\"?", near);
}

int mc_recipe_key_known(const char *dotted)
{
    return mc_rows_find(dotted) >= 0 || mc_rows_is_group(dotted);
}

int mc_recipe_exclusive(const char *dotted, const char *siblings[4])
{
    int at = mc_rows_find(dotted), n = 0;

    if (at < 0 || mc_rows[at].type != MC_ROW_TARGET)
        return 0;
    for (int i = 0; i < mc_nrows && n < 4; i++)
        if (i != at && mc_rows[i].type == MC_ROW_TARGET && mc_rows[i].off == mc_rows[at].off)
            siblings[n++] = mc_rows[i].path;
    return n;
}
