"""A table whose ops charge a virtual clock with the bytes they read and the operations they do.

Results are those of the table underneath. Charged are matrix products, experts and attention; the
rest is small beside them.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from headrace.device.clock import VirtualClock
from headrace.formats.packed import nbytes_of
from headrace.ops.spans import Spans
from headrace.ops.table import ExpertRows, HeadLinear, Linear, Ops, Routing


def charged(ops: Ops, clock: VirtualClock) -> Ops:
    """`ops`, each call charged to `clock`."""
    kernel = clock.kernel

    def linear(x_TK: Tensor, w: Linear) -> Tensor:
        weights = w.rows * w.columns
        nbytes = sum(nbytes_of(part) for part in w.parts) + x_TK.numel() * 4
        kernel(nbytes, 2 * x_TK.shape[0] * weights)
        return ops.linear(x_TK, w)

    def per_head(x_THK: Tensor, w: HeadLinear, *, keep: int = 0) -> Tensor:
        weights = len(w.parts) * w.inputs * w.outputs
        nbytes = sum(nbytes_of(part) for part in w.parts) + x_THK.numel() * 4
        kernel(nbytes, 2 * x_THK.shape[0] * weights)
        return ops.per_head(x_THK, w, keep=keep)

    def experts(x_TD: Tensor, routing: Routing, rows: ExpertRows) -> Tensor:
        kernel(*_expert_work(routing.ids_TX, rows))
        return ops.experts(x_TD, routing, rows)

    def experts_parts(x_TD: Tensor, ids_TX: Tensor, rows: ExpertRows, parts_TXD: Tensor) -> None:
        kernel(*_expert_work(ids_TX, rows))
        ops.experts_parts(x_TD, ids_TX, rows, parts_TXD)

    def attention(
        q_THD: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        spans: Spans,
        *,
        scale: float,
        window: int = 0,
        chunked: bool = False,
        sinks_H: Tensor | None = None,
    ) -> Tensor:
        keys = int(spans.contexts_S.sum()) + q_THD.shape[0]
        own = v_pool.data_ptr() != k_pool.data_ptr()  # else values are a part of the keys
        width = k_pool[0].numel() + own * v_pool[0].numel()
        seen = keys * q_THD.shape[0] * q_THD.shape[1] * q_THD.shape[2]
        kernel(keys * width * k_pool.element_size(), 4 * seen)
        return ops.attention(
            q_THD,
            k_pool,
            v_pool,
            spans,
            scale=scale,
            window=window,
            chunked=chunked,
            sinks_H=sinks_H,
        )

    return replace(
        ops,
        linear=linear,
        per_head=per_head,
        experts=experts,
        experts_parts=experts_parts,
        attention=attention,
    )


def _expert_work(ids_TX: Tensor, rows: ExpertRows) -> tuple[int, int]:
    """(bytes, operations) of the experts that are chosen: each is read once."""
    ids = [e for e in ids_TX.flatten().tolist() if e >= 0]
    gate = rows.gate[0]
    kinds = [kind for kind in (rows.gate, rows.up, rows.down) if kind]
    weights = len(kinds) * gate.shape[0] * gate.shape[1]
    nbytes = sum(nbytes_of(kind[e]) for e in set(ids) for kind in kinds)
    return nbytes, 2 * len(ids) * weights
