"""What most families share: rows of their name tables, and the config keys that mean the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headrace.models.fields import Fields
from headrace.models.spec import Attention, LayerSpec, ModelSpec
from headrace.weights.names import Layout, Rule, rule

MOST_CONTEXT = 1 << 24  # tokens: the longest published are 10 million
_L = "layers.{layer}"
KINDS = ("gate", "up", "down")
WINDOW, WHOLE = "sliding_attention", "full_attention"

BODY = (
    rule("embed_tokens.weight", "embed"),
    rule("norm.weight", "norm"),
    rule("lm_head.weight", "head"),
    rule(f"{_L}.input_layernorm.weight", f"{_L}.mixer_norm"),
    rule(f"{_L}.post_attention_layernorm.weight", f"{_L}.ffn_norm"),
)
ATTENTION = (
    *(rule(f"{_L}.self_attn.{n}_proj.weight", f"{_L}.{n}") for n in "qkvo"),
    *(rule(f"{_L}.self_attn.{n}_proj.bias", f"{_L}.{n}.bias") for n in "qkvo"),
)
QK_NORM = (
    rule(f"{_L}.self_attn.q_norm.weight", f"{_L}.q_norm"),
    rule(f"{_L}.self_attn.k_norm.weight", f"{_L}.k_norm"),
)
FFN = tuple(rule(f"{_L}.mlp.{n}_proj.weight", f"{_L}.dense.{n}") for n in KINDS)


def per_expert(stem: str, gate: str, up: str, down: str) -> tuple[Rule, ...]:
    """Experts stored one by one; `stem` holds {layer} and {expert}."""
    named = (("gate", gate), ("up", up), ("down", down))
    return tuple(rule(f"{stem}.{n}.weight", f"{_L}.experts.{kind}") for kind, n in named)


def stacked(stem: str) -> tuple[Rule, ...]:
    """Experts stored as [E, out, in] with gate rows before up rows; `stem` holds {layer}."""
    at = f"{_L}.experts"
    return (
        rule(f"{stem}.gate_up_proj", f"{at}.gate", f"{at}.up", layouts=(Layout.HALVES,)),
        rule(f"{stem}.down_proj", f"{at}.down"),
    )


def attention_of(fields: Fields, **more: Any) -> Attention:
    """The numbers every grouped-query attention has; `more` overrides or adds to them."""
    heads = fields.count("num_attention_heads")
    head_dim = head_dim_of(fields)
    biased = fields.flag("attention_bias", default=False)
    values: dict[str, Any] = {
        "heads": heads,
        "kv_heads": fields.divisor("num_key_value_heads", heads, heads),
        "head_dim": head_dim,
        "value_dim": head_dim,
        "scale": head_dim**-0.5,
        "bias": biased,
        "out_bias": biased,
    }
    return Attention(**{**values, **more})


def model_of(
    fields: Fields,
    family: str,
    layers: Iterable[LayerSpec],
    *,
    eps: str = "rms_norm_eps",
    tied: bool = False,
    **more: Any,
) -> ModelSpec:
    """The numbers every model has, around its layers; `eps`: the key of the norms' epsilon,
    `tied`: where `tie_word_embeddings` is absent.
    """
    return ModelSpec(
        family=family,
        hidden=fields.count("hidden_size"),
        vocab=fields.count("vocab_size"),
        max_context=fields.count("max_position_embeddings", high=MOST_CONTEXT),
        eps=fields.number(eps),
        tied=fields.flag("tie_word_embeddings", default=tied),
        layers=tuple(layers),
        ahead=fields.count("num_nextn_predict_layers", 0, low=0, high=64),
        **more,
    )


def head_dim_of(fields: Fields) -> int:
    return fields.count(
        "head_dim", fields.count("hidden_size") // fields.count("num_attention_heads")
    )


def experts_of(fields: Fields) -> int:
    """Two spellings are about."""
    key = "num_local_experts" if fields.get("num_experts") is None else "num_experts"
    return fields.count(key, high=1 << 16)


def top_k_of(fields: Fields, default: int | None = None) -> int:
    return fields.count("num_experts_per_tok", default, high=experts_of(fields))


def windowed_layers(fields: Fields, otherwise: Sequence[bool]) -> list[bool]:
    """Which layers see a window alone: `layer_types`, or `otherwise` where that is absent."""
    kinds = fields.words("layer_types", layers_of(fields), (WINDOW, WHOLE))
    return [*otherwise] if kinds is None else [kind == WINDOW for kind in kinds]


def layers_of(fields: Fields) -> int:
    return fields.count("num_hidden_layers", high=1 << 12)
