"""The hyper-parameters of a GGUF file as the config.json that was published for the model.
No torch.

Every key of the architecture is read, or known to have no part in inference, or inert; any other is
an error: it may change the arithmetic. More keys say where stored values differ from the published
ones: `norms_hold_one`, `decay_as_rate`, `value_heads_tiled`, `qkvz_apart`; `rope_interleave` where
rows of q and k were reordered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from headrace.errors import CheckpointError
from headrace.weights.gguf_deepseek import DEEPSEEK2, deepseek2
from headrace.weights.gguf_gemma4 import GEMMA4, gemma4
from headrace.weights.gguf_hybrid import granitehybrid, lfm2moe, nemotron_h_moe
from headrace.weights.gguf_keys import Config, Keys, Tensors, balanced, dense_first, normalised
from headrace.weights.gguf_llama4 import llama4

MAX_LAYERS = 1 << 12
_CONTROL, _USER = 3, 4  # tokenizer.ggml.token_type
_ENDS = frozenset(
    ["</s>", "<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>",
     "<|return|>", "<|call|>", "<turn|>", "<|tool_response>"]
)  # fmt: skip


def layers_of(metadata: Mapping[str, Any], where: str) -> int:
    """Layers of the model itself, without those that predict further tokens."""
    keys = Keys(metadata, where)
    if keys.architecture not in ARCHITECTURES:
        return 1 << 30
    ahead = keys.get("nextn_predict_layers", 0)
    count = keys.count("block_count")
    if count > MAX_LAYERS:
        raise keys.error("block_count", f"at most {MAX_LAYERS} layers")
    if type(ahead) is not int or not 0 <= ahead < count:
        raise keys.error("nextn_predict_layers", f"less than {count} layers")
    return count - ahead


def config_of(metadata: Mapping[str, Any], tensors: Tensors, where: str) -> Config:
    """The published keys. Raises CheckpointError for a value that cannot be right.

    An architecture that is not served is passed on by name: who asks for its family refuses it.
    """
    keys = Keys(metadata, where)
    make = ARCHITECTURES.get(keys.architecture)
    if make is None:
        return {"model_type": f"{keys.architecture} (GGUF)"}
    config = _common(keys, metadata, tensors, where) | make(keys, tensors)
    keys.finish()
    return config | _tokens(metadata)


def _common(keys: Keys, metadata: Mapping[str, Any], tensors: Tensors, where: str) -> Config:
    heads, hidden = keys.count("attention.head_count"), keys.count("embedding_length")
    if keys.architecture == DEEPSEEK2:  # lengths are those of latents
        head_dim = keys.count("rope.dimension_count")
    else:
        head_dim = keys.count("attention.key_length", max(hidden // heads, 1))
        if keys.count("attention.value_length", head_dim) != head_dim:
            raise keys.error("attention.value_length", f"{head_dim} as attention.key_length")
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(
            f"{where}: tensor 'token_embd.weight' is missing or has no two axes",
            expected="the embedding of the model's tokens",
            fix="use a GGUF file that holds a model's weights",
        )
    keys.get("block_count")
    own = keys.architecture == GEMMA4  # a number for each layer
    return {
        "hidden_size": hidden,
        "vocab_size": embedding.shape[0],
        "num_hidden_layers": layers_of(metadata, where),
        "num_attention_heads": heads,
        "num_key_value_heads": heads if own else keys.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": keys.count("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "hidden_act": "silu",
        "rope_parameters": _rope(keys, head_dim),
        "num_experts_per_tok": keys.count("expert_used_count", 1),
    }


def _rope(keys: Keys, head_dim: int) -> Config:
    rope: Config = {
        "rope_type": "default",
        "rope_theta": keys.number("rope.freq_base", 10_000.0),
        **_share(keys.count("rope.dimension_count", head_dim), head_dim),
    }
    kind = keys.get("rope.scaling.type", "none")
    if kind in ("none", "linear", "yarn"):
        original = keys.get("rope.scaling.original_context_length")
        if kind == "none":
            return rope
        rope |= {"rope_type": kind, "factor": keys.number("rope.scaling.factor")}
        return rope if kind == "linear" else rope | _yarn(keys, rope["factor"], original)
    raise keys.error("rope.scaling.type", "one of none, linear, yarn")


def _share(rotated: int, head_dim: int) -> Config:
    if rotated == head_dim:
        return {}
    share = rotated / head_dim
    # Whoever multiplies by the width and cuts must come back to the whole number.
    if head_dim * share < rotated:
        share = math.nextafter(share, 2)
    return {"partial_rotary_factor": share}


def _yarn(keys: Keys, factor: float, original: Any) -> Config:
    # gpt-oss was published with `truncate` off, for which there is no key.
    yarn: Config = {"truncate": keys.architecture != "gpt-oss"}
    if original is not None:
        yarn["original_max_position_embeddings"] = original
    for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if keys.get(f"rope.scaling.{key}") is not None:
            yarn[name] = keys.number(f"rope.scaling.{key}")
    if keys.architecture == DEEPSEEK2 and keys.get("rope.scaling.yarn_log_multiplier"):
        # Stored is a tenth of it; both are the same in what was published.
        yarn["mscale_all_dim"] = round(10 * keys.number("rope.scaling.yarn_log_multiplier"), 6)
        yarn["mscale"] = yarn["mscale_all_dim"]
    if keys.get("rope.scaling.yarn_ext_factor", 1.0) != 1.0:
        raise keys.error("rope.scaling.yarn_ext_factor", "1")
    for key in ("attn_factor", "yarn_attn_factor"):
        if keys.get(f"rope.scaling.{key}") is not None:
            times = keys.number(f"rope.scaling.{key}")
            yarn["attention_factor"] = times * (0.1 * math.log(max(factor, 1.0)) + 1.0)
    return yarn


def _tokens(metadata: Mapping[str, Any]) -> Config:
    """The tokens that end an answer: those that are named so, and control tokens by their text."""
    ends = [
        token
        for kind in ("eos", "eot", "eom")
        if type(token := metadata.get(f"tokenizer.ggml.{kind}_token_id")) is int
    ]
    texts, kinds = (metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    if isinstance(texts, list) and isinstance(kinds, list):
        paired = enumerate(zip(texts, kinds, strict=False))
        ends += [
            i
            for i, (text, kind) in paired
            if kind in (_CONTROL, _USER) and isinstance(text, str) and text in _ENDS
        ]
    first = metadata.get("tokenizer.ggml.bos_token_id")
    return {"eos_token_id": sorted(set(ends)), "bos_token_id": first}


def _expert_width(keys: Keys) -> int:
    width = keys.get("feed_forward_length")
    return keys.count("expert_feed_forward_length", width)


def _mixtral(keys: Keys, tensors: Tensors) -> Config:
    if not keys.get("expert_count"):
        raise keys.error("expert_count", "a Mixture-of-Experts model (Mixtral)")
    config: Config = {
        "model_type": "mixtral",
        "num_local_experts": keys.count("expert_count"),
        "intermediate_size": _expert_width(keys),
        "rope_interleave": True,
    }
    if keys.get("attention.sliding_window"):
        config["sliding_window"] = keys.count("attention.sliding_window")
    return config


def _qwen3(keys: Keys, tensors: Tensors) -> Config:
    width = _expert_width(keys)
    layers = keys.count("block_count")
    return {
        "model_type": "qwen3_moe",
        "num_experts": keys.count("expert_count"),
        "moe_intermediate_size": width,
        "intermediate_size": keys.count("feed_forward_length", width),
        "norm_topk_prob": normalised(keys, default=True),
        "mlp_only_layers": [i for i in range(layers) if f"blk.{i}.ffn_gate.weight" in tensors],
    }


def _olmoe(keys: Keys, tensors: Tensors) -> Config:
    clip = keys.get("attention.clamp_kqv")
    return {
        "model_type": "olmoe",
        "num_experts": keys.count("expert_count"),
        "intermediate_size": _expert_width(keys),
        "norm_topk_prob": normalised(keys, default=False),
        "clip_qkv": keys.number("attention.clamp_kqv") if clip else None,
    }


def _gpt_oss(keys: Keys, tensors: Tensors) -> Config:
    config: Config = {
        "model_type": "gpt_oss",
        "num_local_experts": keys.count("expert_count"),
        "intermediate_size": _expert_width(keys),
        "sliding_window": keys.count("attention.sliding_window"),
    }
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        config["layer_types"] = ["sliding_attention" if on else "full_attention" for on in pattern]
    return config


def _qwen35(keys: Keys, tensors: Tensors) -> Config:
    values = keys.count("ssm.time_step_rank")
    inner = keys.count("ssm.inner_size")
    if inner % values:
        raise keys.error("ssm.inner_size", f"a multiple of the {values} value heads")
    keys.get("feed_forward_length")
    return {
        "model_type": "qwen3_5_moe_text",
        "num_experts": keys.count("expert_count"),
        "moe_intermediate_size": keys.count("expert_feed_forward_length"),
        "shared_expert_intermediate_size": keys.count("expert_shared_feed_forward_length"),
        "full_attention_interval": keys.count("full_attention_interval", 4),
        "linear_num_key_heads": keys.count("ssm.group_count"),
        "linear_num_value_heads": values,
        "linear_key_head_dim": keys.count("ssm.state_size"),
        "linear_value_head_dim": inner // values,
        "linear_conv_kernel_dim": keys.count("ssm.conv_kernel"),
        "norms_hold_one": True,
        "decay_as_rate": True,
        "value_heads_tiled": True,
    }


def _qwen3next(keys: Keys, tensors: Tensors) -> Config:
    keys.get("attention.recurrent_layers")
    width = keys.get("feed_forward_length")
    return {
        **_qwen35(keys, tensors),
        "model_type": "qwen3_next",
        "value_heads_tiled": False,
        "qkvz_apart": "blk.0.attn_qkv.weight" in tensors,
        "norm_topk_prob": normalised(keys, default=True),
        "intermediate_size": width,
    }


def _glm4(keys: Keys, tensors: Tensors) -> Config:
    return {
        "model_type": "glm4_moe",
        **balanced(keys),
        **dense_first(keys),
        "norm_topk_prob": normalised(keys, default=True),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in tensors,
    }


def _dots1(keys: Keys, tensors: Tensors) -> Config:
    return {
        "model_type": "dots1",
        **balanced(keys),
        **dense_first(keys),
        "norm_topk_prob": normalised(keys, default=False),
    }


def _minimax(keys: Keys, tensors: Tensors) -> Config:
    keys.get("feed_forward_length")
    config = balanced(keys)
    return {
        "model_type": "minimax_m2",
        "num_local_experts": config["n_routed_experts"],
        "intermediate_size": config["moe_intermediate_size"],
        "routed_scaling_factor": config["routed_scaling_factor"],
        "norm_topk_prob": normalised(keys, default=True),
    }


def _qwen2(keys: Keys, tensors: Tensors) -> Config:
    shared = tensors.get("blk.0.ffn_down_shexp.weight")
    width = shared.shape[-1] if shared is not None else None
    return {
        "model_type": "qwen2_moe",
        "num_experts": keys.count("expert_count"),
        "moe_intermediate_size": _expert_width(keys),
        "shared_expert_intermediate_size": keys.count("expert_shared_feed_forward_length", width),
        "intermediate_size": keys.count("feed_forward_length"),
        "norm_topk_prob": normalised(keys, default=False),
        "qkv_bias": "blk.0.attn_q.bias" in tensors,
    }


ARCHITECTURES: Mapping[str, Callable[[Keys, Tensors], Config]] = {
    DEEPSEEK2: deepseek2,
    "dots1": _dots1,
    GEMMA4: gemma4,
    "glm4moe": _glm4,
    "granitehybrid": granitehybrid,
    "lfm2moe": lfm2moe,
    "llama": _mixtral,
    "llama4": llama4,
    "minimax-m2": _minimax,
    "nemotron_h_moe": nemotron_h_moe,
    "qwen2moe": _qwen2,
    "qwen3moe": _qwen3,
    "olmoe": _olmoe,
    "gpt-oss": _gpt_oss,
    "qwen35moe": _qwen35,
    "qwen3next": _qwen3next,
}
