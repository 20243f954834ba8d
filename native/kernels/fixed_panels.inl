// Many tokens with packed weights: integer products with rows in lanes.
//
// A strip of rows is taken apart once for some columns, into a panel that stays in L1 and meets
// every token. A sum is exact within 32 columns (16 where a scale ends there), then float32 in
// the order of its groups, whatever shares the call.

namespace headrace::HEADRACE_ISA {

inline constexpr int kStripRows = kStripVectors * F32::N;
inline constexpr int kStripGroups = 16;  // of 32 columns

struct alignas(64) StripPanel {
    PanelCode q[kStripGroups][kPanelSteps][kStripRows * kStepColumns];
    float scale[kStripGroups][2][kStripRows];
    float more[kStripGroups][2][kStripRows];  // of the activations' sums
};

// Of groups [g, g + groups), at most eight.
template <class C>
inline void put_scales(StripPanel& p, const std::array<C, 8>& c, int from, int g, int groups,
                       int row) {
    for (std::size_t r = 0; r < 8; ++r) {
        float scale[2][8], less[2][8];
        scales_of_eight(c[r], from + g, groups, scale, less);
        const std::size_t at = static_cast<std::size_t>(row) + r;
        for (int i = 0; i < groups; ++i) {
            p.scale[g + i][0][at] = scale[0][i];
            if constexpr (C::kHalves) p.scale[g + i][1][at] = scale[1][i];
            if constexpr (C::kOffset) p.more[g + i][0][at] = -less[0][i];
            if constexpr (half_offsets<C>) p.more[g + i][1][at] = -less[1][i];
        }
    }
}

// Formats whose rows lie in lanes (kernels/lanes.inl).
template <class C>
concept Laned = requires { C::kGroupNbytes; };

// Groups [from, from + groups) of rows [row, row + kStripRows); past the last row, that one again.
template <class C, Input kInput>
inline void fill_strip(StripPanel& p, const Dot& d, const Tiles& tiles, int row, int from,
                       int groups) {
    for (int eight = 0; eight < kStripRows; eight += 8) {
        const auto c = [&]<std::size_t... I>(std::index_sequence<I...>) {
            return std::array<C, 8>{
                C(tiles.tile(std::min(row + eight + static_cast<int>(I), d.rows - 1)), tiles)...};
        }(std::make_index_sequence<8>{});
        for (int g = 0; g < groups; ++g) {
            if (g % 8 == 0) put_scales(p, c, from, g, std::min(8, groups - g), eight);
            V32 rows[8];
            for (std::size_t r = 0; r < 8; ++r)
                rows[r] = StepOrder<kInput>::in_steps(c[r].codes(from + g));
            put_eight_rows(rows, p.q[g], eight);
        }
    }
}

// Words of four columns are what steps are made of.
template <Laned C, Input>
inline void fill_strip(StripPanel& p, const Dot& d, const Tiles& tiles, int row, int from,
                       int groups) {
    for (int eight = 0; eight < kStripRows; eight += 8) {
        const int first = row + eight, half = first % kLaneRows / 8;
        const std::byte* group = C::group(tiles, std::min(first, d.rows - 1), from);
        for (int g = 0; g < groups; ++g, group += C::kGroupNbytes) {
            store_floats(&p.scale[g][0][eight], C::scales(group, half));
            V32 words[8];
            C::words(group, half, words);
            put_words(words, p.q[g], eight);
        }
    }
}

// Asks for what `fill_strip` will take.
template <class C>
HEADRACE_INLINE void ask_for_strip(const Dot& d, const Tiles& tiles, int row, int from,
                                   int groups) {
    for (int r = row; r < std::min(row + kStripRows, d.rows); ++r) {
        const C c(tiles.tile(r), tiles);
        ask_for(c.at(from), c.at(from + groups));
    }
}
template <Laned C>
HEADRACE_INLINE void ask_for_strip(const Dot& d, const Tiles& tiles, int row, int from,
                                   int groups) {
    for (int r = row; r < std::min(row + kStripRows, d.rows); r += kLaneRows)
        ask_for(C::group(tiles, r, from), C::group(tiles, r, from + groups));
}

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

inline std::size_t strips_scratch_nbytes(int tokens) {
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
    const int groups = d.columns / 32;
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

// F for as few tokens as it takes, C for more.
template <class F, class C, void (*kUnpack)(const Tiles&, int, float*)>
void many_run(const Dot& d) {
    if (d.tokens > 3 && C::fits({d.w, d.w_stride, d.columns, d.format}))
        return strips_run<C, F::kInput>(d);
    fixed_run<F, kUnpack>(d);
}

inline std::size_t many_scratch_nbytes(int rows, int columns, int tokens) {
    return std::max(strips_scratch_nbytes(tokens), fixed_scratch_nbytes(rows, columns, tokens));
}

template <Laned F>
void lanes_run(const Dot& d) {
    if (d.tokens == 1) return lanes_run_of<F, 1>(d);
    if (d.tokens == 2) return lanes_run_of<F, 2>(d);
    if (d.tokens == 3) return lanes_run_of<F, 3>(d);
    strips_run<F, F::kInput>(d);
}

inline std::size_t lanes_scratch_nbytes(int, int, int tokens) {
    return strips_scratch_nbytes(tokens);
}

template <Laned F>
inline void put_lanes(KernelTable& t, int kind) {
    t.fast[kind] = {F::kInput,        kTileTokens,
                    lanes_run<F>,     lanes_scratch_nbytes,
                    strips_tile_rows, F::kStreams * kLaneRows};
}

template <class F, class C, void (*kUnpack)(const Tiles&, int, float*)>
inline void put_many(KernelTable& t, int kind) {
    t.fast[kind] = {F::kInput, kTileTokens, many_run<F, C, kUnpack>, many_scratch_nbytes,
                    strips_tile_rows};
}

inline void put_panel_kernels(KernelTable& t) {
    put_many<FixedNVFP4, CodesNVFP4, unpack_nvfp4>(t, kNVFP4);
    put_many<FixedInt4<false>, CodesInt4<false>, unpack_int4<false>>(t, kInt4F16);
    put_many<FixedInt4<true>, CodesInt4<true>, unpack_int4<true>>(t, kInt4BF16);
    put_lanes<LanesQ8_0>(t, kQ8_0);
    put_lanes<LanesQ4_0>(t, kQ4_0);
    put_lanes<LanesMXFP4>(t, kGgmlMXFP4);
    put_many<FixedIQ4_NL, CodesIQ4_NL, unpack_iq4_nl>(t, kIQ4_NL);
    put_many<PlanesK<144, false>, CodesK<144, false>, unpack_q4_k>(t, kQ4_K);
    put_many<PlanesK<176, true>, CodesK<176, true>, unpack_q5_k>(t, kQ5_K);
    put_many<FixedQ6_K, CodesQ6_K, unpack_q6_k>(t, kQ6_K);
}

}  // namespace headrace::HEADRACE_ISA
