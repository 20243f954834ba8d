// bfloat16 weights times bfloat16 activations, 32 products an instruction (AVX-512 BF16).

namespace headrace::HEADRACE_ISA {

struct Bf16Dot {
    using Weight = std::uint16_t;
    using Activation = std::uint16_t;
    using W = __m512bh;
    using X = __m512bh;
    static constexpr int kStep = 32;

    static __m512bh load(const std::uint16_t* p) {
        __m512bh v;
        std::memcpy(&v, p, sizeof v);
        return v;
    }
    static __m512bh load_partial(const std::uint16_t* p, int n) {
        std::uint16_t padded[kStep] = {};
        std::memcpy(padded, p, static_cast<std::size_t>(n) * sizeof *p);
        return load(padded);
    }
    static W weight(const std::uint16_t* p) { return load(p); }
    static W weight_partial(const std::uint16_t* p, int n) { return load_partial(p, n); }
    static X activation(const std::uint16_t* p) { return load(p); }
    static X activation_partial(const std::uint16_t* p, int n) { return load_partial(p, n); }
    static F32 mac(F32 sum, W w, X x) { return {_mm512_dpbf16_ps(sum.v, w, x)}; }
};

inline constexpr int kBlockColumns = 1024;  // columns for which a tile's sums stay in registers

struct Block {
    std::size_t stride;  // in weights
    const std::byte* const* x;
    int from, to;  // columns
    float* sums;   // [row, token of the block] of one vector each
    int tokens;
};

template <class P, int R, int T>
inline void block_tile(const typename P::Weight* w, const Block& b, int row, int token) {
    F32 sum[R][T];
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t)
            sum[r][t] = F32::load(b.sums + ((row + r) * b.tokens + token + t) * F32::N);
    tile<P, R, T>(w + static_cast<std::size_t>(row) * b.stride, b.stride, b.x + token, b.from, b.to,
                  sum);
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t)
            sum[r][t].store(b.sums + ((row + r) * b.tokens + token + t) * F32::N);
}

template <class P, int R, int T>
inline void block_tokens(const typename P::Weight* w, const Block& b, int row, int token) {
    for (; token + T <= b.tokens; token += T) block_tile<P, R, T>(w, b, row, token);
    if constexpr (T > 1) {
        if (token < b.tokens) block_tokens<P, R, T - 1>(w, b, row, token);
    }
}

template <class P>
inline void block_rows(const typename P::Weight* w, const Block& b, int rows) {
    int row = 0;
    for (; row + kTileRows <= rows; row += kTileRows)
        block_tokens<P, kTileRows, kTileTokens>(w, b, row, 0);
    for (; row < rows; ++row) block_tokens<P, 1, kTileTokens>(w, b, row, 0);
}

// Many tokens: rows are in cache and meet every token, block by block.
template <class P>
inline void block_all(const Dot& d, const typename P::Weight* w, std::size_t stride, float* sums) {
    for (int first = 0; first < d.tokens; first += kBlockTokens) {
        const int tokens = d.tokens - first < kBlockTokens ? d.tokens - first : kBlockTokens;
        const int count = d.rows * tokens;
        std::memset(sums, 0, static_cast<std::size_t>(count * F32::N) * sizeof(float));
        for (int k = 0; k < d.columns; k += kBlockColumns) {
            const int to = d.columns - k < kBlockColumns ? d.columns : k + kBlockColumns;
            block_rows<P>(w, Block{stride, d.x + first, k, to, sums, tokens}, d.rows);
        }
        for (int t = 0; t < tokens; ++t)
            for (int r = 0; r < d.rows; ++r)
                d.out[static_cast<std::size_t>(first + t) * d.out_stride +
                      static_cast<std::size_t>(r)] =
                    F32::load(sums + (r * tokens + t) * F32::N).reduce_add();
    }
}

inline void bf16_dot_run(const Dot& d) {
    if (d.tokens <= kTileTokens) return stream_any<Bf16Dot, kTileTokens>(d);
    const auto* rows = reinterpret_cast<const std::uint16_t*>(d.w);
    block_all<Bf16Dot>(d, rows, d.w_stride / sizeof(*rows), reinterpret_cast<float*>(d.scratch));
}

inline std::size_t bf16_dot_scratch_nbytes(int rows, int, int tokens) {
    if (tokens <= kTileTokens) return 0;
    return static_cast<std::size_t>(rows * std::min(tokens, kBlockTokens) * F32::N) * sizeof(float);
}

inline DotKernel bf16_dot_kernel() {
    return {kBf16Input, kTileTokens, bf16_dot_run, bf16_dot_scratch_nbytes, dot_tile_rows};
}

}  // namespace headrace::HEADRACE_ISA
