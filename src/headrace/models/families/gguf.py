"""The names that GGUF files have, whatever the family: a rule for what a model has not is never
met. A shared expert's gate is a vector there.
"""

from __future__ import annotations

from headrace.models.families.common import KINDS
from headrace.weights.names import Layout, NameMap, rule

_L, _G = "layers.{layer}", "blk.{layer}"
_PARTS = (("weight", ""), ("bias", ".bias"))

GGUF_RULES = (
    rule("token_embd.weight", "embed"),
    rule("output_norm.weight", "norm"),
    rule("output.weight", "head"),
    rule(f"{_G}.attn_norm.weight", f"{_L}.mixer_norm"),
    rule(f"{_G}.ffn_norm.weight", f"{_L}.ffn_norm"),
    rule(f"{_G}.post_attention_norm.weight", f"{_L}.ffn_norm"),
    *(rule(f"{_G}.attn_{n}.{part}", f"{_L}.{n}{end}") for n in "qkv" for part, end in _PARTS),
    *(rule(f"{_G}.attn_output.{part}", f"{_L}.o{end}") for part, end in _PARTS),
    *(rule(f"{_G}.attn_{n}_norm.weight", f"{_L}.{n}_norm") for n in "qk"),
    *(rule(f"{_G}.ffn_{n}.weight", f"{_L}.dense.{n}") for n in KINDS),
    *(rule(f"{_G}.ffn_{n}_shexp.weight", f"{_L}.shared.{n}") for n in KINDS),
    rule(f"{_G}.ffn_gate_inp_shexp.weight", f"{_L}.shared_gate", layouts=(Layout.ONE_ROW,)),
    *(rule(f"{_G}.ffn_gate_inp.{part}", f"{_L}.router{end}") for part, end in _PARTS),
    *(rule(f"{_G}.exp_probs_b{end}", f"{_L}.correction_bias") for end in (".bias", "")),
    *(
        rule(f"{_G}.ffn_{n}_exps.{part}", f"{_L}.experts.{n}{end}")
        for n in KINDS
        for part, end in _PARTS
    ),
    rule(
        f"{_G}.ffn_gate_up_exps.weight",
        f"{_L}.experts.gate",
        f"{_L}.experts.up",
        layouts=(Layout.HALVES,),
    ),
)
GGUF_NAMES = NameMap(GGUF_RULES)
