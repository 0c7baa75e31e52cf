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
fault("sums over the parts of a sequence are taken once more when there are replicas", "core/train/transfer.c",
    "MC_TRY(mc_graph_finish_grads(r->cfg.graph, b, err));",
    "for (int k = 0; k < (r->comm ? 2 : 1); k++)\n        MC_TRY(mc_graph_finish_grads(r->cfg.graph, b, err));",
    "model=llama dp=2 tp=2 sp=1")
fault("each replica takes the mean over its own tokens: an average of averages", "core/train/step.c",
    "s->valid = (int64_t)v[LABELS];", "s->valid = labels * t->world.replicas;", "model=llama dp=2")
fault("labels are counted on each rank of tensor parallel", "core/train/step.c",
    "v[LABELS] = t->world.counts ? (double)labels : 0;", "v[LABELS] = (double)labels;", "model=llama tp=2")
fault("the loss of all replicas but the first is skipped", "core/train/step.c",
    "v[LOSS] = t->world.counts ? s->loss_sum : 0;", "v[LOSS] = t->world.counts && !t->world.replica ? s->loss_sum : 0;",
    "model=llama dp=2")
fault("the gradients of a bucket stay with their replica", "core/train/transfer.c",
    "            break;\n        if (r->comm)\n", "            break;\n        if (r->comm && r->next != 1)\n", "model=llama dp=2")
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
    "    for (int k = 0; k < r->nbuckets; k++)\n        MC_TRY(wait_grad(r, r->order[k], err));",
    "    for (int k = 0; k < r->nbuckets && !r->cfg.overlap_grads; k++)\n        MC_TRY(wait_grad(r, r->order[k], err));",
    "--overlap", "model=llama dp=2", "model=qwen dp=3 shard=1")
fault("parameters are read before they have come", "core/train/transfer.c",
    "x->param = NULL;", "x->param = NULL;\n    if (r->cfg.overlap_params)\n        return MC_OK;",
    "--overlap", "model=llama dp=2 shard=1", "model=qwen dp=3 shard=1")

-- ---- norm, optimizer, checkpoint ----
fault("what tp holds in copies is in the norm once a copy", "core/optim/adamw.c",
    "if (mc_graph_param(o->graph, x->param)->owned)", "if (x->rows > 0)", "model=llama tp=2")
fault("each rank clips by the norm of what it has", "core/train/step.c",
    "MC_TRY(mc_world_sum(&t->world, v, MC_STEP_HEAD + n + pipe, err));", "MC_TRY(mc_world_sum(&t->world, v, MC_STEP_HEAD, err));",
    "model=gpt2 dp=2 shard=1")
fault("a shard begins a row late", "core/optim/shard.c",
    "int64_t lo = p->offset > from ? p->offset : from;", "int64_t lo = p->offset > from ? p->offset : from + (from > p->offset ? row : 0);",
    "model=llama dp=2 shard=1")
fault("the updated parameters of the first bucket are not gathered", "core/train/transfer.c",
    "for (int b = 0; b < r->nbuckets; b++) { /* I1", "for (int b = 1; b < r->nbuckets; b++) { /* I1", "model=llama dp=2 shard=1")
fault("weights_hash is that of the control rank's part", "core/train/trainer.c",
    "MC_TRY(mc_world_sum_u64(&t->world, t->hash_sum, mc_graph_nparams(t->graphs.whole), err));", "(void)err;",
    "model=llama dp=2 shard=1")
fault("a checkpoint has what tp holds in copies once a copy", "core/optim/adamw.c",
    "if (p->owned && n++ < cap)", "if (n++ < cap)", "model=llama tp=2")
fault("moments are loaded from the first rows, not from the shard's", "core/optim/adamw.c",
    "add_tensor(o, k, p, mc_shard_box(p, x->row, x->rows), x->state, &t[n - 1]);",
    "add_tensor(o, k, p, mc_shard_box(p, 0, x->rows), x->state, &t[n - 1]);", "--chains")

-- ---- pipelines ----
script = "pipes.lua"
fault("the first rank sends two microbatches in the other order", "core/pipe/compile.c",
    "walk_op(&w, &s->rec[s->first[p->rank] + (int64_t)k], &prog->op[k]);",
    "walk_op(&w, &s->rec[s->first[p->rank] + (int64_t)(p->rank == 0 && k < 2 ? 1 - k : k)], &prog->op[k]);",
    "model=llama pp=4")
fault("gradients of weights of two microbatches are added in the other order", "core/pipe/compile.c",
    "            walk_op(&w, &s->rec[s->first[p->rank] + (int64_t)k], &prog->op[k]);", [=[{
            const struct mc_sched_rec *rec = &s->rec[s->first[p->rank]];
            size_t other = (k ^ 1) < n ? k ^ 1 : k;
            int both = rec[k].op == MC_SCHED_W && rec[other].op == MC_SCHED_W && rec[k].chunk == rec[other].chunk;
            walk_op(&w, &rec[both ? other : k], &prog->op[k]);
        }]=], "model=llama pp=2 schedule=own")
fault("a slot is free once the gradient of the input is there", "core/pipe/compile.c",
    "if (x->op == MC_SCHED_B || x->op == MC_SCHED_W)\n        w->busy", "if (x->op == MC_SCHED_B || x->op == MC_SCHED_I)\n        w->busy",
    "model=llama pp=2 schedule=zb_h1")
fault("microbatches between their two passes of backward share a place", "core/graph/graph_exec.c",
    "slots + p->pending_offset + (size_t)place * p->pending_bytes", "slots + p->pending_offset + 0 * (size_t)place * p->pending_bytes",
    "model=llama pp=4 schedule=zb_h1")
fault("messages between chunks of one rank share a buffer", "core/pipe/compile.c",
    "o->local_out = w->spare[--w->nspare];", "o->local_out = 0 * w->spare[--w->nspare];", "model=llama pp=2 chunks=2 schedule=own")
fault("a rank runs the layers of its other chunk", "core/pipe/compile.c",
    "w.part[mc_line_chunk(line, p->rank, c)] = (int16_t)c;",
    "w.part[p->rank == 1 ? c : mc_line_chunk(line, p->rank, c)] = (int16_t)c;", "model=llama pp=4 chunks=2 schedule=own")
fault("gradients of a chunk are reduced before its last microbatch", "core/pipe/compile.c",
    "o->last = !seen[o->chunk]++;", "o->last = seen[o->chunk]++ == 1;", "model=llama pp=2 schedule=zb_h1 dp=2 grads=1")
fault("a receive goes into the next message's buffer", "core/pipe/exec.c",
    "return comm->ops->recv(comm, c->buf + (size_t)k * r->p->message", "return comm->ops->recv(comm, c->buf + (size_t)((k + 1) % c->is.room) * r->p->message",
    "model=llama pp=2")
fault("the last microbatch of a pipeline gives no gradient", "core/pipe/exec.c",
    "return mc_graph_backward(j->graph, slot, x, j->step, j->scale, err);",
    "return mc_graph_backward(j->graph, slot, x, j->step, mb + 1 < r->count ? j->scale : 0, err);", "model=llama pp=2")
fault("a short last microbatch takes samples of another replica", "core/pipe/exec.c",
    "return left < r->job->micro ? left : r->job->micro;", "return left > 0 ? r->job->micro : left;", "model=llama pp=2 micro=2 dp=3")
fault("losses of the step before stay in the sum", "core/pipe/exec.c", "r->job->loss[mb] = 0;", "r->job->loss[mb] += 0;", "model=llama pp=2")
fault("losses are added in descending microbatches", "core/train/piped.c", "s->loss_sum += p->loss[k];",
    "s->loss_sum += p->loss[(s->own - 1) / job.micro - k];", "model=llama pp=2")
fault("every stage counts its tokens", "core/train/world.c",
    "mesh->coord[MC_AXIS_PP] == mc_line_head(line));", "mc_line_head(line) >= 0);", "model=llama pp=2")
fault("dropout goes by the place in the microbatch", "core/train/step.c",
    "(s->before.samples + s->first + first + i) * seq + p;", "(s->before.samples + s->first + i) * seq + p;", "model=gpt2 pp=2")
fault("a tied table's gradient is added once too often", "core/pipe/tied.c", ".ay = 1}", ".ay = 2}", "model=gpt2 pp=2")
fault("a tied table's two gradients stay apart", "core/pipe/tied.c", "    if (t->nslices > 0)\n", "    if (t->nslices > 0)\n        return MC_OK;\n    if (t->nslices < 0)\n",
    "model=gpt2 pp=2")
fault("a tied table's gradients are added after those of the replicas", "core/train/transfer.c", [=[
    MC_TRY(mc_tied_sum(r->cfg.tied, err));
    int64_t end = mc_clock_ns();
    r->exposed_ns += end - from;
    note(r, MC_SPAN_TIED, r->order[r->alone], from, from, end);
    for (; r->next < r->nbuckets; r->next++) {
        MC_TRY(mc_graph_finish_grads(r->cfg.graph, r->order[r->next], err));
        if (r->comm)
            MC_TRY(begin_grad(r, r->order[r->next], err));
    }
    return MC_OK;]=], [=[
    int64_t end = mc_clock_ns();
    r->exposed_ns += end - from;
    note(r, MC_SPAN_TIED, r->order[r->alone], from, from, end);
    for (; r->next < r->nbuckets; r->next++) {
        MC_TRY(mc_graph_finish_grads(r->cfg.graph, r->order[r->next], err));
        if (r->comm)
            MC_TRY(begin_grad(r, r->order[r->next], err));
    }
    return mc_tied_sum(r->cfg.tied, err);]=], "model=gpt2 pp=2 dp=2")
fault("the head's copy of a tied table is in the norm, too", "core/optim/adamw.c",
    "if (mc_graph_param(o->graph, x->param)->owned)", "if (x->rows > 0)", "model=gpt2 pp=2")
fault("each stage clips by its own norm", "core/train/step.c",
    "MC_TRY(mc_world_sum(&t->world, v, MC_STEP_HEAD + n + pipe, err));", "MC_TRY(mc_world_sum(&t->world, v, MC_STEP_HEAD, err));",
    "model=gpt2 pp=2")
fault("a pass finds what the last microbatch left, not its own", "core/graph/graph_exec.c",
    "if (p->at[phase] != k || p->at_place[phase] != p->place[k])", "if (p->at[phase] < 0)",
    "model=llama pp=2")
fault("what the weights' pass needs is left in memory that all microbatches share", "core/graph/graph_place.c",
    "mc_graph_phase_at(p, s->birth) != mc_graph_phase_at(p, s->death)\n                       ? MC_IN_SLOT",
    "mc_graph_phase_at(p, s->birth) == MC_PHASE_FORWARD && mc_graph_phase_at(p, s->death) != MC_PHASE_FORWARD\n ? MC_IN_SLOT",
    "model=llama pp=2 schedule=zb_h1 recompute=block")

return F
