"""What families with Mamba 2 layers share: its tensors, and settings that have no part here."""

from __future__ import annotations

from headrace.models.fields import Fields
from headrace.weights.names import Layout, Rule, rule

_L = "layers.{layer}"
_NO_LIMITS = ([0.0, float("inf")], [0.0, {"__float__": "Infinity"}])
# Of initialisation, of training, of kernels, of prediction ahead, or told by other keys.
_NO_PART = (
    *("chunk_size", "mamba_chunk_size", "use_mamba_kernels", "mamba_ssm_cache_dtype"),
    *("time_step_floor", "time_step_max", "time_step_min", "rescale_prenorm_residual"),
    *("residual_in_fp32", "num_logits_to_keep", "moe_shared_expert_overlap", "expand"),
    *("mtp_hybrid_override_pattern", "mtp_layers_block_type", "mamba_proj_bias", "norm_eps"),
    *("hidden_act", "intermediate_size", "partial_rotary_factor", "rope_theta", "sliding_window"),
)
_BIASED = (("weight", ""), ("bias", ".bias"))


def mamba_named(stem: str) -> tuple[Rule, ...]:
    """The tensors of a layer's recurrence, under `layers.N.{stem}.`."""
    at = f"{_L}.{stem}"
    return (
        *(rule(f"{at}.in_proj.{part}", f"{_L}.zxbcdt{end}") for part, end in _BIASED),
        rule(f"{at}.conv1d.weight", f"{_L}.conv", layouts=(Layout.DROP_MIDDLE,)),
        rule(f"{at}.conv1d.bias", f"{_L}.conv.bias"),
        rule(f"{at}.A_log", f"{_L}.a_log"),
        rule(f"{at}.dt_bias", f"{_L}.dt_bias"),
        rule(f"{at}.D", f"{_L}.skip"),
        rule(f"{at}.norm.weight", f"{_L}.ssm_norm"),
        *(rule(f"{at}.out_proj.{part}", f"{_L}.o{end}") for part, end in _BIASED),
    )


_G = "blk.{layer}"
GGUF_MAMBA = (
    rule(f"{_G}.ssm_in.weight", f"{_L}.zxbcdt"),
    rule(f"{_G}.ssm_conv1d.weight", f"{_L}.conv"),
    rule(f"{_G}.ssm_conv1d.bias", f"{_L}.conv.bias"),
    rule(f"{_G}.ssm_a", f"{_L}.rate", layouts=(Layout.FLATTEN,)),
    rule(f"{_G}.ssm_dt.bias", f"{_L}.dt_bias"),
    rule(f"{_G}.ssm_d", f"{_L}.skip", layouts=(Layout.FLATTEN,)),
    rule(f"{_G}.ssm_norm.weight", f"{_L}.ssm_norm", layouts=(Layout.FLATTEN,)),
    rule(f"{_G}.ssm_out.weight", f"{_L}.o"),
)


def check_steps(fields: Fields) -> None:
    """Raises CheckpointError where steps are limited; passes over what changes no result."""
    # Infinity is no JSON: some files have it all the same, some in a table.
    if fields.get("time_step_limit", _NO_LIMITS[0]) not in _NO_LIMITS:
        raise fields.error("time_step_limit", "[0, Infinity]")
    fields.skip(*_NO_PART)
