"""Facts about a model that every decision needs, in bytes and counts. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

SLOT_ALIGN = 256  # bytes


class ExpertKey(NamedTuple):
    layer: int
    expert: int


@dataclass(frozen=True, slots=True)
class KvNeed:
    """Paged keys and values of one attention layer, in elements per token."""

    key: int  # kv heads * head dim
    value: int
    window: int | None = None  # tokens ever looked back at, itself counted
    kv_heads: int = 1  # both are [kv heads, width]
    latent: int = 0  # channels of a key that are its value: none is kept apart
    work: int = 0  # operations of a token with a key that heads share; 0 = as any other's


@dataclass(frozen=True, slots=True)
class RecurrentNeed:
    """Fixed-size float32 state of one recurrent layer, per sequence, in elements."""

    matrix: tuple[int, ...] | None  # heads, key dim, value dim; None = the convolution's alone
    conv: tuple[int, ...]  # channels, kernel - 1

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of its tensors."""
        return (self.conv,) if self.matrix is None else (self.matrix, self.conv)

    @property
    def elements(self) -> int:
        return sum(prod(shape) for shape in self.shapes)


StateNeed = KvNeed | RecurrentNeed


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a checkpoint is, before a byte of its weights is read."""

    family: str
    layers: int
    hidden: int
    vocab: int
    max_context: int
    state: tuple[StateNeed | None, ...]  # one per layer
    experts: tuple[int, ...]  # routed experts of each layer, 0 = dense
    top_k: tuple[int, ...]
    expert_bytes: tuple[int, ...]  # bytes of one expert's row, per layer; on average, rounded up
    total_bytes: int  # all weights, as they lie in memory
    dtype: str  # the prevailing weight format: float32, bfloat16, float16
    embedding_bytes: int = 0  # of an embedding that is not the output head as well
    # Weights by number, whatever their formats; None and () = all are of `dtype`.
    dense_weights: int | None = None  # neither in routed experts nor in that embedding
    expert_weights: tuple[int, ...] = ()  # of one expert, per layer
    widest_row: int = 0  # bytes of any row in a slot, where that is more than those above say

    @property
    def prefill_bytes(self) -> int:
        """Weights that a long prompt reads: all but the embedding, of which it reads rows."""
        return self.total_bytes - self.embedding_bytes

    @property
    def decode_bytes(self) -> int:
        """Weights that one token reads: the dense ones, and its top-k experts in each layer."""
        rows = zip(self.experts, self.top_k, self.expert_bytes, strict=True)
        return self.prefill_bytes - sum((experts - k) * row for experts, k, row in rows)

    @property
    def active_weights(self) -> int:
        """Weights that meet each token: twice this is its operations, attention aside."""
        rows = sum(k * self.row_weights(layer) for layer, k in enumerate(self.top_k))
        return self.stem_weights + rows

    @property
    def stem_weights(self) -> int:
        """Weights that meet each token of a prompt whatever it is routed to."""
        if self.dense_weights is not None:
            return self.dense_weights
        return (self.prefill_bytes - self.experts_bytes) // self._element_bytes

    def row_weights(self, layer: int) -> int:
        """Weights of one expert of this layer."""
        if self.expert_weights:
            return self.expert_weights[layer]
        return self.expert_bytes[layer] // self._element_bytes

    @property
    def _element_bytes(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def rows(self) -> int:
        """Routed experts of all layers."""
        return sum(self.experts)

    @property
    def experts_bytes(self) -> int:
        """Of all routed experts."""
        return sum(n * row for n, row in zip(self.experts, self.expert_bytes, strict=True))

    @property
    def slot_bytes(self) -> int:
        """The widest row on whole cache lines; every device slot takes any row."""
        widest = max(self.widest_row, *self.expert_bytes, 0)
        return -(-widest // SLOT_ALIGN) * SLOT_ALIGN

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Of the layers that look back at all of the context."""
        kv = [need for need in self.state if isinstance(need, KvNeed) and need.window is None]
        return sum(need.key + need.value for need in kv) * element_bytes

    def kv_read_bytes(self, context: int, element_bytes: int) -> int:
        """Keys and values that one token looks back at."""
        kv = [need for need in self.state if isinstance(need, KvNeed)]
        seen = sum((n.key + n.value) * min(context, n.window or context) for n in kv)
        return seen * element_bytes

    def kv_work(self, context: int) -> int:
        """Operations of one token with the keys it looks back at, where heads share them."""
        kv = [need for need in self.state if isinstance(need, KvNeed)]
        return sum(n.work * min(context, n.window or context) for n in kv)

    def window_elements(self) -> dict[int, int]:
        """Of keys and values per token, of all layers with a window, by its size."""
        found: dict[int, int] = {}
        for need in self.state:
            if isinstance(need, KvNeed) and need.window is not None:
                found[need.window] = found.get(need.window, 0) + need.key + need.value
        return found

    def within(self, context: int) -> ModelFacts:
        """For sequences of at most so many tokens: a window that holds them all is none."""
        return replace(
            self,
            state=tuple(
                replace(need, window=None)
                if isinstance(need, KvNeed) and (need.window or 0) >= context
                else need
                for need in self.state
            ),
        )

    def state_bytes_per_sequence(self) -> int:
        return 4 * sum(need.elements for need in self.state if isinstance(need, RecurrentNeed))
