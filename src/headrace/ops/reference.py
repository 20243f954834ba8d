"""The table in plain PyTorch: slow everywhere, and the meaning of every other one."""

from __future__ import annotations

from headrace.ops.activation.reference import arrange, clamp, decay, gate, multiply, sigmoid
from headrace.ops.attention.reference import attention
from headrace.ops.conv.reference import conv
from headrace.ops.delta.reference import delta
from headrace.ops.entry.reference import angles, best, lookup
from headrace.ops.experts.reference import combine, experts, experts_parts
from headrace.ops.kv.reference import store_kv
from headrace.ops.latent.reference import per_head
from headrace.ops.linear.reference import linear
from headrace.ops.norm.reference import gated_rms_norm, layer_norm, rms_norm
from headrace.ops.plan.reference import observe, plan
from headrace.ops.residual.reference import add
from headrace.ops.rope.reference import rope
from headrace.ops.route.reference import route
from headrace.ops.scale.reference import scale, scale_rows, temperature
from headrace.ops.ssm.reference import ssm
from headrace.ops.table import Ops


def reference_ops() -> Ops:
    """Every op as its reference."""
    return Ops(
        linear=linear,
        per_head=per_head,
        add=add,
        scale=scale,
        scale_rows=scale_rows,
        temperature=temperature,
        rms_norm=rms_norm,
        layer_norm=layer_norm,
        gated_rms_norm=gated_rms_norm,
        gate=gate,
        sigmoid=sigmoid,
        decay=decay,
        clamp=clamp,
        multiply=multiply,
        arrange=arrange,
        lookup=lookup,
        angles=angles,
        best=best,
        rope=rope,
        store_kv=store_kv,
        attention=attention,
        conv=conv,
        delta=delta,
        ssm=ssm,
        route=route,
        experts=experts,
        experts_parts=experts_parts,
        combine=combine,
        plan=plan,
        observe=observe,
    )
