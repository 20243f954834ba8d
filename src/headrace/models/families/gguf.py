"""The names that GGUF files have; a shared expert's gate is a vector there."""

from __future__ import annotations

from headrace.weights.names import Layout, rule

_L, _G = "layers.{layer}", "blk.{layer}"
_KINDS = ("gate", "up", "down")
_PARTS = (("weight", ""), ("bias", ".bias"))

GGUF_BODY = (
    rule("token_embd.weight", "embed"),
    rule("output_norm.weight", "norm"),
    rule("output.weight", "head"),
    rule(f"{_G}.attn_norm.weight", f"{_L}.mixer_norm"),
    rule(f"{_G}.ffn_norm.weight", f"{_L}.ffn_norm"),
    rule(f"{_G}.post_attention_norm.weight", f"{_L}.ffn_norm"),
)
GGUF_ATTENTION = (
    *(rule(f"{_G}.attn_{n}.{part}", f"{_L}.{n}{end}") for n in "qkv" for part, end in _PARTS),
    *(rule(f"{_G}.attn_output.{part}", f"{_L}.o{end}") for part, end in _PARTS),
    *(rule(f"{_G}.attn_{n}_norm.weight", f"{_L}.{n}_norm") for n in "qk"),
)
GGUF_FFN = tuple(rule(f"{_G}.ffn_{n}.weight", f"{_L}.dense.{n}") for n in _KINDS)
GGUF_SHARED = (
    *(rule(f"{_G}.ffn_{n}_shexp.weight", f"{_L}.shared.{n}") for n in _KINDS),
    rule(f"{_G}.ffn_gate_inp_shexp.weight", f"{_L}.shared_gate", layouts=(Layout.ONE_ROW,)),
)
GGUF_MOE = (
    *(rule(f"{_G}.ffn_gate_inp.{part}", f"{_L}.router{end}") for part, end in _PARTS),
    *(
        rule(f"{_G}.ffn_{n}_exps.{part}", f"{_L}.experts.{n}{end}")
        for n in _KINDS
        for part, end in _PARTS
    ),
    rule(
        f"{_G}.ffn_gate_up_exps.weight",
        f"{_L}.experts.gate",
        f"{_L}.experts.up",
        layouts=(Layout.HALVES,),
    ),
)
# Of routing with a bias for the choice, and of a shared expert without gate.
GGUF_EXPERTS = (
    *(rule(f"blk.{{layer}}.ffn_{n}_shexp.weight", f"{_L}.shared.{n}") for n in _KINDS),
    rule("blk.{layer}.exp_probs_b.bias", f"{_L}.correction_bias"),
    rule("blk.{layer}.exp_probs_b", f"{_L}.correction_bias"),
)
