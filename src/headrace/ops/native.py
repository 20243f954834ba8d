"""The table over the native worker pool: float32 activations, weights where they lie."""

from __future__ import annotations

from headrace._native import Pool
from headrace.ops.activation.native import (
    NativeArrange,
    NativeClamp,
    NativeDecay,
    NativeGate,
    NativeMultiply,
)
from headrace.ops.attention.native import NativeAttention
from headrace.ops.conv.native import NativeConv
from headrace.ops.delta.native import NativeDelta
from headrace.ops.entry.native import NativeAngles, NativeBest, NativeLookup
from headrace.ops.experts.native import NativeCombine, NativeExperts, NativeExpertsParts
from headrace.ops.kv.native import NativeStoreKv
from headrace.ops.latent.native import NativePerHead
from headrace.ops.linear.native import NativeLinear
from headrace.ops.norm.native import NativeGatedRmsNorm, NativeLayerNorm, NativeRmsNorm
from headrace.ops.plan.native import NativeObserve, NativePlan
from headrace.ops.residual.native import NativeAdd
from headrace.ops.rope.native import NativeRope
from headrace.ops.route.native import NativeRoute
from headrace.ops.scale.native import NativeScale, NativeScaleRows, NativeTemperature
from headrace.ops.ssm.native import NativeSsm
from headrace.ops.table import Ops


def native_ops(pool: Pool, *, exact: bool) -> Ops:
    """`exact`: activations are never rounded to bfloat16. The pool must outlive the table."""
    gate = NativeGate(pool)
    return Ops(
        linear=NativeLinear(pool, exact=exact),
        per_head=NativePerHead(pool, exact=exact),
        add=NativeAdd(pool),
        scale=NativeScale(pool),
        scale_rows=NativeScaleRows(pool),
        temperature=NativeTemperature(pool),
        rms_norm=NativeRmsNorm(pool),
        layer_norm=NativeLayerNorm(pool),
        gated_rms_norm=NativeGatedRmsNorm(pool),
        gate=gate,
        sigmoid=gate.sigmoid,
        decay=NativeDecay(pool),
        clamp=NativeClamp(pool),
        multiply=NativeMultiply(pool),
        arrange=NativeArrange(pool),
        lookup=NativeLookup(pool),
        angles=NativeAngles(pool),
        best=NativeBest(pool),
        rope=NativeRope(pool),
        store_kv=NativeStoreKv(pool),
        attention=NativeAttention(pool),
        conv=NativeConv(pool),
        delta=NativeDelta(pool),
        ssm=NativeSsm(pool),
        route=NativeRoute(pool),
        experts=NativeExperts(pool, exact=exact),
        experts_parts=NativeExpertsParts(pool, exact=exact),
        combine=NativeCombine(pool),
        plan=NativePlan(pool),
        observe=NativeObserve(pool),
    )
