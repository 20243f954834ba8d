"""What flows through a forward pass besides activations: the batch, the caches, the experts'
seam.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from headrace.ops.spans import Spans
from headrace.ops.table import Routing


@dataclass(frozen=True, slots=True)
class Batch:
    """One step as tensors. tokens_T, positions_T: int64; rows_N: int64, the tokens whose logits are
    wanted. windows: the same spans over the blocks of layers with a window, by its size.
    """

    tokens_T: Tensor
    positions_T: Tensor
    rows_N: Tensor
    spans: Spans
    windows: Mapping[int, Spans] = field(default_factory=dict)

    def spans_of(self, own: LayerState) -> Spans:
        """As a layer sees them that keeps its state there."""
        if isinstance(own, KvPool) and own.window is not None:
            return self.windows[own.window]
        return self.spans


@dataclass(frozen=True, slots=True)
class KvPool:
    """keys: [slots, kv heads, head dim], values: [slots, kv heads, value dim]; slot = block *
    block_size + offset. `latent`: values are the first channels of the keys.
    """

    keys: Tensor
    values: Tensor
    window: int | None = None  # tokens looked back at, where that is not all: blocks of their own
    latent: bool = False

    @property
    def stored(self) -> tuple[Tensor, ...]:
        """Each element once."""
        return (self.keys,) if self.latent else (self.keys, self.values)


@dataclass(frozen=True, slots=True)
class RecurrentPool:
    """matrix: float32 [slots, heads, key dim, value dim], None for a convolution alone; conv:
    float32 [slots, channels, kernel - 1].
    """

    matrix: Tensor | None
    conv: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.conv,) if self.matrix is None else (self.matrix, self.conv)


LayerState = KvPool | RecurrentPool | None
State = Sequence[LayerState]  # one per layer


class Experts(Protocol):
    """Runs the routed experts of a layer, wherever they lie."""

    def __call__(self, layer: int, x_TD: Tensor, routing: Routing) -> Tensor: ...
