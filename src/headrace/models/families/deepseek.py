"""What families with DeepSeek's latent attention share, and DeepSeek-V3 itself: R1, V3.1 and
Kimi-K2 are the same with other numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headrace.models.families.balanced import experts_named, feed_forward_of, moe_of
from headrace.models.families.common import BODY, FFN, model_of
from headrace.models.families.gguf import GGUF_RULES
from headrace.models.fields import Fields, read_rope, yarn_mscale
from headrace.models.spec import Ffn, LatentAttention, LayerSpec, ModelSpec, Yarn
from headrace.weights.names import Layout, NameMap, rule

_L = "layers.{layer}"
_A = f"{_L}.self_attn"
LATENT = (
    *(
        rule(f"{_A}.{stored}.{part}", f"{_L}.{name}{end}")
        for stored, name in (
            ("q_proj", "q"),
            ("q_a_proj", "q_a"),
            ("q_a_layernorm", "q_a_norm"),
            ("q_b_proj", "q_b"),
            ("kv_a_proj_with_mqa", "kv_a"),
            ("kv_a_layernorm", "kv_norm"),
            ("kv_b_proj", "kv_b"),
            ("o_proj", "o"),
        )
        for part, end in (("weight", ""), ("bias", ".bias"))
    ),
)
RULES = (*BODY, *LATENT, *FFN, *experts_named())
NAMES = NameMap(
    RULES,
    prefixes=("model.", "language_model.model.", "language_model."),
    skipped=tuple(
        f"{at}{part}." for at in ("", "model.") for part in ("vision_tower", "mm_projector")
    ),
)
_G = "blk.{layer}"
GGUF = NameMap(
    (
        *GGUF_RULES,
        *(
            rule(f"{_G}.attn_{stored}.weight", f"{_L}.{name}")
            for stored, name in (
                ("q_a", "q_a"),
                ("q_a_norm", "q_a_norm"),
                ("q_b", "q_b"),
                ("kv_a_mqa", "kv_a"),
                ("kv_a_norm", "kv_norm"),
                ("kv_b", "kv_b"),
            )
        ),
        *(rule(f"{_G}.attn_{n}_b.weight", f"{_L}.{n}_b", layouts=(Layout.STACKED,)) for n in "kv"),
    )
)
NORM_EPS = 1e-6  # of the latents' norms, whatever `rms_norm_eps` is
# Of training, or repeated by other keys.
_NO_PART = ("aux_loss_alpha", "seq_aux", "head_dim", "qk_head_dim", "q_head_dim", "num_mtp_layers")


def latent_of(
    fields: Fields, *, known: tuple[str, ...] = (), of_head: bool = False
) -> LatentAttention:
    """The numbers every latent attention has. `known`: more keys of the rope's table, whose share
    is one of the whole head where `of_head`.
    """
    fields.skip(*_NO_PART)
    heads = fields.count("num_attention_heads")
    if fields.count("num_key_value_heads", heads) != heads:
        raise fields.error("num_key_value_heads", f"{heads}, one for each head")
    key_dim, rotated = fields.count("qk_nope_head_dim"), fields.count("qk_rope_head_dim")
    width = key_dim + rotated if of_head else rotated
    rope = read_rope(fields, width, theta=10_000.0, partial=rotated / width, known=known)
    if rope.rotated != rotated:
        raise fields.error("qk_rope_head_dim", f"{rope.rotated}, the share that is rotated")
    biased = fields.flag("attention_bias", default=False)
    return LatentAttention(
        heads=heads,
        rank=fields.count("kv_lora_rank"),
        query_rank=fields.count("q_lora_rank", 0, low=0),
        key_dim=key_dim,
        value_dim=fields.count("v_head_dim"),
        scale=(key_dim + rotated) ** -0.5 * _stretch(fields, rope.scaling),
        rope=replace(rope, interleaved=fields.flag("rope_interleave", default=True)),
        eps=NORM_EPS,
        bias=biased,
        out_bias=biased,
        split=fields.flag("kv_b_split", default=False),
    )


def _stretch(fields: Fields, scaling: object) -> float:
    """YaRN's factor of queries and of keys that is not in the rotation."""
    table = fields.table("rope_parameters") or fields.table("rope_scaling")
    if table is None or not isinstance(scaling, Yarn) or not table.get("mscale_all_dim"):
        return 1.0
    return yarn_mscale(scaling.factor, table.number("mscale_all_dim")) ** 2


def latent_model(
    fields: Fields, family: str, mixer: LatentAttention, blocks: Iterable[Ffn]
) -> ModelSpec:
    """One kind of attention before all blocks."""
    return model_of(fields, family, (LayerSpec(mixer, block) for block in blocks))


def spec_from(fields: Fields) -> ModelSpec:
    """From a config as published."""
    blocks = feed_forward_of(fields, moe_of(fields), first=3)
    return latent_model(fields, "deepseek_v3", latent_of(fields), blocks)
