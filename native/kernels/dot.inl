// Products of weight rows with activation rows, over any policy P that says how both are loaded.
//
// Every (row, token) pair has one vector accumulator that walks k in ascending steps and is
// reduced once at the end. All paths keep that order, so they give the same bits.

namespace headrace::HEADRACE_ISA {

#if defined(HEADRACE_SIMD_AVX2)
// 12 sums, 3 activations and a weight: 16 registers.
inline constexpr int kTileRows = 4, kTileTokens = 3;
#elif defined(HEADRACE_SIMD_SCALAR)
inline constexpr int kTileRows = 4, kTileTokens = 2;
#else
inline constexpr int kTileRows = 6, kTileTokens = 4;  // 32 registers
#endif
inline constexpr int kStreamRows = 4;                  // rows read at once when tokens are few
inline constexpr int kBlockTokens = 48;                // tokens whose sums wait in L2
inline constexpr std::size_t kTileNbytes = 256 << 10;  // converted weights of one piece: half of L2

struct FloatRows {
    using Weight = float;
    static F32 load(const float* p) { return F32::load(p); }
};
struct Bf16Rows {
    using Weight = std::uint16_t;
    static F32 load(const std::uint16_t* p) { return F32::from_bf16(p); }
};
struct F16Rows {
    using Weight = std::uint16_t;
    static F32 load(const std::uint16_t* p) { return F32::from_f16(p); }
};

// float32 activations; weights are widened while they are loaded.
template <class Rows>
struct Widened {
    using Weight = typename Rows::Weight;
    using Activation = float;
    using W = F32;
    using X = F32;
    static constexpr int kStep = F32::N;

    static W weight(const Weight* p) { return Rows::load(p); }
    static W weight_partial(const Weight* p, int n) {
        Weight padded[F32::N] = {};
        std::memcpy(padded, p, static_cast<std::size_t>(n) * sizeof(Weight));
        return Rows::load(padded);
    }
    static X activation(const float* p) { return F32::load(p); }
    static X activation_partial(const float* p, int n) { return F32::load_partial(p, n); }
    static F32 mac(F32 sum, W w, X x) { return fma(w, x, sum); }
};

template <class P, int R, int T>
inline void step(const typename P::Weight* w, std::size_t stride,
                 const typename P::Activation* const (&x)[T], int k, F32 (&sum)[R][T]) {
    typename P::X xv[T];
    for (int t = 0; t < T; ++t) xv[t] = P::activation(x[t] + k);
    for (int r = 0; r < R; ++r) {
        const typename P::W wv = P::weight(w + static_cast<std::size_t>(r) * stride + k);
        for (int t = 0; t < T; ++t) sum[r][t] = P::mac(sum[r][t], wv, xv[t]);
    }
}

// The same sums as `step` for a cache line of each row in turn: what memory delivers is used in
// longer strides, which streams 5% faster.
template <class P, int R, int T>
inline int line_steps(const typename P::Weight* w, std::size_t stride,
                      const typename P::Activation* const (&x)[T], int k, int to,
                      F32 (&sum)[R][T]) {
    constexpr int kSteps = std::max(1, 64 / static_cast<int>(sizeof(*w)) / P::kStep);
    constexpr int kLine = kSteps * P::kStep;
    for (; k + kLine <= to; k += kLine) {
        typename P::X xv[kSteps][T];
        for (int i = 0; i < kSteps; ++i)
            for (int t = 0; t < T; ++t) xv[i][t] = P::activation(x[t] + k + i * P::kStep);
        for (int r = 0; r < R; ++r) {
            const auto* row = w + static_cast<std::size_t>(r) * stride + k;
            for (int i = 0; i < kSteps; ++i) {
                const typename P::W wv = P::weight(row + i * P::kStep);
                for (int t = 0; t < T; ++t) sum[r][t] = P::mac(sum[r][t], wv, xv[i][t]);
            }
        }
    }
    return k;
}

template <class P, int R, int T, bool Lines = false>
inline void tile(const typename P::Weight* w, std::size_t stride, const std::byte* const* x,
                 int from, int to, F32 (&sum)[R][T]) {
    using Activation = typename P::Activation;
    const Activation* xs[T];
    for (int t = 0; t < T; ++t) xs[t] = reinterpret_cast<const Activation*>(x[t]);
    int k = from;
    if constexpr (Lines) k = line_steps<P, R, T>(w, stride, xs, k, to, sum);
    for (; k + P::kStep <= to; k += P::kStep) step<P, R, T>(w, stride, xs, k, sum);
    if (k < to) {
        typename P::X xv[T];
        for (int t = 0; t < T; ++t) xv[t] = P::activation_partial(xs[t] + k, to - k);
        for (int r = 0; r < R; ++r) {
            const auto* row = w + static_cast<std::size_t>(r) * stride + k;
            const typename P::W wv = P::weight_partial(row, to - k);
            for (int t = 0; t < T; ++t) sum[r][t] = P::mac(sum[r][t], wv, xv[t]);
        }
    }
}

template <class P, int R, int T>
inline void stream_rows(const Dot& d, int row, int apart) {
    F32 sum[R][T];
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) sum[r][t] = F32::zero();
    const auto* w = reinterpret_cast<const typename P::Weight*>(
        d.w + static_cast<std::size_t>(row) * d.w_stride);
    tile<P, R, T, T == 1>(w, static_cast<std::size_t>(apart) * d.w_stride / sizeof(*w), d.x, 0,
                          d.columns, sum);
    for (int t = 0; t < T; ++t)
        for (int r = 0; r < R; ++r)
            d.out[static_cast<std::size_t>(t) * d.out_stride +
                  static_cast<std::size_t>(row + r * apart)] = sum[r][t].reduce_add();
}

// Few tokens: weights are used as they come from memory, once. The rows of one group lie far
// apart, so that a processor's prefetching sees a few long streams, each through many rows: 768
// columns in bfloat16 stream at 18.8 GB/s on two Zen 3 cores, 10.8 with neighbouring rows.
template <class P, int T>
inline void stream(const Dot& d) {
    const int apart = d.rows / kStreamRows;
    for (int row = 0; row < apart; ++row) stream_rows<P, kStreamRows, T>(d, row, apart);
    for (int row = apart * kStreamRows; row < d.rows; ++row) stream_rows<P, 1, T>(d, row, 1);
}

template <class P, int T>
inline void stream_any(const Dot& d) {
    if (d.tokens == T) return stream<P, T>(d);
    if constexpr (T > 1) stream_any<P, T - 1>(d);
}

inline std::size_t padded_columns(int columns) {
    return (static_cast<std::size_t>(columns) + 15) / 16 * 16;
}

inline int dot_tile_rows(int columns) {
    const std::size_t row = padded_columns(columns) * sizeof(float);
    const auto fit = static_cast<int>(kTileNbytes / row) / kTileRows * kTileRows;
    return fit < kTileRows ? kTileRows : fit > 16 * kTileRows ? 16 * kTileRows : fit;
}

}  // namespace headrace::HEADRACE_ISA
