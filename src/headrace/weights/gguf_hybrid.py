"""Models with recurrent layers of other kinds than gated DeltaNet, from the keys of a GGUF file.
No torch. Which layers attend is told by their numbers of KV heads.
"""

from __future__ import annotations

from headrace.weights.gguf_keys import SIGMOID, Config, Keys, Tensors, balanced, normalised


def lfm2moe(keys: Keys, tensors: Tensors) -> Config:
    """LFM2 with experts."""
    if keys.get("expert_gating_func", SIGMOID) != SIGMOID:
        raise keys.error("expert_gating_func", f"{SIGMOID}, sigmoid scores")
    attends = _attending(keys)
    return {
        "model_type": "lfm2_moe",
        "hidden_act": None,
        "rms_norm_eps": None,
        "norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "layer_types": ["full_attention" if on else "conv" for on in attends],
        "conv_L_cache": keys.count("shortconv.l_cache"),
        "conv_bias": False,
        "intermediate_size": keys.count("feed_forward_length"),
        "num_dense_layers": keys.get("leading_dense_block_count", 0),
        "num_experts": keys.count("expert_count"),
        "moe_intermediate_size": keys.count("expert_feed_forward_length"),
        "norm_topk_prob": normalised(keys, default=True),
        "routed_scaling_factor": keys.number("expert_weights_scale", 1.0),
        "use_expert_bias": any(".exp_probs_b" in name for name in tensors),
    }


def nemotron_h_moe(keys: Keys, tensors: Tensors) -> Config:
    """Nemotron-H with experts. Widths are told of layers with a feed-forward part alone."""
    attends = _attending(keys)
    keys.get("feed_forward_length")
    pattern = "".join(_letter(i, attends=on, tensors=tensors) for i, on in enumerate(attends))
    return {
        "model_type": "nemotron_h",
        "rope_parameters": None,
        "rms_norm_eps": None,
        "hybrid_override_pattern": pattern,
        "layer_norm_epsilon": keys.number("attention.layer_norm_rms_epsilon"),
        **balanced(keys),
        "norm_topk_prob": normalised(keys, default=True),
        "moe_shared_expert_intermediate_size": keys.count("expert_shared_feed_forward_length"),
        **mamba(keys),
    }


def granitehybrid(keys: Keys, tensors: Tensors) -> Config:
    """Granite 4 with experts. `rope.scaling.finetuned` says whether it rotates at all."""
    attends, turned = _attending(keys), keys.get("rope.scaling.finetuned", True)
    own = mamba(keys)
    heads, width = own["mamba_num_heads"], own["mamba_head_dim"]
    hidden = keys.count("embedding_length")
    if heads * width % hidden:
        raise keys.error("ssm.inner_size", f"a multiple of the {hidden} channels of the model")
    return {
        "model_type": "granitemoehybrid",
        "layer_types": ["attention" if on else "mamba" for on in attends],
        "position_embedding_type": "rope" if turned else "nope",
        "rope_interleave": bool(turned),
        "num_local_experts": keys.count("expert_count"),
        "intermediate_size": keys.count(
            "expert_feed_forward_length", keys.get("feed_forward_length")
        ),
        "shared_intermediate_size": keys.get("expert_shared_feed_forward_length", 0),
        "embedding_multiplier": keys.number("embedding_scale", 1.0),
        "residual_multiplier": keys.number("residual_scale", 1.0),
        "attention_multiplier": keys.number("attention.scale", 1.0),
        "logits_scaling": keys.number("logit_scale", 1.0),
        "mamba_n_heads": heads,
        "mamba_d_head": width,
        "mamba_expand": heads * width // hidden,
        "mamba_n_groups": own["n_groups"],
        "mamba_d_state": own["ssm_state_size"],
        "mamba_d_conv": own["conv_kernel"],
        "decay_as_rate": True,
    }


def mamba(keys: Keys) -> Config:
    """Of Mamba 2 layers, as Nemotron-H names it."""
    heads, inner = keys.count("ssm.time_step_rank"), keys.count("ssm.inner_size")
    if inner % heads:
        raise keys.error("ssm.inner_size", f"a multiple of the {heads} heads")
    return {
        "mamba_num_heads": heads,
        "mamba_head_dim": inner // heads,
        "n_groups": keys.count("ssm.group_count"),
        "ssm_state_size": keys.count("ssm.state_size"),
        "conv_kernel": keys.count("ssm.conv_kernel"),
        "decay_as_rate": True,
    }


def _attending(keys: Keys) -> list[bool]:
    """Of each layer, whether it has KV heads; those that predict further tokens left out."""
    count = keys.count("block_count") - keys.get("nextn_predict_layers", 0)
    heads = keys.get("attention.head_count_kv")
    if not isinstance(heads, list) or len(heads) < count:
        raise keys.error("attention.head_count_kv", f"a number for each of {count} layers")
    return [n != 0 for n in heads[:count]]


def _letter(layer: int, *, attends: bool, tensors: Tensors) -> str:
    if attends:
        return "*"
    if f"blk.{layer}.ffn_gate_inp.weight" in tensors:
        return "E"
    return "-" if f"blk.{layer}.ffn_up.weight" in tensors else "M"
