"""The tensors of Gemma 4 with experts: two names a norm, and experts as [E, out, in] with gate rows
before up rows.
"""

from __future__ import annotations

from headrace.models.families.common import ATTENTION, FFN, KINDS, QK_NORM, per_expert, stacked
from headrace.models.families.gguf import GGUF_RULES
from headrace.weights.names import NameMap, rule

_L, _E = "layers.{layer}", "layers.{layer}.experts"
NAMES = NameMap(
    (
        rule("embed_tokens.weight", "embed"),
        rule("norm.weight", "norm"),
        rule("lm_head.weight", "head"),
        *ATTENTION,
        *QK_NORM,
        *FFN,
        *(
            rule(f"{_L}.{stored}.weight", f"{_L}.{name}")
            for stored, name in (
                ("input_layernorm", "mixer_norm"),
                ("post_attention_layernorm", "behind_mixer_norm"),
                ("pre_feedforward_layernorm", "dense_norm"),
                ("post_feedforward_layernorm_1", "behind_dense_norm"),
                ("pre_feedforward_layernorm_2", "ffn_norm"),
                ("post_feedforward_layernorm_2", "behind_experts_norm"),
                ("post_feedforward_layernorm", "behind_ffn_norm"),
                ("router.proj", "router"),
            )
        ),
        rule(f"{_L}.layer_scalar", f"{_L}.scale"),
        rule(f"{_L}.router.scale", f"{_L}.router_norm"),
        rule(f"{_L}.router.per_expert_scale", f"{_L}.expert_scales"),
        *stacked(_E),
        *per_expert(f"{_E}.{{expert}}", *(f"{n}_proj" for n in KINDS)),
    ),
    prefixes=("model.language_model.", "model."),
    skipped=tuple(f"model.{part}." for part in ("vision_tower", "embed_vision"))
    + tuple(f"model.{part}." for part in ("audio_tower", "embed_audio")),
)
_G = "blk.{layer}"
GGUF_NAMES = NameMap(
    (
        *(
            rule(f"{_G}.{stored}", f"{_L}.{name}")
            for stored, name in (
                ("post_attention_norm.weight", "behind_mixer_norm"),
                ("ffn_norm.weight", "dense_norm"),
                ("post_ffw_norm_1.weight", "behind_dense_norm"),
                ("pre_ffw_norm_2.weight", "ffn_norm"),
                ("post_ffw_norm_2.weight", "behind_experts_norm"),
                ("post_ffw_norm.weight", "behind_ffn_norm"),
                ("layer_output_scale.weight", "scale"),
                ("ffn_gate_inp.scale", "router_norm"),
                ("ffn_down_exps.scale", "expert_scales"),
            )
        ),
        *GGUF_RULES,
    ),
    skipped=("rope_freqs.",),
)
