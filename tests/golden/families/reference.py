#!/usr/bin/env python3
"""Whole-model references of Hugging Face transformers: tiny random models of each family, fp32.

    python3 -m venv v && v/bin/pip install torch transformers && v/bin/python reference.py [FAMILY ...]

writes FAMILY.txt and FAMILY.f32 beside itself, and rope.txt. Made with torch 2.15.0, transformers 5.24.0.
Weights, tokens and targets come from the formulas of tests/unit/graph_help.h (splitmix64 over FNV-1a of
*our* parameter's name), so none are stored. The shapes are those of FAMILY.lua. FAMILY.txt, one record a line:
    loss VALUE                  mean cross entropy over the unmasked targets
    logits COUNT                elements 0 .. COUNT - 1 of FAMILY.f32, (B, T, vocab)
    grad NAME COUNT OFFSET      gradient of that loss, elements OFFSET .. of FAMILY.f32 (little-endian floats)
rope.txt: rope TYPE HEAD_DIM THETA FACTOR ORIGINAL AMPLITUDE, then HEAD_DIM / 2 frequencies.
"""
import os
import sys
import numpy as np
import torch
import torch.nn.functional as F
import transformers as tf
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

HERE = os.path.dirname(os.path.abspath(__file__))
M64 = (1 << 64) - 1
B, T, VOCAB = 2, 24, 61


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & M64
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & M64
    return x ^ x >> 31


def name_hash(s):
    h = 0xCBF29CE484222325
    for c in s.encode():
        h = ((h ^ c) * 0x100000001B3) & M64
    return h


def weight(name, shape):
    h, n = name_hash(name), int(np.prod(shape))
    u = np.array([(mix((h + i) & M64) >> 40) / 8388608.0 - 1.0 for i in range(n)])
    if name == "embed.weight":
        v = 0.5 * u
    elif name.endswith(".bias"):
        v = 0.125 * u
    elif len(shape) == 1:
        v = 1 + 0.25 * u
    else:
        v = u / np.sqrt(shape[-1])
    return torch.tensor(v.astype(np.float32).reshape(shape))


def batch(step):
    tokens, targets = [], []
    for i in range(B * T):
        a, b = mix(step * 1000003 + 2 * i), mix(step * 1000003 + 2 * i + 1)
        tokens.append(a % VOCAB)
        targets.append(-1 if b % 7 == 0 else b // 7 % VOCAB)
    return torch.tensor(tokens).view(B, T), torch.tensor(targets).view(B, T)


def ours(name, post_norms):
    """The name of a transformers parameter in our models."""
    name = name.removeprefix("model.").replace("embed_tokens", "embed").replace("lm_head", "head")
    name = name.replace("self_attn.o_proj", "attn.o").replace("self_attn.", "attn.").replace("_proj", "")
    if post_norms:
        name = name.replace("post_attention_layernorm", "attn.post_norm")
        name = name.replace("pre_feedforward_layernorm", "mlp_norm")
        name = name.replace("post_feedforward_layernorm", "mlp.post_norm")
    return name.replace("input_layernorm", "attn_norm").replace("post_attention_layernorm", "mlp_norm")


COMMON = dict(vocab_size=VOCAB, num_hidden_layers=2, max_position_embeddings=64, initializer_range=0.02,
              attention_dropout=0.0, use_cache=False, bos_token_id=0, eos_token_id=1, pad_token_id=None)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16)
PLAIN = dict(rope_type="default", rope_theta=10000.0)
FAMILIES = {
    "llama3": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(
        hidden_size=32, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
        tie_word_embeddings=False, rope_parameters=LLAMA3, **COMMON)),
    "mistral": lambda: tf.MistralForCausalLM(tf.MistralConfig(
        hidden_size=32, intermediate_size=56, num_attention_heads=4, num_key_value_heads=1, rms_norm_eps=1e-5,
        sliding_window=7, tie_word_embeddings=False, rope_parameters=PLAIN, **COMMON)),
    "qwen2": lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(
        hidden_size=32, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6,
        tie_word_embeddings=True, rope_parameters=YARN, **COMMON)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(
        hidden_size=32, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
        rms_norm_eps=1e-6, tie_word_embeddings=False, rope_parameters=dict(PLAIN, rope_theta=1000000.0), **COMMON)),
    "gemma2": lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(
        hidden_size=32, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
        rms_norm_eps=1e-6, tie_word_embeddings=True, rope_parameters=PLAIN, sliding_window=5,
        query_pre_attn_scalar=10, attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
        hidden_activation="gelu_pytorch_tanh", **COMMON)),
}


def write(family):
    model = FAMILIES[family]().float().eval()
    model.set_attn_implementation("eager")
    params = {ours(n, family == "gemma2"): p for n, p in model.named_parameters()}
    with torch.no_grad():
        for n, p in params.items():
            p.copy_(weight(n, tuple(p.shape)))
    tok, tgt = batch(1)
    logits = model(input_ids=tok).logits.float()
    loss = F.cross_entropy(logits.view(-1, VOCAB), tgt.view(-1), ignore_index=-1)
    loss.backward()
    lines = ["loss %.9e" % loss.item(), "logits %d" % logits.numel()]
    blobs, at = [logits.detach().numpy().ravel()], logits.numel()
    for n, p in params.items():
        lines.append("grad %s %d %d" % (n, p.numel(), at))
        blobs.append(p.grad.numpy().ravel())
        at += p.numel()
    with open(os.path.join(HERE, family + ".txt"), "w") as f:
        f.write("\n".join(lines) + "\n")
    np.concatenate(blobs).astype("<f4").tofile(os.path.join(HERE, family + ".f32"))
    print(family, lines[0], at)


def write_rope():
    lines = []
    for kind, dim, theta, extra in [
            ("linear", 16, 10000.0, dict(factor=4.0)),
            ("llama3", 64, 500000.0, dict(LLAMA3, rope_theta=500000.0, original_max_position_embeddings=8192)),
            ("llama3", 64, 500000.0, dict(LLAMA3, rope_theta=500000.0, factor=32.0, original_max_position_embeddings=8192)),
            ("yarn", 128, 1000000.0, dict(factor=4.0, original_max_position_embeddings=32768)),
            ("yarn", 64, 10000.0, dict(factor=16.0, original_max_position_embeddings=4096)),
            ("yarn", 8, 10000.0, dict(factor=2.0, original_max_position_embeddings=16))]:
        cfg = tf.LlamaConfig(hidden_size=dim, num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=int(
            extra.get("original_max_position_embeddings", 64) * extra["factor"]),
            rope_parameters=dict(extra, rope_type=kind, rope_theta=theta))
        freq, amplitude = ROPE_INIT_FUNCTIONS[kind](cfg, torch.device("cpu"))
        lines.append("rope %s %d %.17g %.17g %d %.17g" % (kind, dim, theta, extra["factor"], extra.get(
            "original_max_position_embeddings", 0), amplitude))
        lines.append(" ".join("%.9e" % x for x in freq.tolist()))
    with open(os.path.join(HERE, "rope.txt"), "w") as f:
        f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for family in sys.argv[1:] or FAMILIES:
        write(family)
    write_rope()
