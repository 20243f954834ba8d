// Many tokens with the panels of kernels/fixed_panels.inl, on vectors.

namespace headrace::HEADRACE_ISA {

// T tokens: sums[t * kStripRows] += the panel's products.
template <class C, Input kInput, int T>
inline void strip_tile(const StripPanel& p, const FixedRow* x, int from, int groups, float* sums) {
    using Order = StepOrder<kInput>;
    constexpr int kParts = C::kHalves ? 2 : 1, kSteps = kPanelSteps / kParts;
    for (int g = 0; g < groups; ++g) {
        const std::int16_t* q[T];
        for (int t = 0; t < T; ++t) q[t] = x[t].q + Order::first(from + g);
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part) {
            Ints sum[kStripVectors][T];
            for (int v = 0; v < kStripVectors; ++v)
                for (int t = 0; t < T; ++t) sum[v][t] = Ints::zero();
#pragma GCC unroll 16
            for (int i = 0; i < kSteps; ++i) {
                const int step = part * kSteps + i;
                decltype(Ints::load(nullptr)) w[kStripVectors];
                for (int v = 0; v < kStripVectors; ++v)
                    w[v] = Ints::load(p.q[g][step] + v * kStepColumns * F32::N);
                for (int t = 0; t < T; ++t) {
                    const auto xv = Ints::columns(q[t] + Order::place(step));
                    for (int v = 0; v < kStripVectors; ++v) sum[v][t] = sum[v][t].add(w[v], xv);
                }
            }
            for (int t = 0; t < T; ++t) {
                const F32 s = F32::set1(x[t].scale[from + g]);
                const F32 of = F32::set1(half_offsets<C> ? x[t].sum16()[2 * (from + g) + part]
                                                         : x[t].sum[from + g]);
                for (int v = 0; v < kStripVectors; ++v) {
                    float* at = sums + t * kStripRows + v * F32::N;
                    F32 more = F32::load(at);
                    if constexpr (C::kOffset)
                        more = fma(F32::load(p.more[g][part] + v * F32::N), of, more);
                    const F32 scale = F32::load(p.scale[g][part] + v * F32::N) * s;
                    fma(sum[v][t].floats(), scale, more).store(at);
                }
            }
        }
    }
}

inline std::size_t strips_scratch_nbytes(int, int tokens) {
    return sizeof(StripPanel) +
           static_cast<std::size_t>(tokens) * (sizeof(FixedRow) + kStripRows * sizeof(float));
}

template <class C, Input kInput>
inline void strips_run(const Dot& d) {
    const Tiles tiles{d.w, d.w_stride, d.columns, d.format};
    auto& panel = *reinterpret_cast<StripPanel*>(d.scratch);
    auto* sums = reinterpret_cast<float*>(d.scratch + sizeof(StripPanel));
    auto* x = reinterpret_cast<FixedRow*>(sums + d.tokens * kStripRows);
    for (int t = 0; t < d.tokens; ++t) x[t] = FixedRow(d.x[t], d.columns);
    const int groups = groups_of(d.columns);
    for (int row = 0; row < d.rows; row += kStripRows) {
        std::memset(sums, 0, static_cast<std::size_t>(d.tokens * kStripRows) * sizeof(float));
        for (int g = 0; g < groups; g += kStripGroups) {
            const int many = std::min(kStripGroups, groups - g);
            fill_strip<C, kInput>(panel, d, tiles, row, g, many);
            const bool last = g + many == groups;
            ask_for_strip<C>(d, tiles, last ? row + kStripRows : row, last ? 0 : g + many,
                             std::min(kStripGroups, last ? groups : groups - g - many));
            each_tile<kStripTokens>(0, d.tokens, [&](int t, auto tile) {
                strip_tile<C, kInput, tile>(panel, x + t, g, many, sums + t * kStripRows);
            });
        }
        const int rows = std::min(kStripRows, d.rows - row);
        for (int t = 0; t < d.tokens; ++t)
            std::memcpy(d.out + static_cast<std::size_t>(t) * d.out_stride + row,
                        sums + t * kStripRows, static_cast<std::size_t>(rows) * sizeof(float));
    }
}

// Rows of a piece: some strips.
inline int strips_tile_rows(int) { return 4 * kStripRows; }

}  // namespace headrace::HEADRACE_ISA
