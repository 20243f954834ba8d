// The short convolution and the gated delta rule: both carry a state from token to token.

namespace headrace::HEADRACE_ISA {

inline std::size_t conv_scratch_nbytes(const Conv& c) {
    return static_cast<std::size_t>(2 * c.kernel) * Conv::kChannels * sizeof(float);
}

// Channels [at, at + n) with n <= Conv::kChannels. Token by token, so that a row of x is read as a
// run of cache lines, once. kKernel is the number of taps where it is known (then the compiler can
// turn weights and state with shuffles), or 0.
template <int kKernel>
inline void conv_channels(const Conv& c, int sequence, std::int64_t at, int n, float* scratch) {
    const int kernel = kKernel > 0 ? kKernel : c.kernel;
    const int past = kernel - 1;
    const std::int64_t first = c.offsets[sequence];
    const std::int64_t tokens = c.offsets[sequence + 1] - first;
    float* taps = scratch;                                // [kernel, Conv::kChannels]
    float* history = scratch + kernel * Conv::kChannels;  // [past, Conv::kChannels]
    float* state =
        c.state + (static_cast<std::int64_t>(c.slots[sequence]) * c.channels + at) * past;
    const float* weight = c.weight + at * kernel;
    for (int i = 0; i < n; ++i)
        for (int k = 0; k < kernel; ++k) taps[k * Conv::kChannels + i] = weight[i * kernel + k];
    for (int i = 0; i < n; ++i)
        for (int k = 0; k < past; ++k) history[k * Conv::kChannels + i] = state[i * past + k];
    const float* x = c.x + first * c.x_stride + at;
    const auto input = [&](std::int64_t t) {  // t >= -past
        return t < 0 ? history + (t + past) * Conv::kChannels : x + t * c.x_stride;
    };
    for (std::int64_t t = 0; t < tokens; ++t) {
        float* y = c.y + (first + t) * c.channels + at;
        for (int i = 0; i < n; i += F32::N) {
            const int lanes = n - i < F32::N ? n - i : F32::N;
            F32 sum = c.bias == nullptr ? F32::zero() : load_lanes(c.bias + at + i, lanes);
            for (int k = 0; k < kernel; ++k)
                sum = fma(load_lanes(taps + k * Conv::kChannels + i, lanes),
                          load_lanes(input(t - past + k) + i, lanes), sum);
            if (c.silu) sum = silu(sum);
            store_lanes(sum, y + i, lanes);
        }
    }
    for (int k = 0; k < past; ++k) {
        const float* kept = input(tokens - past + k);
        std::memcpy(taps + k * Conv::kChannels, kept, static_cast<std::size_t>(n) * sizeof(float));
    }
    for (int i = 0; i < n; ++i)
        for (int k = 0; k < past; ++k) state[i * past + k] = taps[k * Conv::kChannels + i];
}

inline void conv_piece(const Conv& c, int sequence, std::int64_t first, std::int64_t last,
                       std::byte* scratch) {
    if (c.offsets[sequence] == c.offsets[sequence + 1]) return;
    const auto run = c.kernel == 4 ? conv_channels<4> : conv_channels<0>;
    for (std::int64_t at = first; at < last; at += Conv::kChannels)
        run(c, sequence, at,
            static_cast<int>(last - at < Conv::kChannels ? last - at : Conv::kChannels),
            reinterpret_cast<float*>(scratch));
}

inline constexpr int kDeltaVectors = Delta::kColumns / F32::N;

// Of a token, prepared: q, k, and the decay of each row where rows have their own.
inline std::int64_t key_floats(const Delta& c) { return (c.decay_rows ? 3 : 2) * c.key_dim; }

inline std::size_t delta_scratch_nbytes(const Delta& c) {
    const auto key_dim = static_cast<std::size_t>(c.key_dim);
    const auto prepared = static_cast<std::size_t>(key_floats(c));
    return (key_dim * Delta::kColumns + prepared * Delta::kTokens) * sizeof(float);
}

// y = x * scale, or x / sqrt(sum of squares + 1e-6) * scale.
inline void scaled_key(const float* x, int n, bool normalize, float scale, float* y) {
    const float by = normalize ? scale / std::sqrt(sum_of_squares(x, n) + 1e-6f) : scale;
    for (int i = 0; i < n; i += F32::N) {
        const int lanes = n - i < F32::N ? n - i : F32::N;
        store_lanes(load_lanes(x + i, lanes) * F32::set1(by), y + i, lanes);
    }
}

// One token on kColumns columns of S (rows `stride` floats apart): S = g S + k (b (v - g k.S))^T;
// out = q.S. kRows: each row has a g of its own, in `decay`. Even and odd rows have their own sums,
// to have enough independent chains.
template <bool kRows>
inline void delta_token(float* s, std::int64_t stride, int key_dim, const float* q, const float* k,
                        const float* decay, float beta, const F32* v, F32* out) {
    constexpr int V = kDeltaVectors;
    F32 even[V], odd[V], change[V];
    for (int u = 0; u < V; ++u) even[u] = odd[u] = F32::zero();
    const auto key = [&](int row) { return F32::set1(kRows ? k[row] * decay[row] : k[row]); };
    int i = 0;
    for (; i + 2 <= key_dim; i += 2) {
        const float* row = s + i * stride;
        const F32 k0 = key(i), k1 = key(i + 1);
        for (int u = 0; u < V; ++u) even[u] = fma(k0, F32::load(row + u * F32::N), even[u]);
        for (int u = 0; u < V; ++u) odd[u] = fma(k1, F32::load(row + stride + u * F32::N), odd[u]);
    }
    if (i < key_dim)
        for (int u = 0; u < V; ++u)
            even[u] = fma(key(i), F32::load(s + i * stride + u * F32::N), even[u]);
    const F32 all = F32::set1(decay[0]);
    for (int u = 0; u < V; ++u) {
        const F32 seen = kRows ? even[u] + odd[u] : all * (even[u] + odd[u]);
        change[u] = (v[u] - seen) * F32::set1(beta);
        even[u] = odd[u] = F32::zero();
    }
    const auto update = [&](int row, F32* sums) {
        float* at = s + row * stride;
        const F32 kr = F32::set1(k[row]), qr = F32::set1(q[row]);
        const F32 g = kRows ? F32::set1(decay[row]) : all;
        for (int u = 0; u < V; ++u) {
            const F32 now = fma(kr, change[u], F32::load(at + u * F32::N) * g);
            now.store(at + u * F32::N);
            sums[u] = fma(qr, now, sums[u]);
        }
    };
    for (i = 0; i + 2 <= key_dim; i += 2) {
        update(i, even);
        update(i + 1, odd);
    }
    if (i < key_dim) update(i, even);
    for (int u = 0; u < V; ++u) out[u] = even[u] + odd[u];
}

inline void load_columns(const float* from, int n, F32* v) {
    for (int u = 0; u < kDeltaVectors; ++u) {
        const int left = n - u * F32::N;
        if (left >= F32::N)
            v[u] = F32::load(from + u * F32::N);
        else
            v[u] = left > 0 ? load_lanes(from + u * F32::N, left) : F32::zero();
    }
}

inline void store_columns(const F32* v, int n, float* to) {
    for (int u = 0; u * F32::N < n; ++u) {
        const int left = n - u * F32::N;
        store_lanes(v[u], to + u * F32::N, left < F32::N ? left : F32::N);
    }
}

// Columns [at, at + n) of a state, `width` to a row, as a dense block.
inline void take_block(const float* state, int rows, int width, int at, int n, float* block) {
    F32 v[kDeltaVectors];
    for (int i = 0; i < rows; ++i) {
        load_columns(state + static_cast<std::int64_t>(i) * width + at, n, v);
        store_columns(v, Delta::kColumns, block + i * Delta::kColumns);
    }
}

// And back.
inline void put_block(const float* block, int rows, int width, int at, int n, float* state) {
    F32 v[kDeltaVectors];
    for (int i = 0; i < rows; ++i) {
        load_columns(block + i * Delta::kColumns, Delta::kColumns, v);
        store_columns(v, n, state + static_cast<std::int64_t>(i) * width + at);
    }
}

// A head's matrix in a sequence's slot.
template <class C>
inline float* state_of(const C& c, int sequence, int head) {
    return c.state + (static_cast<std::int64_t>(c.slots[sequence]) * c.value_heads + head) *
                         c.key_dim * c.value_dim;
}

// Tokens [first, last), at most kTokens, on columns [at, at + n) of one head. Keys are prepared.
inline void delta_block(const Delta& c, int head, float* state, std::int64_t first,
                        std::int64_t last, int at, int n, const float* keys, float* block) {
    F32 lanes[kDeltaVectors], out[kDeltaVectors];
    // A single token works on the state in place; a run, or a narrow block, on a dense copy.
    const bool copied = n < Delta::kColumns || last - first > 1;
    float* s = copied ? block : state + at;
    const std::int64_t stride = copied ? Delta::kColumns : c.value_dim;
    if (copied) take_block(state, c.key_dim, c.value_dim, at, n, block);
    for (std::int64_t t = first; t < last; ++t, keys += key_floats(c)) {
        const std::int64_t gate = t * c.value_heads + head;
        load_columns(c.v + t * c.v_stride + head * c.value_dim + at, n, lanes);
        if (c.decay_rows) {
            delta_token<true>(s, stride, c.key_dim, keys, keys + c.key_dim, keys + 2 * c.key_dim,
                              c.beta[gate], lanes, out);
        } else {
            const float decay = std::exp(c.decay[gate]);
            delta_token<false>(s, stride, c.key_dim, keys, keys + c.key_dim, &decay, c.beta[gate],
                               lanes, out);
        }
        store_columns(out, n, c.out + gate * c.value_dim + at);
    }
    if (copied) put_block(block, c.key_dim, c.value_dim, at, n, state);
}

inline void delta_piece(const Delta& c, int sequence, int head, int first, int last,
                        std::byte* scratch) {
    float* block = reinterpret_cast<float*>(scratch);
    float* keys = block + static_cast<std::int64_t>(c.key_dim) * Delta::kColumns;
    const int key_head = c.tiled ? head % c.key_heads : head / (c.value_heads / c.key_heads);
    float* state = state_of(c, sequence, head);
    const std::int64_t end = c.offsets[sequence + 1];
    for (std::int64_t t = c.offsets[sequence]; t < end; t += Delta::kTokens) {
        const std::int64_t stop = end - t < Delta::kTokens ? end : t + Delta::kTokens;
        for (std::int64_t i = t; i < stop; ++i) {
            float* q = keys + (i - t) * key_floats(c);
            const std::int64_t at = static_cast<std::int64_t>(key_head) * c.key_dim;
            scaled_key(c.q + i * c.q_stride + at, c.key_dim, c.normalize, c.scale, q);
            scaled_key(c.k + i * c.k_stride + at, c.key_dim, c.normalize, 1.0f, q + c.key_dim);
            if (!c.decay_rows) continue;
            const float* decay = c.decay + (i * c.value_heads + head) * c.key_dim;
            for (int j = 0; j < c.key_dim; ++j) q[2 * c.key_dim + j] = std::exp(decay[j]);
        }
        for (int at = first; at < last; at += Delta::kColumns)
            delta_block(c, head, state, t, stop, at,
                        last - at < Delta::kColumns ? last - at : Delta::kColumns, keys, block);
    }
}

}  // namespace headrace::HEADRACE_ISA
