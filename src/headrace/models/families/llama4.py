"""Llama 4, text part: chunks with rotation, and every fourth layer whole, without rotation and with
queries that grow with the position; one expert a token, whose input is weighed.

Experts are stacked as [E, in, out] with gate columns before up columns, or one by one.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.models.families.common import (
    ATTENTION,
    BODY,
    KINDS,
    WHOLE,
    attention_of,
    experts_of,
    head_dim_of,
    layers_of,
    model_of,
    per_expert,
)
from headrace.models.families.gguf import GGUF_RULES
from headrace.models.fields import Fields, read_rope
from headrace.models.spec import (
    Attention,
    Dense,
    LayerSpec,
    ModelSpec,
    Moe,
    QkNorm,
    SharedExpert,
    Temperature,
)
from headrace.ops.table import Router, Score
from headrace.weights.names import Layout, NameMap, rule

_L, _E = "layers.{layer}", "layers.{layer}.experts"
_F = f"{_L}.feed_forward"
_CHUNKED = "chunked_attention"
NAMES = NameMap(
    (
        *BODY,
        *ATTENTION,
        *(rule(f"{_F}.{n}_proj.weight", f"{_L}.dense.{n}") for n in KINDS),
        *(rule(f"{_F}.shared_expert.{n}_proj.weight", f"{_L}.shared.{n}") for n in KINDS),
        rule(f"{_F}.router.weight", f"{_L}.router"),
        rule(
            f"{_F}.experts.gate_up_proj",
            f"{_E}.gate",
            f"{_E}.up",
            layouts=(Layout.TRANSPOSE, Layout.HALVES),
        ),
        rule(f"{_F}.experts.down_proj", f"{_E}.down", layouts=(Layout.TRANSPOSE,)),
        *per_expert(f"{_F}.experts.{{expert}}", *(f"{n}_proj" for n in KINDS)),
    ),
    prefixes=("language_model.model.", "language_model.", "model."),
    skipped=("vision_model.", "multi_modal_projector."),
)
GGUF = NameMap(GGUF_RULES, skipped=("rope_freqs.",))


def spec_from(fields: Fields) -> ModelSpec:
    """From the text config as published."""
    count = layers_of(fields)
    activation = fields.activation()
    width = fields.count("intermediate_size")
    fields.count("num_experts_per_tok", 1, high=1)  # more would each need inputs of their own
    moe = Moe(
        experts=experts_of(fields),
        width=width,
        router=Router(top_k=1, score=Score.SIGMOID, renormalize=False),
        activation=activation,
        shared=SharedExpert(width, gated=False),
        weigh_inputs=True,
    )
    dense = Dense(fields.count("intermediate_size_mlp"), activation)
    every = fields.count("interleave_moe_layer_step", 1)
    sparse = fields.counts("moe_layers") or range(every - 1, count, every)
    blocks = [moe if i in sparse else dense for i in range(count)]
    fields.skip("for_llm_compressor", "cache_implementation")
    return model_of(fields, "llama4", map(LayerSpec, _mixers(fields), blocks))


def _mixers(fields: Fields) -> list[Attention]:
    count = layers_of(fields)
    every = fields.count("no_rope_layer_interval", 4)
    turned = fields.counts("no_rope_layers") or [int((i + 1) % every > 0) for i in range(count)]
    if len(turned) < count:
        raise fields.error("no_rope_layers", f"a number for each of {count} layers")
    chunk = fields.count("attention_chunk_size", 0, low=0)
    kinds = fields.words("layer_types", count, (_CHUNKED, WHOLE)) or tuple(
        _CHUNKED if chunk and turns else WHOLE for turns in turned[:count]
    )
    if _CHUNKED in kinds and not chunk:
        raise fields.error("attention_chunk_size", "a number of tokens")
    rope = replace(read_rope(fields, head_dim_of(fields), theta=500_000.0), interleaved=True)
    normed = fields.flag("use_qk_norm", default=True)
    heated = fields.get("attn_temperature_tuning", True)  # published as true, or as 4
    span, strength = fields.count("floor_scale", 8192), fields.number("attn_scale", 0.1)

    def mixer(kind: str, *, turns: bool) -> Attention:
        return attention_of(
            fields,
            rope=rope if turns else None,
            window=chunk if kind == _CHUNKED else 0,
            chunked=kind == _CHUNKED,
            qk_norm=QkNorm.UNIT if turns and normed else QkNorm.NONE,
            rotate_first=True,
            temperature=Temperature(span, strength) if heated and not turns else None,
        )

    return [mixer(kind, turns=bool(turns)) for kind, turns in zip(kinds, turned, strict=False)]
