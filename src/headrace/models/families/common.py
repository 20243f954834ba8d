"""Rows of name tables that most families share."""

from __future__ import annotations

from headrace.weights.names import Rule, rule

_L = "layers.{layer}"

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
FFN = tuple(rule(f"{_L}.mlp.{n}_proj.weight", f"{_L}.dense.{n}") for n in ("gate", "up", "down"))


def per_expert(stem: str, gate: str, up: str, down: str) -> tuple[Rule, ...]:
    """Experts stored one by one; `stem` holds {layer} and {expert}."""
    named = (("gate", gate), ("up", up), ("down", down))
    return tuple(rule(f"{stem}.{n}.weight", f"{_L}.experts.{kind}") for kind, n in named)
