// Many tokens: rows as panels of float32, whatever they were, and the products with them.
//
// Panels hold what a tile of sums needs next to each other, so that no two streams share cache
// sets. Each sum walks k as the streaming kernels do, so both give the same bits.

namespace headrace::HEADRACE_ISA {

inline constexpr int kNearTokens = 4 * kTileTokens;
// For which a tile's sums stay in registers.
inline constexpr int kPanelColumns = std::max(256, 32 * F32::N);

inline int vectors_of(int columns) { return (columns + F32::N - 1) / F32::N; }

inline std::size_t floats_of_rows(int rows, int columns) {
    const int strips = (rows + kTileRows - 1) / kTileRows;
    return static_cast<std::size_t>(strips * kTileRows) *
           static_cast<std::size_t>(vectors_of(columns) * F32::N);
}

// Vectors of a panel's row lie `kTall` vectors apart.
template <int kTall, class Rows>
inline void put_in_panel(const typename Rows::Weight* from, int columns, float* to) {
    int k = 0;
    for (; k + F32::N <= columns; k += F32::N, to += kTall * F32::N)
        Widened<Rows>::weight(from + k).store(to);
    if (k < columns) Widened<Rows>::weight_partial(from + k, columns - k).store(to);
}

inline void zero_in_panel(int columns, float* to) {
    for (int v = 0; v < vectors_of(columns); ++v, to += kTileRows * F32::N) F32::zero().store(to);
}

// Where row `r` of the weights' panels begins.
inline float* row_of_panels(float* panels, int r, int columns) {
    return panels +
           static_cast<std::size_t>(r / kTileRows * kTileRows) *
               static_cast<std::size_t>(vectors_of(columns) * F32::N) +
           r % kTileRows * F32::N;
}

struct PanelTile {
    const float *w, *x;
    int vectors;  // of k
    float* sums;  // [row, token] of one vector each
};

template <int T>
inline void panel_tile(const PanelTile& p) {
    constexpr int R = kTileRows;
    F32 sum[R][T];
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) sum[r][t] = F32::load(p.sums + (r * T + t) * F32::N);
    const float *w = p.w, *x = p.x;
    for (int k = 0; k < p.vectors; ++k, w += R * F32::N, x += T * F32::N) {
        F32 xv[T];
        for (int t = 0; t < T; ++t) xv[t] = F32::load(x + t * F32::N);
        for (int r = 0; r < R; ++r) {
            const F32 wv = F32::load(w + r * F32::N);
            for (int t = 0; t < T; ++t) sum[r][t] = fma(wv, xv[t], sum[r][t]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) sum[r][t].store(p.sums + (r * T + t) * F32::N);
}

// fn(first token, tokens as a constant) for all of them, kTileTokens at a time.
template <int T, class Fn>
inline void each_tile(int first, int tokens, Fn&& fn) {
    for (; first + T <= tokens; first += T) fn(first, std::integral_constant<int, T>{});
    if constexpr (T > 1) {
        if (first < tokens) each_tile<T - 1>(first, tokens, fn);
    }
}

// Up to kBlockTokens with all rows. `x` has room for the activations of a block of columns.
inline void panels_with(const Dot& d, const float* panels, int first, int tokens, float* sums,
                        float* x) {
    const int vectors = vectors_of(d.columns), strips = (d.rows + kTileRows - 1) / kTileRows;
    const auto tile_sums = [&](int strip, int token) {
        return sums + (strip * tokens + token) * kTileRows * F32::N;
    };
    std::memset(sums, 0,
                static_cast<std::size_t>(strips * tokens * kTileRows * F32::N) * sizeof(float));
    for (int k = 0; k < d.columns; k += kPanelColumns) {
        const int columns = std::min(kPanelColumns, d.columns - k), wide = vectors_of(columns);
        each_tile<kTileTokens>(0, tokens, [&](int token, auto many) {
            for (int t = 0; t < many; ++t)
                put_in_panel<many, FloatRows>(
                    reinterpret_cast<const float*>(d.x[first + token + t]) + k, columns,
                    x + (token * wide + t) * F32::N);
        });
        // Some tokens stay in L1 for all strips: one strip alone would wait for L2.
        for (int near = 0; near < tokens; near += kNearTokens) {
            const int end = std::min(tokens, near + kNearTokens);
            for (int s = 0; s < strips; ++s) {
                const float* w = panels +
                                 static_cast<std::size_t>(s * kTileRows * F32::N) *
                                     static_cast<std::size_t>(vectors) +
                                 static_cast<std::size_t>(k) * kTileRows;
                each_tile<kTileTokens>(near, end, [&](int token, auto many) {
                    panel_tile<many>({w, x + token * wide * F32::N, wide, tile_sums(s, token)});
                });
            }
        }
    }
    each_tile<kTileTokens>(0, tokens, [&](int token, auto many) {
        for (int r = 0; r < d.rows; ++r)
            for (int t = 0; t < many; ++t)
                d.out[static_cast<std::size_t>(first + token + t) * d.out_stride +
                      static_cast<std::size_t>(r)] =
                    F32::load(tile_sums(r / kTileRows, token) + (r % kTileRows * many + t) * F32::N)
                        .reduce_add();
    });
}

// Floats of scratch beside the panels.
inline std::size_t floats_beside_panels(int rows, int tokens) {
    const auto t = static_cast<std::size_t>(std::min(tokens, kBlockTokens));
    return (static_cast<std::size_t>(rows + kTileRows) * F32::N + kPanelColumns) * t;
}

inline void panels_run(const Dot& d, const float* panels, float* beside) {
    float* x = beside + static_cast<std::size_t>(d.rows + kTileRows) * F32::N *
                            static_cast<std::size_t>(std::min(d.tokens, kBlockTokens));
    for (int first = 0; first < d.tokens; first += kBlockTokens)
        panels_with(d, panels, first, std::min(kBlockTokens, d.tokens - first), beside, x);
}

template <class Rows>
inline void widened_panels(const Dot& d) {
    auto* panels = reinterpret_cast<float*>(d.scratch);
    int r = 0;
    for (; r < d.rows; ++r)
        put_in_panel<kTileRows, Rows>(reinterpret_cast<const typename Rows::Weight*>(
                                          d.w + static_cast<std::size_t>(r) * d.w_stride),
                                      d.columns, row_of_panels(panels, r, d.columns));
    for (; r % kTileRows != 0; ++r) zero_in_panel(d.columns, row_of_panels(panels, r, d.columns));
    panels_run(d, panels, panels + floats_of_rows(d.rows, d.columns));
}

template <class Rows>
void widened_run(const Dot& d) {
    if (d.tokens <= kTileTokens) return stream_any<Widened<Rows>, kTileTokens>(d);
    widened_panels<Rows>(d);
}

inline std::size_t panels_scratch_nbytes(int rows, int columns, int tokens) {
    return (floats_of_rows(rows, columns) + floats_beside_panels(rows, tokens)) * sizeof(float);
}

inline std::size_t widened_scratch_nbytes(int rows, int columns, int tokens) {
    return tokens <= kTileTokens ? 0 : panels_scratch_nbytes(rows, columns, tokens);
}

template <class Rows>
DotKernel widened_kernel() {
    return {kFloatInput, kTileTokens, widened_run<Rows>, widened_scratch_nbytes, dot_tile_rows};
}

}  // namespace headrace::HEADRACE_ISA
