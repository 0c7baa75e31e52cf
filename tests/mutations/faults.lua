-- faults.lua - faults of the distributed part: { story, file, text that is there once, what takes its place, layouts that must
-- turn red }. Layouts as tests/dist/matrix.lua takes them, of pipelines as pipes.lua does; "--chains" are their runs that change
-- their layout.
local F = {}
local script = "matrix.lua"
local function fault(story, file, from, to, ...)
    F[#F + 1] = { story = story, file = file, from = from, to = to, layouts = { ... }, script = script }
end

-- ---- tensor and sequence parallel ----
fault("sequence parallel: gradients of norms are not summed over the parts of the sequence", "core/graph/graph_build.c",
    "q->grad_sum_axes |= sum;", "q->grad_sum_axes |= 0 * sum;", "model=llama tp=2 sp=1")
fault("sequence parallel: the gradient of a gathered value is cut, not summed", "core/graph/op_comm.c",
    "(n->attr[MC_COMM_SPLIT] != 0 ? sum_part : own_part)(n", "(n->attr[MC_COMM_SPLIT] < 0 ? sum_part : own_part)(n",
    "model=llama tp=2 sp=1")
fault("the gradient of what enters split work is not summed", "core/graph/op_comm.c",
    "check(&n->d_in[0], &n->d_out[0]);", "if (n->nin > 0)\n        return;", "model=llama tp=2")
fault("an embedding in parts is not summed", "core/graph/op_embed.c",
    "io->out[0].sharding.on[MC_AXIS_TP] = (struct mc_place){.kind = MC_PARTIAL};",
    "io->out[0].sharding.on[MC_AXIS_TP] = (struct mc_place){.kind = MC_REPLICATE};", "model=llama tp=2")
fault("collectives of tensor parallel run in the group of data parallel", "core/graph/op_comm.c",
    "return cx->mesh->axis[axis]; /* bind saw to it */",
    "return cx->mesh->grad ? cx->mesh->grad : cx->mesh->axis[axis];", "model=llama tp=2 dp=2")
fault("the bias of a row linear is added by every rank", "core/graph/op_linear.c",
    "if (n->attr[IS_ROW] != 0 && cx->coord[MC_AXIS_TP] != 0)", "if (n->attr[IS_ROW] < 0)", "model=gpt2 tp=2")
fault("padding of the vocabulary is in the softmax", "core/graph/op_loss.c",
    "int64_t here = vocab - first < 0 ? 0 : vocab - first < width ? vocab - first : width;", "int64_t here = width;",
    "model=gpt2 tp=2")
fault("sums of parts of the vocabulary are joined without their maxima", "core/kern/cpu/xent_part.inl",
    "sum += part[1] * exp(part[0] - top);", "sum += part[1];", "model=odd tp=4")
fault("the logit of the target is taken from the first part only", "core/kern/cpu/xent_part.inl",
    "hit += part[2];", "hit += p == 0 ? part[2] : 0;", "model=odd tp=4")
fault("gradients of copied key heads are not summed over the copies", "core/graph/graph_param.c",
    "p->grad_sum_axes |= 1u << a;", "p->grad_sum_axes |= 0u << a;", "model=one_kv tp=2")
fault("all get the gradient of the first key head", "core/graph/graph_bucket.c",
    "if (back && k == mine)", "if (back && k == 0)", "model=qwen tp=4")
fault("the pack of gradients keeps what was in it", "core/graph/graph_bucket.c",
    "memset(to, 0, bytes);", "to[0] = to[0];", "model=qwen tp=4")
fault("copies of a key head lie round robin, not beside each other", "core/tensor/tensor.c",
    "return coord / (p->copies + !p->copies);", "return p->copies ? coord % p->copies : coord;", "model=qwen tp=4")
fault("dropout goes by the row of the part", "core/graph/op_misc.c",
    "d.row = cx->logical_row + cx->row0;", "d.row = cx->logical_row;", "model=gpt2 tp=2 sp=1")
fault("initial weights go by the local row", "core/graph/graph_init.c",
    "int64_t i = p->box.lo[0] + r;", "int64_t i = r;", "model=llama tp=2")
fault("initial weights go by the local column", "core/graph/graph_init.c",
    "i = i * p->shape.dim[1] + p->box.lo[1];", "i = i * p->shape.dim[1];", "model=llama tp=2")

-- ---- gradients and the batch ----
fault("the second use of a tied weight counts twice", "core/graph/graph_bucket.c", ".ay = 1}", ".ay = 2}", "model=gpt2 dp=2")
fault("gradients are finished once more when there are replicas", "core/train/transfer.c",
    "MC_TRY(mc_graph_finish_grads(r->cfg.graph, b, err));",
    "for (int k = 0; k < (r->comm ? 2 : 1); k++)\n        MC_TRY(mc_graph_finish_grads(r->cfg.graph, b, err));",
    "model=gpt2 dp=2")
fault("each replica takes the mean over its own tokens: an average of averages", "core/train/step.c",
    "s->valid = (int64_t)v[LABELS];", "s->valid = labels * t->world.replicas;", "model=llama dp=2")
fault("labels are counted on each rank of tensor parallel", "core/train/step.c",
    "v[LABELS] = t->world.counts ? (double)labels : 0;", "v[LABELS] = (double)labels;", "model=llama tp=2")
fault("the loss of all replicas but the first is skipped", "core/train/step.c",
    "v[LOSS] = t->world.counts ? s->loss_sum : 0;", "v[LOSS] = t->world.counts && !t->world.replica ? s->loss_sum : 0;",
    "model=llama dp=2")
fault("the gradients of a bucket stay with their replica", "core/train/transfer.c",
    "        if (r->comm)\n            MC_TRY(begin_grad(r, r->next, err));",
    "        if (r->comm && r->next != 1)\n            MC_TRY(begin_grad(r, r->next, err));", "model=llama dp=2")
fault("replicas read from where an even cut would be", "core/train/plan.c",
    "*first = part * each + (part < more ? part : more);", "*first = part * each;", "model=llama dp=3")
fault("dropout goes by the sample's place in its replica", "core/train/step.c",
    "(s->before.samples + s->first + first + i) * seq + p;", "(s->before.samples + first + i) * seq + p;", "model=gpt2 dp=2")
fault("the last, partial microbatch gives no gradient", "core/train/step.c",
    "1.0 / (double)s->valid, err", "(b < t->recipe->batch.micro ? 0 : 1.0) / (double)s->valid, err",
    "model=llama dp=2 micro=2 global=22")
fault("gradients are not cleared between steps", "core/train/step.c", "mc_graph_zero_grads(t->graphs.train);", "",
    "model=llama dp=2")
fault("gradients are used before they have come", "core/train/transfer.c",
    "    for (int b = r->nbuckets - 1; b >= 0; b--)\n        MC_TRY(wait_grad(r, b, err));",
    "    for (int b = r->nbuckets - 1; b >= 0 && !r->cfg.overlap_grads; b--)\n        MC_TRY(wait_grad(r, b, err));",
    "--overlap", "model=llama dp=2", "model=qwen dp=3 shard=1")
fault("parameters are read before they have come", "core/train/transfer.c",
    "x->param = NULL;", "x->param = NULL;\n    if (r->cfg.overlap_params)\n        return MC_OK;",
    "--overlap", "model=llama dp=2 shard=1", "model=qwen dp=3 shard=1")

-- ---- norm, optimizer, checkpoint ----
fault("what tp holds in copies is in the norm once a copy", "core/optim/adamw.c",
    "if (mc_graph_param(o->graph, x->param)->owned)", "if (x->rows > 0)", "model=llama tp=2")
fault("each rank clips by the norm of what it has", "core/train/step.c",
    "MC_TRY(mc_world_sum(&t->world, v, MC_STEP_HEAD + n, err));", "MC_TRY(mc_world_sum(&t->world, v, MC_STEP_HEAD, err));",
    "model=gpt2 dp=2 shard=1")
fault("a shard begins a row late", "core/optim/shard.c",
    "int64_t lo = p->offset > from ? p->offset : from;", "int64_t lo = p->offset > from ? p->offset : from + (from > p->offset ? row : 0);",
    "model=llama dp=2 shard=1")
fault("the updated parameters of the first bucket are not gathered", "core/train/transfer.c",
    "for (int b = 0; b < r->nbuckets; b++) { /* I1", "for (int b = 1; b < r->nbuckets; b++) { /* I1", "model=llama dp=2 shard=1")
fault("weights_hash is that of the control rank's part", "core/train/trainer.c",
    "MC_TRY(mc_world_sum_u64(&t->world, t->hash_sum, mc_graph_nparams(t->graphs.train), err));", "(void)err;",
    "model=llama dp=2 shard=1")
fault("a checkpoint has what tp holds in copies once a copy", "core/optim/adamw.c",
    "if (p->owned && n++ < cap)", "if (n++ < cap)", "model=llama tp=2")
fault("moments are loaded from the first rows, not from the shard's", "core/optim/adamw.c",
    "add_tensor(o, k, p, mc_shard_box(p, x->row, x->rows), x->state, &t[n - 1]);",
    "add_tensor(o, k, p, mc_shard_box(p, 0, x->rows), x->state, &t[n - 1]);", "--chains")

return F
