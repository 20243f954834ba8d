"""The native extension: a worker pool and the kernels that run on it.

Every address is an `int` (a `data_ptr`); memory stays the caller's and must live through the call.
All calls
release the GIL, return when the result is written, and are made from one thread at a time per pool.
Activations are float32, row-major, densely packed unless a stride is given. Results for a token do
not depend
on how many other tokens share the call: every sum has one fixed order per instruction set.
Formats (of weights and of KV): 0 = float32, 1 = bfloat16, 2 = float16.
"""

from collections.abc import Sequence

def cpu_features() -> dict[str, bool]:
    """avx2, avx512f, avx512_bf16, amx_bf16, neon, ... as the CPU and the kernel allow."""

def isas() -> list[str]:
    """Kernel sets that this machine can run, slowest first: scalar, avx2, avx512, amx, neon."""

class Matrix:
    """Weights of one linear map, [sum(rows), columns], in one or more parts that lie apart."""

    def __init__(
        self, parts: Sequence[tuple[int, int]], columns: int, row_stride_bytes: int, format: int
    ) -> None:
        """`parts`: (address, rows) of each; every part has the same columns, stride and format."""
    rows: int
    columns: int
    nbytes: int

class ExpertLayer:
    """The routed experts of one layer (or one dense MLP, as a single expert), where they lie.

    y = down( act(gate x + gate_bias, up x + up_bias) ) + down_bias.
    """

    def __init__(
        self,
        *,
        format: int,
        hidden: int,
        width: int,
        # 0: silu of g, times u. 1, gpt-oss: g at most limit, u within ±limit, then
        # g * sigmoid(alpha g) * (u + 1). 2: tanh-GELU of g, times u.
        activation: int,
        gate: Sequence[int],  # one address per expert, of [width, hidden] rows
        up: Sequence[int],
        down: Sequence[int],  # of [hidden, width] rows
        gate_stride_bytes: int,  # from one row to the next (2x for interleaved gate/up)
        up_stride_bytes: int,
        down_stride_bytes: int,
        gate_bias: Sequence[int] = (),  # float32 addresses, or none at all
        up_bias: Sequence[int] = (),
        down_bias: Sequence[int] = (),
        alpha: float = 1.702,
        limit: float = 0.0,
    ) -> None: ...
    experts: int
    row_nbytes: int  # bytes of one expert

class Tape:
    """Calls of a pool, to be made again with the same addresses, in one go and without Python."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def replay(self, pool: Pool) -> None:
        """All memory that the calls name, and each Matrix and ExpertLayer, must live still."""

class Pool:
    """Persistent workers pinned to physical cores. The submitting thread works too."""

    def __init__(
        self, threads: int = 0, pin: bool = True, isa: str = "", rescue: bool = False
    ) -> None:
        """`threads` counts the submitter; 0 = one per physical core. `isa` caps the kernels ("" =
        best).

        `rescue`: linear and experts of up to 16 tokens do not wait for a worker that lost its core;
        the submitter
        computes its piece again. Such a worker may still read the weights after the call (it drops
        what it computes), so
        they must stay mapped until `quiesce` or `close`. Results are the same bits.
        """
    threads: int
    isa: str
    def close(self) -> None: ...
    def quiesce(self) -> None:
        """Returns when no worker reads memory of an earlier call. Call it before unmapping weights
        of a rescuing pool."""
    def busy_ns(self) -> int:
        """Wall nanoseconds spent inside the calls below since the pool was made."""

    def linear(self, x: int, tokens: int, w: Matrix, bias: int, y: int, exact: bool) -> None:
        """y[tokens, rows] = x[tokens, columns] W^T + bias (0 = none, float32).

        `exact`: activations stay float32; otherwise they may be rounded to bfloat16 where that is
        faster.
        """

    def experts(
        self,
        x: int,
        tokens: int,
        ids: int,
        weights: int,
        top_k: int,
        layer: ExpertLayer,
        y: int,
        exact: bool,
    ) -> None:
        """y[tokens, hidden] = sum over k of weights[t,k] * expert ids[t,k] (x[t]), in ascending
        expert id.

        ids: int32 [tokens, top_k]; negative ids are skipped. weights: float32. y is overwritten.
        Each
        expert's rows are read once per call however many tokens chose it.
        """

    def record(self, tape: Tape) -> None:
        """From here to `stop`, the calls below are made as ever and added to the tape."""
    def stop(self) -> None: ...
    def add(self, x: int, y: int, count: int) -> None:
        """x += y, elementwise."""
    def rms_norm(
        self,
        x: int,
        rows: int,
        width: int,
        x_stride: int,
        weight: int,
        eps: float,
        plus_one: bool,
        y: int,
        y_stride: int,
        group: int = 0,
        group_stride: int = 0,
    ) -> None:
        """y = x * rsqrt(mean(x^2) + eps) * (weight or 1 + weight); weight 0 = none. Strides in
        floats; y may be x. With `group`, so many rows of x lie `x_stride` apart, and the groups
        `group_stride`."""

    def gated_rms_norm(
        self, x: int, gate: int, rows: int, width: int, weight: int, eps: float, y: int
    ) -> None:
        """y = rms(x) * weight * silu(gate): the output norm of gated DeltaNet, per value head."""

    def rope(
        self,
        x: int,
        tokens: int,
        heads: int,
        token_stride: int,
        head_dim: int,
        cos: int,
        sin: int,
        rotated: int,
        interleaved: bool,
    ) -> None:
        """In place on x[t, h, :rotated]. cos, sin: float32 [tokens, rotated/2]; half-split pairs
        (i, i+rotated/2) or (2i, 2i+1)."""

    def store_kv(
        self, x: int, tokens: int, token_stride: int, width: int, slots: int, pool: int, format: int
    ) -> None:
        """pool[slots[t], :width] = x[t]; slots int64 [tokens]; pool is [slots, width] of `format`
        (0 or 1)."""

    def attention(
        self,
        *,
        q: int,
        q_stride: int,
        k: int,
        v: int,
        format: int,
        out: int,
        sequences: int,
        offsets: int,
        contexts: int,
        blocks: int,
        max_blocks: int,
        block_size: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int,
        scale: float,
        window: int,
        sinks: int,
    ) -> None:
        """Causal attention over paged KV, online softmax in float32.

        Token t of sequence s (offsets[s] <= t < offsets[s+1], int32) stands at position
        contexts[s] + t - offsets[s] and sees keys 0..position, or the last `window` of them (itself
        counted;
        0 = all). k: [slots, kv_heads, head_dim], v: [slots, kv_heads, value_dim] of `format`; key j
        of s lies in
        slot blocks[s, j // block_size] * block_size + j % block_size (blocks int32 [sequences,
        max_blocks]).
        sinks: float32 [heads] logits that join the softmax's sum without a value (0 = none).
        q: [tokens, heads, head_dim] with `q_stride` floats per token; out: dense [tokens, heads,
        value_dim].
        """

    def conv(
        self,
        x: int,
        tokens: int,
        x_stride: int,
        channels: int,
        kernel: int,
        weight: int,
        bias: int,
        sequences: int,
        offsets: int,
        slots: int,
        state: int,
        silu: bool,
        y: int,
    ) -> None:
        """Causal depthwise convolution, then silu. weight: float32 [channels, kernel], oldest tap
        first.

        state: float32 [slots, channels, kernel-1], the last inputs of each sequence (oldest first),
        read and updated.
        slots: int32 [sequences].
        """

    def delta(
        self,
        *,
        q: int,
        k: int,
        v: int,
        q_stride: int,
        k_stride: int,
        v_stride: int,
        decay: int,
        beta: int,
        out: int,
        sequences: int,
        offsets: int,
        slots: int,
        state: int,
        key_heads: int,
        value_heads: int,
        key_dim: int,
        value_dim: int,
        normalize: bool,
        scale: float,
    ) -> None:
        """Gated delta rule, token by token: S *= exp(decay); S += k (beta (v - k.S))^T; out =
        (scale q).S.

        decay, beta: float32 [tokens, value_heads] (decay <= 0, the log). Value head i uses key head
        i // (value_heads/key_heads).
        normalize: q and k are divided by sqrt(sum of squares + 1e-6) first. state: float32 [slots,
        value_heads, key_dim, value_dim].
        """

    def route(
        self,
        *,
        logits: int,
        tokens: int,
        experts: int,
        top_k: int,
        score: int,
        bias: int,
        groups: int,
        keep_groups: int,
        renormalize: bool,
        renorm_eps: float,
        scale: float,
        ids: int,
        weights: int,
    ) -> None:
        """Router. score: 0 softmax over all then top-k; 1 top-k of logits then softmax; 2 sigmoid.

        bias: float32 [experts] added for the choice only (0 = none). groups > 1: keep the best
        `keep_groups` groups by the
        sum of their two best choice scores, others are -inf. Ties go to the lower id. weights: the
        unbiased scores,
        divided by (sum + renorm_eps) if renormalize, times scale; ids int32 best first [tokens,
        top_k].
        """

def measure_read_bandwidth(pool: Pool, nbytes: int, seconds: float) -> float:
    """Bytes/s that all workers of the pool reach when they only read (plain sums over huge pages);
    the median of passes."""

def alloc(nbytes: int) -> int:
    """Zeroed anonymous memory on huge pages where the system gives them (address, 2 MiB aligned).
    `free` returns it."""

def free(address: int, nbytes: int) -> None: ...

class FileReader:
    """Parallel aligned direct reads of byte ranges of one file into memory, in background
    threads."""

    def __init__(
        self,
        path: str,
        ranges: Sequence[tuple[int, int, int]],
        threads: int = 4,
        piece_bytes: int = 4 << 20,
    ) -> None:
        """Starts at once. `ranges`: (file offset, bytes, destination address); offset and
        destination agree modulo 4096,
        and the pages that a range's ends touch belong to the destination. O_DIRECT where the file
        system takes it, else buffered."""
    @property
    def done_bytes(self) -> int: ...
    @property
    def direct(self) -> bool:
        """False where direct I/O was refused and the page cache was used."""
    def wait(self, seconds: float = -1.0) -> bool:
        """True when all is read. Raises OSError (with what was read and expected) on a failed or
        short read."""
    def cancel(self) -> None: ...
