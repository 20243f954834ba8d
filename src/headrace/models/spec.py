"""A model as data: every number that distinguishes one architecture from another. Frozen, no torch.

A layer is a mixer and a feed-forward part, each behind a norm and added to the residual stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace.ops.table import Activation, Router


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Yarn:
    """arXiv 2309.00071. `attention_factor` multiplies cos and sin."""

    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    truncate: bool


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Low frequencies divided by `factor`, high ones kept, a ramp between them (Llama 3.1 model
    card).
    """

    factor: float
    low_factor: float
    high_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class Proportional:
    """The first `turning` pairs turn as they would if all did, the others not at all (Gemma 4)."""

    turning: int


@dataclass(frozen=True, slots=True)
class Divided:
    """The frequency of each pair is divided by a number of its own."""

    divisors: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotation of the first `rotated` channels of a head."""

    theta: float
    rotated: int
    scaling: LinearScaling | Yarn | Llama3Scaling | Proportional | Divided | None = None
    interleaved: bool = False


class NormKind(Enum):
    """Of the residual stream."""

    RMS = "root mean square"
    LAYER = "mean and variance"


class QkNorm(Enum):
    """What is normalised between the projections of q and k and their rotation."""

    NONE = "none"
    HEAD = "each head"
    WHOLE = "the whole projection"
    UNIT = "each head, without weights"


class OutputGate(Enum):
    """What the output is multiplied by, and where that comes from."""

    NONE = "none"
    WITHIN_QUERY = "sigmoid: the query projection yields it, too, head by head"
    APART = "sigmoid: a projection of its own"
    SOFTPLUS = "softplus: a projection of its own"
    SOFTPLUS_HEAD = "softplus: a projection of its own, one number a head"


@dataclass(frozen=True, slots=True)
class Temperature:
    """Queries grow by `strength` * log(1 + floor((position + ahead) / span)) (Llama 4)."""

    span: int
    strength: float
    ahead: int = 1


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    rope: Rope | None
    window: int = 0  # keys seen, the query's own counted; 0 = all
    chunked: bool = False  # seen are keys since the last multiple of `window`
    qk_norm: QkNorm = QkNorm.NONE
    rotate_first: bool = False  # q and k are normalised behind their rotation
    unit_values: bool = False  # each head of v is normalised, without weights
    values_of_keys: bool = False  # v is what k is before its norm and rotation
    temperature: Temperature | None = None
    fused: bool = False  # q, k and v are rows of one matrix
    value_scale: float = 1.0  # of v
    bias: bool = False  # of q, k and v
    out_bias: bool = False
    sinks: bool = False
    gate: OutputGate = OutputGate.NONE
    clip: float | None = None  # of q, k and v before rotation


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (arXiv 2405.04434, section 2.1): all heads share keys of `rank`
    normed and `rope.rotated` rotated channels, and the first are their values, too.

    `key_dim`, `value_dim`: of a head, once the latents are expanded. `query_rank`: of a query's own
    latents, 0 = none. `split`: the two halves of kv_b are stored apart, that of the keys
    transposed. `eps`: of the latents' norms.
    """

    heads: int
    rank: int
    query_rank: int
    key_dim: int
    value_dim: int
    scale: float
    rope: Rope
    eps: float = 1e-6
    bias: bool = False  # of the projections out of the residual stream
    out_bias: bool = False
    split: bool = False
    temperature: Temperature | None = None
    turned: bool = True  # the channels beside the latents are rotated

    @property
    def width(self) -> int:
        """Of what is cached of a token."""
        return self.rank + self.rope.rotated

    @property
    def query_width(self) -> int:
        """Of a head's query before it is taken to the latents."""
        return self.key_dim + self.rope.rotated


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """Gated DeltaNet behind a short causal convolution.

    `tiled`: value head i uses key head i % key_heads, not i // (value_heads / key_heads). `rate`:
    the decay is stored as -exp(A_log). `qkvz_by_head`, `ba_by_head`: one matrix has all that
    belongs to the first key head, then to the second, and so on.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    tiled: bool = False
    rate: bool = False
    qkvz_by_head: bool = False
    ba_by_head: bool = False

    @property
    def channels(self) -> int:
        """Of the convolution: q, k and v side by side."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class ChannelDelta:
    """Kimi Delta Attention (arXiv 2510.26692): the delta rule with a decay of each key channel,
    behind short causal convolutions of q, k and v.
    """

    heads: int
    head_dim: int  # of keys and values
    kernel: int

    @property
    def channels(self) -> int:
        """Of the convolutions: q, k and v side by side."""
        return 3 * self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class ShortConv:
    """A causal convolution between two gates, all made of the layer's input: b, c and x side by
    side; c * conv(b * x). `bias`: of projections and convolution.
    """

    channels: int
    kernel: int
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Ssm:
    """Mamba 2 (arXiv 2405.21060): one projection yields a gate, what a short convolution takes (x
    of all heads, b and c of all groups) and a step of each head. `rate`: A is stored as
    -exp(A_log). `bias`: of the projections.
    """

    heads: int
    head_dim: int
    groups: int  # of b and c, and of the gated norm behind
    state: int
    kernel: int
    conv_bias: bool = True
    bias: bool = False
    rate: bool = False

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Of the convolution: x, b and c side by side."""
        return self.inner + 2 * self.groups * self.state


@dataclass(frozen=True, slots=True)
class Dense:
    """One feed-forward block for all tokens."""

    width: int
    activation: Activation = Activation.SILU


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """Runs for every token beside the routed ones; `gated` by the sigmoid of a one-row linear
    map.
    """

    width: int
    gated: bool


@dataclass(frozen=True, slots=True)
class Moe:
    """Routed experts. `beside`: a dense block whose output is added; router, experts and that block
    each have a norm of their own on the way in, and experts and block on the way out (Gemma 4).
    """

    experts: int
    width: int
    router: Router
    activation: Activation = Activation.SILU
    alpha: float = 1.702
    limit: float = 0.0
    router_bias: bool = False  # added to the logits
    correction_bias: bool = False  # added to the scores for the choice only
    expert_bias: bool = False
    shared: SharedExpert | None = None
    average_shared: bool = False  # routed and shared experts count half each
    expert_scales: bool = False  # weights are multiplied by a number of each expert
    weigh_inputs: bool = False  # weights multiply what goes into an expert: one per token
    logit_cap: float = 0.0  # of the router's logits
    beside: Dense | None = None
    sum_eps: float = 0.0  # of a norm that the sum of all goes through; 0 = none


Mixer = Attention | LatentAttention | DeltaRule | ChannelDelta | ShortConv | Ssm
Ffn = Dense | Moe


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """x += mixer(norm(x)); x += ffn(norm(x)); one of both may be absent.

    `norms_behind`: what is added goes through a norm of its own. `parallel`: both parts see the
    mixer's norm of the same x. `scaled`: the sum is multiplied by a stored number.
    """

    mixer: Mixer | None
    ffn: Ffn | None
    norms_behind: bool = False
    parallel: bool = False
    scaled: bool = False

    @property
    def norms(self) -> tuple[str | None, str | None]:
        """Names of the norms in front of mixer and feed-forward part, None for one that is absent
        or the other's.
        """
        if self.mixer is None:
            return None, "norm"
        if self.ffn is None:
            return "norm", None
        return "mixer_norm", None if self.parallel else "ffn_norm"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """`norm_plus_one`: norms multiply by 1 + weight (not the one inside DeltaNet). `ahead`: layers
    that files may hold behind the last one to predict further tokens; they are not computed.
    """

    family: str
    hidden: int
    vocab: int
    max_context: int
    eps: float
    tied: bool  # the head is the embedding
    layers: tuple[LayerSpec, ...]
    norm_plus_one: bool = False
    ahead: int = 0
    norm: NormKind = NormKind.RMS
    embed_scale: float = 1.0
    residual_scale: float = 1.0  # of what each part of a layer adds
    logit_scale: float = 1.0
    logit_cap: float = 0.0  # logits are cap * tanh(logits / cap)
