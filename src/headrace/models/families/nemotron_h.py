"""Nemotron-H with experts (Nemotron 3 Nano): each layer is a Mamba 2 recurrence, attention without
rotation, experts, or a dense block. Feed-forward parts square what is above zero, and have no gate:
their up is our gate, the matrix that the activation takes.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.models.families.balanced import moe_of
from headrace.models.families.common import attention_of, model_of
from headrace.models.families.gguf import GGUF_RULES
from headrace.models.families.mamba import GGUF_MAMBA, check_steps, mamba_named
from headrace.models.fields import Fields
from headrace.models.spec import Dense, LayerSpec, ModelSpec, SharedExpert, Ssm
from headrace.ops.table import Activation
from headrace.weights.names import NameMap, rule

_L = "layers.{layer}"
_M = f"{_L}.mixer"
_PARTS = (("gate", "up_proj"), ("down", "down_proj"))
NAMES = NameMap(
    (
        rule("embeddings.weight", "embed"),
        rule("norm_f.weight", "norm"),
        rule("lm_head.weight", "head"),
        rule(f"{_L}.norm.weight", f"{_L}.norm"),
        *mamba_named("mixer"),
        *(rule(f"{_M}.{n}_proj.weight", f"{_L}.{n}") for n in "qkvo"),
        *(rule(f"{_M}.{stored}.weight", f"{_L}.dense.{name}") for name, stored in _PARTS),
        *(
            rule(f"{_M}.experts.{{expert}}.{stored}.weight", f"{_L}.experts.{name}")
            for name, stored in _PARTS
        ),
        *(
            rule(f"{_M}.shared_experts.{stored}.weight", f"{_L}.shared.{name}")
            for name, stored in _PARTS
        ),
        rule(f"{_M}.gate.weight", f"{_L}.router"),
        rule(f"{_M}.gate.e_score_correction_bias", f"{_L}.correction_bias"),
    ),
    prefixes=("backbone.", "model."),
    skipped=("mtp.",),
)
_G = "blk.{layer}"
GGUF_NAMES = NameMap(
    (
        # Before the rules that all families share: the first that fits is taken.
        rule(f"{_G}.attn_norm.weight", f"{_L}.norm"),
        *(
            rule(f"{_G}.ffn_{stored}{end}.weight", f"{_L}.{part}.{name}")
            for end, part in (("", "dense"), ("_exps", "experts"), ("_shexp", "shared"))
            for name, stored in (("gate", "up"), ("down", "down"))
        ),
        *GGUF_MAMBA,
        *GGUF_RULES,
    )
)
_KINDS = {
    "M": ("linear_attention", "mamba"),
    "E": ("moe",),
    "*": ("full_attention", "attention"),
    "-": ("mlp",),
}


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    check_steps(fields)
    pattern = _pattern(fields)
    ssm = Ssm(
        heads=fields.count("mamba_num_heads"),
        head_dim=fields.count("mamba_head_dim"),
        groups=fields.divisor("n_groups", fields.count("mamba_num_heads")),
        state=fields.count("ssm_state_size"),
        kernel=fields.count("conv_kernel", low=2),
        conv_bias=fields.flag("use_conv_bias", default=True),
        bias=fields.flag("use_bias", default=False),
        rate=fields.flag("decay_as_rate", default=False),
    )
    fields.fixed({"mamba_hidden_act": "silu", "mlp_hidden_act": "relu2"})
    attention = attention_of(fields, rope=None)
    shared = SharedExpert(fields.count("moe_shared_expert_intermediate_size"), gated=False)
    layers = {"M": LayerSpec(ssm, None), "*": LayerSpec(attention, None)}
    if "E" in pattern:
        moe = replace(moe_of(fields, activation=Activation.RELU_SQUARED), shared=shared)
        layers["E"] = LayerSpec(None, moe)
    if "-" in pattern:
        dense = Dense(fields.count("intermediate_size"), Activation.RELU_SQUARED)
        layers["-"] = LayerSpec(None, dense)
    found = [layers[kind] for kind in pattern]
    return model_of(fields, "nemotron_h", found, eps="layer_norm_epsilon")


def _pattern(fields: Fields) -> str:
    """A letter a layer, from `hybrid_override_pattern` or the list that says the same in words."""
    letters = {word: letter for letter, words in _KINDS.items() for word in words}
    key = "layers_block_type" if fields.get("layers_block_type") else "layer_types"
    named = fields.get(key)
    count = len(named) if isinstance(named, list) else 0
    words = fields.words(key, count, tuple(letters)) if named else None
    pattern = fields.get("hybrid_override_pattern")
    if words is not None:
        pattern = "".join(letters[word] for word in words)
    if not isinstance(pattern, str) or not pattern or set(pattern) - set(_KINDS):
        raise fields.error("hybrid_override_pattern", "a letter of M, E, *, - for each layer")
    if fields.count("num_hidden_layers", len(pattern)) != len(pattern):
        raise fields.error("num_hidden_layers", f"{len(pattern)}, as the pattern has")
    return pattern
