"""Ops of the table that carry a state from token to token: a run of tokens continues what its slot
holds. C channels, K taps, G key heads or groups, H heads, D rows of a state, V its columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from headrace.ops.spans import Spans


class ConvOp(Protocol):
    def __call__(
        self,
        x_TC: Tensor,
        weight_CK: Tensor,
        bias_C: Tensor | None,
        state: Tensor,
        spans: Spans,
        *,
        silu: bool,
    ) -> Tensor:
        """Causal depthwise convolution, and silu where wanted; state [slots, C, K-1] is read and
        updated.
        """
        ...


class DeltaOp(Protocol):
    def __call__(
        self,
        q_TGD: Tensor,
        k_TGD: Tensor,
        v_THV: Tensor,
        decay_TH: Tensor,
        beta_TH: Tensor,
        state: Tensor,
        spans: Spans,
        *,
        normalize: bool,
        scale: float,
        tiled: bool = False,
    ) -> Tensor:
        """Gated delta rule, [T, H, V]; state [slots, H, D, V] is read and updated. decay may be
        [T, H, D], one of each row of the state.
        """
        ...


class SsmOp(Protocol):
    def __call__(
        self,
        x_THV: Tensor,
        b_TGD: Tensor,
        c_TGD: Tensor,
        decay_TH: Tensor,
        step_TH: Tensor,
        skip_H: Tensor,
        state: Tensor,
        spans: Spans,
    ) -> Tensor:
        """State space recurrence of Mamba 2, [T, H, V]; state [slots, H, D, V] is read and
        updated.
        """
        ...
