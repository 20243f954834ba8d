"""Gemma 4 with experts, from the keys of a GGUF file. No torch.

How many pairs of the wide heads turn stands in a tensor alone: a divisor for each, which is vast
for those that do not.
"""

from __future__ import annotations

import math

from headrace.errors import CheckpointError
from headrace.weights.gguf_keys import Config, Keys, Tensors, divisors_of

GEMMA4 = "gemma4"
_NEAR, _FAR = "sliding_attention", "full_attention"


def gemma4(keys: Keys, tensors: Tensors) -> Config:
    """The text config as published, without towers."""
    for key in ("attention.shared_kv_layers", "embedding_length_per_layer_input"):
        if keys.get(key, 0) != 0:
            raise keys.error(key, "0, as models with experts have it")
    kinds = _kinds(keys)
    wide, narrow = keys.count("attention.key_length"), keys.count("attention.key_length_swa")
    keys.get("attention.value_length_swa")
    far = kinds.index(_FAR) if _FAR in kinds else 0
    heads = _heads(keys, len(kinds))
    capped = keys.get("final_logit_softcapping")
    return {
        "model_type": "gemma4_text",
        "enable_moe_block": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "num_experts": keys.count("expert_count"),
        "top_k_experts": keys.count("expert_used_count"),
        "moe_intermediate_size": keys.count("expert_feed_forward_length"),
        "intermediate_size": keys.count("feed_forward_length"),
        "head_dim": narrow,
        "global_head_dim": wide,
        "num_key_value_heads": heads[kinds.index(_NEAR)] if _NEAR in kinds else heads[0],
        "num_global_key_value_heads": heads[far],
        "attention_k_eq_v": f"blk.{far}.attn_v.weight" not in tensors,
        "sliding_window": keys.count("attention.sliding_window"),
        "layer_types": kinds,
        "final_logit_softcapping": keys.number("final_logit_softcapping") if capped else None,
        "rope_parameters": {
            _FAR: {
                "rope_type": "proportional",
                "rope_theta": keys.number("rope.freq_base", 1_000_000.0),
                "partial_rotary_factor": _share(keys, tensors, wide),
            },
            _NEAR: {
                "rope_type": "default",
                "rope_theta": keys.number("rope.freq_base_swa", 10_000.0),
                "partial_rotary_factor": keys.count("rope.dimension_count_swa", narrow) / narrow,
            },
        },
        "hidden_act": None,
        "num_experts_per_tok": None,
    }


def _kinds(keys: Keys) -> list[str]:
    layers = keys.count("block_count")
    near = keys.get("attention.sliding_window_pattern")
    if not isinstance(near, list) or len(near) != layers or any(type(n) is not bool for n in near):
        raise keys.error("attention.sliding_window_pattern", f"true or false for {layers} layers")
    return [_NEAR if n else _FAR for n in near]


def _heads(keys: Keys, layers: int) -> list[int]:
    """KV heads of each layer."""
    key = "attention.head_count_kv"
    value = keys.get(key)
    listed = value if isinstance(value, list) else [value] * layers
    if len(listed) != layers or any(type(n) is not int or n < 1 for n in listed):
        raise keys.error(key, f"a whole number above 0, or {layers} of them")
    return listed


def _share(keys: Keys, tensors: Tensors, width: int) -> float:
    """Of the channels of a wide head that turn."""
    keys.get("rope.dimension_count")
    divisors = divisors_of(tensors, width // 2) or []
    turning = divisors.count(1.0)
    if not divisors or divisors[:turning] != [1.0] * turning or len({*divisors[turning:]}) > 1:
        raise CheckpointError(
            "tensor 'rope_freqs.weight' is missing or has divisors of several sizes",
            expected="1 for the pairs that turn, then one vast divisor",
            fix="use a newer conversion of the model",
        )
    share = 2 * turning / width
    return share if int(share * width // 2) >= turning else math.nextafter(share, 2)
