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
    """avx2, avx_vnni, avx512f, ... as the CPU and the kernel allow."""

def isas() -> list[str]:
    """Kernel sets that this machine can run, slowest first: scalar, avx2, avxvnni, avx512, amx,
    or scalar, neon, neondot, neonmm."""

def tile_nbytes(format: int, columns: int) -> int:
    """Bytes of a tile. ValueError for a format or columns that cannot be."""

def put_in_lanes(
    format: int,
    rows: int,
    row_stride: int,
    count: int,
    columns: int,
    tiles: int,
    tile_stride: int,
) -> None:
    """Rows of blocks, as GGUF has them, into tiles of LANE_ROWS rows (headrace.formats.format); the
    last is filled up with zeros. Strides are in bytes. ValueError for sizes that cannot be."""

def put_pairs_in_lanes(
    format: int,
    scales: int,
    scale_stride: int,
    codes: int,
    code_stride: int,
    count: int,
    columns: int,
    tiles: int,
    tile_stride: int,
) -> None:
    """The same tiles of MXFP4 or NVFP4 from scales and codes that lie apart, the even column in the
    low nibble; heads of tiles are left as they were."""

class Matrix:
    """Weights of one linear map, [sum(rows), columns], in one or more parts that lie apart."""

    def __init__(self, parts: Sequence[tuple[int, int, int, int]], columns: int) -> None:
        """`parts`: (address, rows, bytes from one tile to the next, format) of each. A format is
        the `code` of one of headrace.formats.format; plain floats have tiles of one row."""
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
        formats: tuple[int, int, int],  # of gate, up and down
        hidden: int,
        width: int,
        # 0: silu of g, times u. 1, gpt-oss: g at most limit, u within ±limit, then
        # g * sigmoid(alpha g) * (u + 1). 2: tanh-GELU of g, times u. 3: the square of g, 0 where g
        # is negative; then there is no up, and its format and stride mean nothing.
        activation: int,
        gate: Sequence[int],  # one address per expert, of [width, hidden] rows
        up: Sequence[int],
        down: Sequence[int],  # of [hidden, width] rows
        gate_stride_bytes: int,  # from one tile to the next (2x for interleaved gate/up)
        up_stride_bytes: int,
        down_stride_bytes: int,
        gate_bias: Sequence[int] = (),  # float32 addresses, or none at all
        up_bias: Sequence[int] = (),
        down_bias: Sequence[int] = (),
        alpha: float = 1.702,
        limit: float = 0.0,
        # Where experts differ: (formats, strides in bytes) of other forms, and the form of each
        # expert; 0 is the one above.
        others: Sequence[tuple[tuple[int, int, int], tuple[int, int, int]]] = (),
        form_of: Sequence[int] = (),
    ) -> None: ...
    experts: int
    row_nbytes: int  # bytes of one expert; on average, where they differ

class Tape:
    """Calls of a pool, to be made again with the same addresses, in one go and without Python."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def replay(self, pool: Pool) -> None:
        """All memory that the calls name, and each Matrix, ExpertLayer, Link and HostService, must
        live still."""

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

    def per_head(
        self,
        *,
        x: int,
        tokens: int,
        token_stride: int,
        head_stride: int,
        w: Matrix,
        y: int,
        keep: int,
        across: bool,
        exact: bool,
    ) -> None:
        """Part h of `w` meets x[t, h], strides in floats: y[t, h] = x W^T, or x W where `across`,
        and behind it the `keep` floats that follow x[t, h]. y is dense [tokens, parts, N + keep].

        ValueError where the parts differ in their rows.
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

    def experts_parts(
        self, x: int, tokens: int, ids: int, top_k: int, layer: ExpertLayer, parts: int, exact: bool
    ) -> None:
        """parts[t, k, hidden] = expert ids[t, k] (x[t]), unweighted; the parts of negative ids are
        left alone."""

    def combine(
        self, parts: int, tokens: int, top_k: int, hidden: int, ids: int, weights: int, y: int
    ) -> None:
        """y[t] = sum over k of weights[t, k] * parts[t, k] in ascending ids[t, k]; negative ones
        are skipped. After `experts_parts` with the same ids: the bits of `experts`."""

    def plan(
        self,
        *,
        ids: int,
        tokens: int,
        top_k: int,
        base: int,
        experts: int,
        slot_of: int,
        rows: int,
        row_of: int,
        slots: int,
        sums: int,
        value: int,
        clock: int,
        lru: bool,
        quota: int,
        quotas: int,
        slot_ids: int,
        host_ids: int,
        fill_experts: int,
        fill_slots: int,
        counts: int,
        staging: int,
        shift: int = 0,  # int32, by expert: added to the slots that are written; 0 = nothing
    ) -> None:
        """`ops.table.PlanOp` over the addresses of a Cache (`rows`, `slots`: its sizes) and of a
        Planned. The cost does not depend on how many rows are filled."""

    def observe(
        self,
        *,
        ids: int,
        tokens: int,
        top_k: int,
        base: int,
        experts: int,
        rows: int,
        sums: int,
        value: int,
        left_q24: tuple[int, ...],  # two
        gain_q32: tuple[int, ...],
    ) -> None:
        """`ops.table.ObserveOp`, of a cache that is not least-recently-used."""

    def pace(self, nanoseconds: int) -> None:
        """Returns after so long: a device kernel of a set rate."""

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
        self,
        x: int,
        gate: int,
        rows: int,
        width: int,
        weight: int,
        eps: float,
        y: int,
        gate_group: int = 0,
        gate_stride: int = 0,
        gating: int = 0,
        weight_rows: int = 1,
    ) -> None:
        """The output norm of recurrent mixers, per head or group; y apart from x.

        gating 0: rms(x) * weight * silu(gate); 1: rms(x * silu(gate)) * weight; 2: rms(x) * weight
        * sigmoid(gate). Row i has weight row i % weight_rows.
        With `gate_group`, so many rows of the gate lie side by side, and the groups `gate_stride`
        floats apart."""

    def gate(
        self,
        x: int,
        gate: int,
        tokens: int,
        heads: int,
        width: int,
        token_stride: int,
        head_stride: int,
        y: int,
    ) -> None:
        """y = x * sigmoid(gate), x and y dense [tokens, heads, width]; strides, in floats, are the
        gate's. x may be y; 0 = ones."""

    def decay(
        self, a: int, tokens: int, heads: int, token_stride: int, rate: int, bias: int, y: int
    ) -> None:
        """y = rate * softplus(a + bias), dense [tokens, heads]; rate is float64 [heads], bias
        float32. Computed in float64, rounded once."""

    def clamp(self, x: int, tokens: int, width: int, token_stride: int, limit: float) -> None:
        """x into [-limit, limit], in place."""

    def multiply(
        self, x: int, by: int, tokens: int, width: int, x_stride: int, by_stride: int, y: int
    ) -> None:
        """y = x * by, dense [tokens, width]."""

    def scale(self, x: int, tokens: int, width: int, factor: float, cap: float) -> None:
        """x * factor, then cap * tanh(x / cap) unless cap is 0; in place, dense."""

    def scale_rows(
        self,
        x: int,
        tokens: int,
        heads: int,
        width: int,
        token_stride: int,
        head_stride: int,
        by: int,
        by_token_stride: int,
        by_head_stride: int,
    ) -> None:
        """x[t, h] *= by[t, h], in place; a stride of 0 in `by` repeats a number."""

    def temperature(
        self, positions: int, tokens: int, span: int, strength: float, y: int, ahead: int = 1
    ) -> None:
        """y = 1 + strength * log(1 + (position + ahead) // span); positions int64."""

    def layer_norm(
        self, x: int, rows: int, width: int, weight: int, bias: int, eps: float, y: int
    ) -> None:
        """y = (x - mean) / sqrt(variance + eps) * weight + bias, by row; bias 0 = none. Dense."""

    def arrange(
        self, x: int, tokens: int, token_stride: int, order: int, columns: int, y: int
    ) -> None:
        """y[t, i] = x[t, order[i]], dense [tokens, columns]; order is int32 [columns], each below
        `token_stride`, else ValueError."""

    def lookup(
        self,
        table: int,
        format: int,
        rows: int,
        width: int,
        row_stride_bytes: int,
        ids: int,
        count: int,
        y: int,
    ) -> None:
        """y[i] = table[ids[i]] widened to float32; ids int64. ValueError for one that is no row."""

    def angles(
        self,
        positions: int,
        tokens: int,
        frequencies: int,
        pairs: int,
        factor: float,
        cos: int,
        sin: int,
    ) -> None:
        """cos and sin, dense [tokens, pairs], of position * frequency (a float32), times `factor`;
        positions int64, frequencies float32 [pairs]."""

    def best(self, x: int, rows: int, width: int, ids: int) -> None:
        """ids[i], int64: the first of the largest of row i, or -1 where the row is not finite
        throughout."""

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
        self,
        x: int,
        tokens: int,
        token_stride: int,
        width: int,
        slots: int,
        pool: int,
        format: int,
        step: int = 0,
    ) -> None:
        """pool[slots[t], :width] = x[t]; slots int64 [tokens]; pool is of `format` (0 or 1), its
        slots `step` elements apart (0: width)."""

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
        chunked: bool,
        sinks: int,
        value_step: int = 0,
    ) -> None:
        """Causal attention over paged KV, online softmax in float32.

        Token t of sequence s (offsets[s] <= t < offsets[s+1], int32) stands at position
        contexts[s] + t - offsets[s] and sees keys 0..position, or the last `window` of them (itself
        counted; 0 = all), or with `chunked` those since the last multiple of `window`.
        k: [slots, kv_heads, head_dim], v: [slots, kv_heads, value_dim] of `format`; key j of s lies
        in slot blocks[s, j // block_size] * block_size + j % block_size (blocks int32 [sequences,
        max_blocks]).
        `value_step`: elements from one head's values to the next (0: value_dim); v may be k.
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
        runs_of: int = 0,
        firsts: int = 0,
        keeps: int = 0,
    ) -> None:
        """Causal depthwise convolution, then silu. weight: float32 [channels, kernel], oldest tap
        first.

        state: float32 [slots, channels, kernel-1], the last inputs of each sequence (oldest first),
        read and updated.
        slots: int32 [sequences].
        With `firsts`, int32 [runs_of + 1], "sequences" are runs: those from firsts[s] to firsts[s +
        1] follow each other in sequence s, and behind run r its state is copied to slot keeps[r]
        (int32), unless that is negative.
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
        tiled: bool = False,
        decay_rows: bool = False,
        runs_of: int = 0,
        firsts: int = 0,
        keeps: int = 0,
    ) -> None:
        """Gated delta rule, token by token: S *= exp(decay); S += k (beta (v - k.S))^T; out =
        (scale q).S.

        decay, beta: float32 [tokens, value_heads] (decay <= 0, the log); with `decay_rows` decay is
        [tokens, value_heads, key_dim], one of each row of S. Value head i uses key head
        i // (value_heads/key_heads), or i % key_heads if tiled.
        normalize: q and k are divided by sqrt(sum of squares + 1e-6) first. state: float32 [slots,
        value_heads, key_dim, value_dim]. Runs as in `conv`.
        """

    def ssm(
        self,
        *,
        x: int,
        b: int,
        c: int,
        x_stride: int,
        b_stride: int,
        c_stride: int,
        decay: int,
        step: int,
        skip: int,
        out: int,
        sequences: int,
        offsets: int,
        slots: int,
        state: int,
        groups: int,
        heads: int,
        key_dim: int,
        value_dim: int,
        runs_of: int = 0,
        firsts: int = 0,
        keeps: int = 0,
    ) -> None:
        """State space recurrence, token by token: S = exp(decay) S + b (step x)^T; out = c.S +
        skip x.

        x: [tokens, heads, value_dim]; b, c: [tokens, groups, key_dim], head i uses group
        i // (heads/groups); strides of tokens in floats. decay, step: float32 [tokens, heads]
        (decay <= 0, the log); skip: [heads]. state: float32 [slots, heads, key_dim, value_dim].
        Runs as in `conv`.
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
        scales: int,
        ids: int,
        weights: int,
        group_best: int = 2,
    ) -> None:
        """Router. score: 0 softmax over all then top-k; 1 top-k of logits then softmax; 2 sigmoid.

        bias: float32 [experts] added for the choice only (0 = none). groups > 1: keep the best
        `keep_groups` groups by the sum of their `group_best` (1 or 2) best choice scores, others
        are -inf. Ties go to the lower id. weights: the unbiased scores, divided by (sum +
        renorm_eps) if renormalize, times scale and scales[id] (float32, 0 = none); ids int32 best
        first [tokens, top_k].
        """

class RowSpans:
    """How the expert rows of one layer lie on the host and within a slot."""

    def __init__(
        self,
        sources: Sequence[Sequence[int]],
        nbytes: Sequence[int],
        offsets: Sequence[int],
        forms: int = 1,
        form_of: Sequence[int] = (),
    ) -> None:
        """Span i of expert e: nbytes[i] bytes at sources[e][i], which go to offsets[i] of a slot.
        Where experts differ, nbytes and offsets are those of each form, one after another, as many
        spans in each, and form_of says which an expert has."""
    experts: int
    row_nbytes: int  # bytes that one row moves; on average, where they differ
    slot_nbytes: int  # bytes that one row needs

class Link:
    """The copy engine of an emulated device: one thread that copies in the order of the calls, no
    faster than a set rate. `pool` is the one whose tape is recorded. RuntimeError after `close`."""

    def __init__(self, bytes_per_s: float = 0.0, cpu: int = -1, staged: bool = False) -> None:
        """0 = as fast as the memory goes. `cpu`: where the thread runs, -1 = anywhere. `staged`:
        through a buffer of its own, as from memory that cannot be pinned."""
    rate: float  # bytes/s; may be set at any time
    def copy_rows(
        self,
        pool: Pool,
        spans: RowSpans,
        experts: int,
        slots: int,
        count: int,
        base: int,
        slot_nbytes: int,
        poison: bool,
    ) -> None:
        """Row experts[i] goes to base + slots[i] * slot_nbytes for i < count[0] (int32 addresses,
        read before the call returns). `poison`: the slots are filled with 0xFF at once."""

    def copy(self, pool: Pool, dst: int, src: int, nbytes: int) -> None: ...
    def wait(self, pool: Pool) -> None:
        """Until all is done that was asked for before."""

    def mark(self) -> int:
        """Names all that was asked for up to now."""

    def wait_for(self, mark: int) -> None: ...
    def observations(self) -> list[tuple[int, int]]:
        """(rows, nanoseconds) of each finished `copy_rows` since the last call, in their order;
        (0, 0) where the count was 0. The last 4096 at most. The time runs from the call, or from
        the end of what was before it in the queue."""

    def close(self) -> None:
        """Finishes what was asked for. Calling it twice is harmless."""

class HostService:
    """A thread that submits experts to a pool of its own, so that the caller's can go on."""

    def __init__(self, pool: Pool, cpu: int = -1) -> None:
        """From here on no other thread may use `pool`."""

    def alert(self, pool: Pool) -> None:
        """Work will come soon: the thread and the pool's workers wake, and look out for it."""

    def ring(
        self,
        pool: Pool,
        x: int,
        tokens: int,
        ids: int,
        top_k: int,
        layer: ExpertLayer,
        parts: int,
        exact: bool,
    ) -> None:
        """As `Pool.experts_parts`, which goes on after the return; all memory stays as it is until
        `wait`. `pool` is the one whose tape is recorded. RuntimeError after `close`."""

    def wait(self, pool: Pool) -> None:
        """Until all is done that was rung for. Raises what a task raised."""

    def observations(self) -> list[tuple[int, int]]:
        """(different experts, nanoseconds from ring to done) of each finished task since the last
        call; (0, 0) where all ids were negative. The last 4096 at most."""

    def close(self) -> None:
        """Finishes what was rung for. Calling it twice is harmless."""

def measure_product_rate(pool: Pool, format: int, columns: int, seconds: float) -> float:
    """Bytes/s of weights that all workers multiply with one token where every worker's rows lie in
    its second-level cache; the median of passes. ValueError where the format has no such rows."""

def measure_read_bandwidth(pool: Pool, nbytes: int, seconds: float) -> float:
    """Bytes/s that all workers of the pool reach when they only read (plain sums over huge pages);
    the median of passes."""

def alloc(nbytes: int) -> int:
    """Zeroed anonymous memory on huge pages where the system gives them (address, 2 MiB aligned).
    `free` returns it."""

def free(address: int, nbytes: int) -> None: ...
def discard(address: int, nbytes: int) -> None:
    """Gives the whole huge pages in a part of such memory back to the system; it reads as zeros
    then."""

def crc32c(address: int, nbytes: int, before: int = 0, portable: bool = False) -> int:
    """CRC-32C of memory; `before` is that of what came before it. `portable` shuns the CPU's own
    instruction."""

def load_ahead(path: str) -> None:
    """Loads a shared library on a thread of its own, for an import that is about to want it. What
    fails is left for that import to tell."""

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

class DiskQueue:
    """Reads of spans of a few files by a few threads, the urgent ones first. Safe from any thread.
    A destination belongs to the queue until its ticket has been waited for or dropped."""

    def __init__(self, paths: Sequence[str], threads: int, piece_bytes: int) -> None: ...
    def submit(self, spans: Sequence[tuple[int, int, int, int]], urgent: bool) -> int:
        """A ticket. `spans`: (number of the file, offset, bytes, destination address); offset and
        destination agree modulo 4096, and the blocks that a span's ends touch are written, too."""
    def hurry(self, ticket: int) -> None:
        """From now on among the urgent ones."""
    def wait(self, ticket: int, seconds: float = -1.0) -> bool:
        """True when all is read. Raises OSError on a failed or short read. The ticket is spent by
        either."""
    def done(self, ticket: int) -> bool:
        """Whole or failed: `wait` returns at once."""
    def drop(self, ticket: int) -> None:
        """Pieces that have not begun are never read; returns when none is being read."""
    def close(self) -> None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def busy_ns(self) -> int:
        """In which at least one read was going on."""
    @property
    def direct(self) -> bool: ...
