#!/usr/bin/env python3
"""Tiny random models of Hugging Face transformers, as save_pretrained writes them, and their logits.

    python3 -m venv v && v/bin/pip install torch transformers && v/bin/python make.py [--seed N] [--out DIR] [FAMILY ...]

DIR/FAMILY (DIR: beside this file) gets config.json, model.safetensors (of one family: an index and its shards), and
logits.f32: T x VOCAB little-endian floats for the token ids (37 i + 11) mod VOCAB, i = 0 .. T - 1. FAMILY.lua beside this file
is the recipe of the same shape. Made with torch 2.15.0, transformers 5.24.0.
"""
import argparse
import os
import torch
import transformers as tf

T, VOCAB = 24, 257
HERE = os.path.dirname(os.path.abspath(__file__))
COMMON = dict(vocab_size=VOCAB, num_hidden_layers=2, hidden_size=16, intermediate_size=24, num_attention_heads=4,
              max_position_embeddings=64, attention_dropout=0.0, bos_token_id=0, eos_token_id=256, pad_token_id=None)
PLAIN = dict(rope_type="default", rope_theta=10000.0)
FAMILIES = {
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(
        num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=32), **COMMON)),
    "mistral": lambda: tf.MistralForCausalLM(tf.MistralConfig(
        num_key_value_heads=1, rms_norm_eps=1e-5, sliding_window=7, tie_word_embeddings=False, rope_parameters=PLAIN, **COMMON)),
    "qwen2": lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(
        num_key_value_heads=2, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16), **COMMON)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(
        num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters=dict(PLAIN, rope_theta=1000000.0), **COMMON)),
    "gemma2": lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(
        num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-6, tie_word_embeddings=True, rope_parameters=PLAIN, sliding_window=5,
        query_pre_attn_scalar=10, attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
        hidden_activation="gelu_pytorch_tanh", **COMMON)),
    "gpt2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(
        vocab_size=VOCAB, n_positions=24, n_embd=16, n_layer=2, n_head=4, n_inner=24, activation_function="gelu_new",
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, layer_norm_epsilon=1e-5, bos_token_id=256, eos_token_id=256)),
}
SHARDED, HALF = "qwen3", {"mistral": torch.bfloat16, "gemma2": torch.float16}


def write(family, out, seed):
    torch.manual_seed(seed)
    model = FAMILIES[family]().eval()
    with torch.no_grad():  # all parameters at random, those that begin at 0 or 1 too; large enough to matter
        for name, p in model.named_parameters():
            p.copy_(0.3 * torch.randn(p.shape) + (1.0 if p.dim() == 1 and "norm" in name and family != "gemma2" else 0.0))
    model = model.to(HALF.get(family, torch.float32))
    folder = os.path.join(out, family)
    os.makedirs(folder, exist_ok=True)
    model.save_pretrained(folder, max_shard_size="20KB" if family == SHARDED else "1GB")
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))
    # what was stored, computed with in fp32: read back, for .to() of a model would round its tables of rope, too
    model = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.tensor([[(37 * i + 11) % VOCAB for i in range(T)]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0].float()
    logits.numpy().astype("<f4").tofile(os.path.join(folder, "logits.f32"))
    print(family, tuple(logits.shape), "%.4f" % logits.std().item(), sorted(os.listdir(folder)))


if __name__ == "__main__":
    a = argparse.ArgumentParser()
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--out", default=HERE)
    a.add_argument("family", nargs="*")
    a = a.parse_args()
    torch.set_num_threads(1)
    for f in a.family or FAMILIES:
        write(f, a.out, a.seed)
