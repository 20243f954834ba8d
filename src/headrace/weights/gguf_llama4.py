"""Llama 4 from the keys of a GGUF file. No torch.

Files say nothing of chunks, of queries that grow and of norms of q and k: those are as published,
and the largest model has no norms. How rotation is stretched stands in a tensor of divisors.
"""

from __future__ import annotations

from headrace.weights.gguf_keys import Config, Keys, Tensors, divisors_of

_MAVERICK = 128  # experts


def llama4(keys: Keys, tensors: Tensors) -> Config:
    """The text config as published, without towers."""
    if keys.get("attention.sliding_window") is not None:
        raise keys.error("attention.sliding_window", "none: chunks of 8192, as published")
    heads, hidden = keys.count("attention.head_count"), keys.count("embedding_length")
    width = keys.count("attention.key_length", max(hidden // heads, 1))
    rope: Config = {"rope_type": "default", "rope_theta": keys.number("rope.freq_base", 500_000.0)}
    divisors = divisors_of(tensors, width // 2)
    if divisors is not None:
        rope |= {"rope_type": "divided", "divisors": divisors}
    experts = keys.count("expert_count")
    return {
        "model_type": "llama4_text",
        "num_local_experts": experts,
        "intermediate_size": keys.count("expert_feed_forward_length"),
        "intermediate_size_mlp": keys.count("feed_forward_length"),
        "interleave_moe_layer_step": keys.count("interleave_moe_layer_step"),
        "attention_chunk_size": 8192,
        "use_qk_norm": experts != _MAVERICK,
        "rope_parameters": rope,
    }
