"""DeepSeek-V2, V3 and what is built like them, from the keys of a GGUF file. No torch.

`kv_b_split`: the halves of kv_b are stored apart, that of the keys transposed.
"""

from __future__ import annotations

from headrace.weights.gguf_keys import (
    SIGMOID,
    Config,
    Keys,
    Tensors,
    balanced,
    dense_first,
    normalised,
)

DEEPSEEK2 = "deepseek2"
_SOFTMAX = 1


def deepseek2(keys: Keys, tensors: Tensors) -> Config:
    """Which of both it is, the scores tell."""
    biased = any(".exp_probs_b" in name for name in tensors)
    score = keys.get("expert_gating_func", SIGMOID if biased else _SOFTMAX)
    return (_v3 if score == SIGMOID else _v2)(keys) | _latent(keys, tensors) | dense_first(keys)


def _v3(keys: Keys) -> Config:
    return {
        "model_type": "deepseek_v3",
        **balanced(keys),
        "norm_topk_prob": normalised(keys, default=False),
    }


def _v2(keys: Keys) -> Config:
    if keys.get("expert_gating_func", _SOFTMAX) != _SOFTMAX:
        raise keys.error("expert_gating_func", f"{_SOFTMAX} or {SIGMOID}")
    groups = keys.count("expert_group_count", 1)
    return {
        "model_type": "deepseek_v2",
        "n_routed_experts": keys.count("expert_count"),
        "moe_intermediate_size": keys.count("expert_feed_forward_length"),
        "n_shared_experts": keys.get("expert_shared_count", 0),
        "n_group": groups,
        "topk_group": keys.count("expert_group_used_count", 1),
        "topk_method": "group_limited_greedy" if groups > 1 else "greedy",
        "routed_scaling_factor": keys.number("expert_weights_scale", 1.0),
        "norm_topk_prob": normalised(keys, default=False),
    }


def _latent(keys: Keys, tensors: Tensors) -> Config:
    split = "blk.0.attn_k_b.weight" in tensors
    heads, rotated = keys.count("attention.head_count"), keys.count("rope.dimension_count")
    # Files with both halves as one have a head's own widths, later ones the cache's.
    lengths = ("attention.key_length", "attention.value_length")
    own = {name: keys.get(name) for name in lengths}
    key, value = (f"{name}_mla" if split or own[name] is None else name for name in lengths)
    width = keys.count(key)
    if width <= rotated:
        raise keys.error(key, f"more than the {rotated} rotated channels")
    return {
        "num_key_value_heads": heads,
        "kv_lora_rank": keys.count("attention.kv_lora_rank"),
        "q_lora_rank": keys.get("attention.q_lora_rank"),
        "qk_nope_head_dim": width - rotated,
        "qk_rope_head_dim": rotated,
        "v_head_dim": keys.count(value),
        "rope_interleave": True,
        "kv_b_split": split,
    }
