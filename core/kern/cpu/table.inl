/* table.inl - the whole body in order, and the one exported symbol of its unit. */
#include <cblas.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include "../../tensor/bf16.h"
#include "../kern_int.h"

/* What a value is in memory: what it is computed in, if the includer does not say otherwise. */
#ifndef stored
#define stored         real
#define STORED_IS_REAL 1
#define WIDE_TABLE     TABLE
#endif

#include "par.inl"
#include "math.inl"
#include "gemm.inl"
#if !STORED_IS_REAL
#include "gemm_bf16.inl"
#endif
#include "norm.inl"
#include "act.inl"
#include "embed.inl"
#if STORED_IS_REAL
#include "attn.inl"
#else
#include "attn_bf16.inl"
#endif
#include "xent.inl"
#include "xent_part.inl"
#include "optim.inl"

const struct mc_kern_ops TABLE = {
    .name = REAL_NAME,
    .dtype = REAL_DTYPE,
    .wide = &WIDE_TABLE,
    .gemm = gemm,
    .rmsnorm = rmsnorm,
    .rmsnorm_bwd_input = rmsnorm_bwd_input,
    .rmsnorm_bwd_weight = rmsnorm_bwd_weight,
    .layernorm = layernorm,
    .layernorm_bwd_input = layernorm_bwd_input,
    .layernorm_bwd_weight = layernorm_bwd_weight,
    .rope = rope,
    .attn = attn,
    .attn_bwd = attn_bwd,
    .attn_cached = attn_cached,
    .unary = unary,
    .unary_bwd = unary_bwd,
    .swiglu = swiglu,
    .swiglu_bwd = swiglu_bwd,
    .add = add,
    .bias_bwd = bias_bwd,
    .embed = embed,
    .embed_bwd = embed_bwd,
    .positions = positions,
    .positions_bwd = positions_bwd,
    .dropout = dropout,
    .xent = xent,
    .xent_bwd = xent_bwd,
    .xent_part = xent_part,
    .xent_join = xent_join,
    .adamw = adamw,
    .sum = sum,
    .sum_squares = sum_squares,
    .from_f32 = from_f32,
    .to_f32 = to_f32,
    .norm_scratch = norm_scratch,
    .bias_scratch = bias_scratch,
    .attn_scratch = attn_scratch,
};
