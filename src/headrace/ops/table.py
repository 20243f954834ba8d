"""The typed table of operations: all arithmetic above the device goes through one of these.

Each op lives in a folder of its own; `reference.py` is its meaning, the other files are fast ways
to it. Shape legend: T tokens, S sequences, K inputs, N outputs, H heads, G kv heads, D head width,
E experts, X = top-k, R expert rows of all layers, S device slots, Q numbers of misses. Activations
are float32 on every device that computes on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from headrace.ops.carried import ConvOp, DeltaOp, SsmOp
from headrace.ops.elementwise import (
    AddOp,
    ArrangeOp,
    ClampOp,
    DecayOp,
    GateOp,
    MultiplyOp,
    ScaleOp,
    ScaleRowsOp,
    SigmoidOp,
    TemperatureOp,
)
from headrace.planning.policies import Fade

if TYPE_CHECKING:  # specs name these types before torch is loaded
    from torch import Tensor

    from headrace.formats.packed import Weight
    from headrace.ops.spans import Spans


class Activation(IntEnum):
    """Between gate·up and down. The numbers are the native kernels'."""

    SILU = 0  # silu(g) * u
    CLAMPED_SIGMOID = 1  # g = min(g, limit), u = clamp(u, ±limit): g * sigmoid(alpha g) * (u + 1)
    GELU_TANH = 2  # gelu_tanh(g) * u
    RELU_SQUARED = 3  # max(g, 0)^2; there is no u

    @property
    def has_up(self) -> bool:
        """Whether an expert has an up matrix beside gate and down."""
        return self != Activation.RELU_SQUARED


class Gating(IntEnum):
    """How a norm behind a recurrence is gated. The numbers are the native kernels'."""

    SILU = 0  # rms(x) * weight * silu(gate)
    SILU_BEFORE = 1  # rms(x * silu(gate)) * weight
    SIGMOID = 2  # rms(x) * weight * sigmoid(gate)


class Score(IntEnum):
    """How router logits become scores. The numbers are the native kernels'."""

    SOFTMAX = 0  # over all experts, then top-k
    SOFTMAX_OF_TOP_K = 1  # top-k of the logits, then softmax over those
    SIGMOID = 2


@dataclass(frozen=True, slots=True)
class Linear:
    """Weights of one linear map in one or more parts [N_i, K], each of a format of its own; y is
    their concatenation.

    `exact`: inputs are never rounded, whatever the device would rather do (router logits).
    """

    parts: tuple[Weight, ...]
    bias_N: Tensor | None = None  # float32
    exact: bool = False

    @property
    def rows(self) -> int:
        return sum(int(p.shape[0]) for p in self.parts)

    @property
    def columns(self) -> int:
        return int(self.parts[0].shape[1])


@dataclass(frozen=True, slots=True)
class HeadLinear:
    """A linear map for each head, of one shape and format: parts[h] is [N, K]; `across`: [K, N]."""

    parts: tuple[Weight, ...]
    across: bool = False

    @property
    def outputs(self) -> int:
        """N."""
        return int(self.parts[0].shape[1 if self.across else 0])

    @property
    def inputs(self) -> int:
        """K."""
        return int(self.parts[0].shape[0 if self.across else 1])


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """The experts of one layer where they lie. gate[e], up[e]: [F, D]; down[e]: [D, F]; any row
    stride, unit column stride; gate, up and down may differ in format, and so may experts. No up
    where the activation has no use for it. Biases are float32 or absent altogether.
    """

    gate: Sequence[Weight]
    up: Sequence[Weight]
    down: Sequence[Weight]
    activation: Activation
    gate_bias: Sequence[Tensor] = ()
    up_bias: Sequence[Tensor] = ()
    down_bias: Sequence[Tensor] = ()
    alpha: float = 1.702
    limit: float = 0.0

    @property
    def count(self) -> int:
        return len(self.gate)


@dataclass(frozen=True, slots=True)
class Router:
    """The numbers of a router (DeepSeek-V3 style groups included)."""

    top_k: int
    score: Score = Score.SOFTMAX
    groups: int = 1
    keep_groups: int = 1
    group_best: int = 2  # scores of a group that are summed to choose among groups: 1 or 2
    renormalize: bool = True
    renorm_eps: float = 0.0
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Routing:
    """ids_TX: int32 expert ids; weights_TX: float32, what each expert's output is multiplied by."""

    ids_TX: Tensor
    weights_TX: Tensor


@dataclass(frozen=True, slots=True)
class Cache:
    """Which expert rows are resident on the device, and what each is worth. A row is the number
    `base + expert` over all MoE layers. Addresses never move while a step is captured.
    """

    slot_of_R: Tensor  # int32, -1 = not resident
    row_of_S: Tensor  # int32, -1 = free
    sums_2R: Tensor  # int64 [2, R], Q32: decayed uses, fast and slow; unused under `lru`
    value_R: Tensor  # int64: the least is evicted first, of equals the lower row
    clock_1: Tensor  # int64 [1]: touches so far; unused unless `lru`
    lru: bool = False


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """Rows base..base+experts-1 of a Cache. `shift_E`, int32, by expert: what is added to the
    number of its slot in `Planned.slot_ids_TX`, where that says how it is stored, too.
    """

    base: int
    experts: int
    shift_E: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """What one layer of one step does; fixed shapes with valid counts, written by `plan`. What lies
    beyond a count is left as it was.
    """

    slot_ids_TX: Tensor  # int32: slot to read, or -1
    host_ids_TX: Tensor  # int32: expert for the host, or -1
    fill_experts_E: Tensor  # int32, counts[2] of them, the likeliest to return first
    fill_slots_E: Tensor  # int32: where each goes
    counts_4: Tensor  # int32: active, hits, fills, host


class LinearOp(Protocol):
    def __call__(self, x_TK: Tensor, w: Linear) -> Tensor: ...


class PerHeadOp(Protocol):
    def __call__(self, x_THK: Tensor, w: HeadLinear, *, keep: int = 0) -> Tensor:
        """[T, H, N + keep] dense: a map a head; the last `keep` channels of x follow behind."""
        ...


class RmsNormOp(Protocol):
    def __call__(
        self, x: Tensor, weight: Tensor | None, eps: float, *, plus_one: bool = False
    ) -> Tensor:
        """Over the last axis, any leading shape (row stride allowed); dense float32 result."""
        ...


class LayerNormOp(Protocol):
    def __call__(self, x_TD: Tensor, weight_D: Tensor, bias_D: Tensor | None, eps: float) -> Tensor:
        """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis; x is dense."""
        ...


class GatedRmsNormOp(Protocol):
    def __call__(
        self,
        x: Tensor,
        gate: Tensor,
        weight: Tensor,
        eps: float,
        *,
        gating: Gating = Gating.SILU,
    ) -> Tensor:
        """rms(x) times weight and gate over the last axis; x and gate have one shape [T, H, D] or
        [T, D]. weight: [D], or [H, D].
        """
        ...


class LookupOp(Protocol):
    def __call__(self, table_VD: Weight, ids_N: Tensor) -> Tensor:
        """Rows of a table of any format, as float32 [N, D]; ids are int64."""
        ...


class AnglesOp(Protocol):
    def __call__(
        self, positions_T: Tensor, frequencies_R: Tensor, factor: float
    ) -> tuple[Tensor, Tensor]:
        """cos and sin of position * frequency, times `factor`, each [T, R]; positions int64."""
        ...


class BestOp(Protocol):
    def __call__(self, x_NV: Tensor) -> Tensor:
        """Index of each row's largest, the first of equal ones, int64 [N]; -1 where an element of
        the row is not finite.
        """
        ...


class RopeOp(Protocol):
    def __call__(
        self, x_THD: Tensor, cos_TR: Tensor, sin_TR: Tensor, *, interleaved: bool = False
    ) -> None:
        """In place on the first 2R of the D channels; rows may be strided by token."""
        ...


class StoreKvOp(Protocol):
    def __call__(self, x_TGD: Tensor, pool: Tensor, slots_T: Tensor) -> None:
        """pool: [slots, G, D] float32 or bfloat16; slots may lie further apart."""
        ...


class AttentionOp(Protocol):
    def __call__(
        self,
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
        """Causal; [T, H, Dv] dense; v_pool may be the first channels of k_pool. See the reference
        for window, chunks and sinks.
        """
        ...


class RouteOp(Protocol):
    def __call__(
        self,
        logits_TE: Tensor,
        bias_E: Tensor | None,
        router: Router,
        scales_E: Tensor | None = None,
    ) -> Routing:
        """`scales_E`: float32, by which the weights of an expert are multiplied."""
        ...


class ExpertsOp(Protocol):
    def __call__(self, x_TD: Tensor, routing: Routing, rows: ExpertRows) -> Tensor:
        """Sum over the chosen experts, in ascending expert id; negative ids are skipped."""
        ...


class ExpertsPartsOp(Protocol):
    def __call__(self, x_TD: Tensor, ids_TX: Tensor, rows: ExpertRows, parts_TXD: Tensor) -> None:
        """parts[t, k] = expert ids[t, k] of x[t], unweighted; those of negative ids are left alone.
        The bits of a part do not depend on what else is computed with it.
        """
        ...


class CombineOp(Protocol):
    def __call__(self, parts_TXD: Tensor, routing: Routing) -> Tensor:
        """[T, D]: sum over k of weight * part in ascending expert id; negative ids are skipped.
        With the parts of `experts_parts` these are the bits of `experts`.
        """
        ...


class PlanOp(Protocol):
    def __call__(
        self,
        ids_TX: Tensor,
        layer: CacheLayer,
        cache: Cache,
        quota_Q: Tensor,
        out: Planned,
        *,
        staging: int = 0,
    ) -> None:
        """Decides where each routed expert of one layer is computed; negative ids are skipped.

        quota_Q: int32, q[m] fills for m misses; for m >= Q: m * q[Q-1] // (Q-1). Q is at least 2.
        `staging` = 0: fills are admitted and recency is touched. `staging` = n: up to n fills go to
        slots S, S+1, ...; `cache` is only read. See the reference for the policy.
        """
        ...


class ObserveOp(Protocol):
    def __call__(self, ids_TX: Tensor, layer: CacheLayer, cache: Cache, fade: Fade) -> None:
        """A chunk of a prompt was routed so: its uses count, no row moves. Nothing under `lru`.
        `fade`: of the chunk's tokens, for the terms of the default policy.
        """
        ...


@dataclass(frozen=True, slots=True)
class Ops:
    """Everything a model may compute with. `ops_for` in `headrace.ops` fills it for a device."""

    linear: LinearOp
    per_head: PerHeadOp
    add: AddOp
    scale: ScaleOp
    scale_rows: ScaleRowsOp
    temperature: TemperatureOp
    rms_norm: RmsNormOp
    layer_norm: LayerNormOp
    gated_rms_norm: GatedRmsNormOp
    gate: GateOp
    sigmoid: SigmoidOp
    decay: DecayOp
    clamp: ClampOp
    multiply: MultiplyOp
    arrange: ArrangeOp
    lookup: LookupOp
    angles: AnglesOp
    best: BestOp
    rope: RopeOp
    store_kv: StoreKvOp
    attention: AttentionOp
    conv: ConvOp
    delta: DeltaOp
    ssm: SsmOp
    route: RouteOp
    experts: ExpertsOp
    experts_parts: ExpertsPartsOp
    combine: CombineOp
    plan: PlanOp
    observe: ObserveOp
