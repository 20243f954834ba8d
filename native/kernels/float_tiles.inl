// Many tokens on tiles with weights that are exact in bfloat16: E4M3, and E2M1 with scales of four
// bits or powers of two. Activations are two bfloat16 each, what the first leaves out in the
// second, so their error is 2^-17 of each.
//
// A token's sums are its own row of C; they walk the columns upwards, 32 at a time, whatever shares
// the call.

namespace headrace::HEADRACE_ISA {

inline constexpr int kWideTokens = 2 * kTile;
inline constexpr int kWideTiles = 4;  // of tokens, whose bytes stay in L2 for all rows of a piece

struct alignas(64) WideGroup {
    std::uint16_t high[kTile][32], low[kTile][32];
};

// Where the upper halves of 32 floats go, those of the first 16 before the others.
struct WideOrder {
    alignas(64) std::uint16_t of[32];
};
inline constexpr WideOrder kWideOrder = [] {
    WideOrder order{};
    for (int word = 0; word < 8; ++word)
        for (int i = 0; i < 4; ++i)
            order.of[word * 4 + i] =
                static_cast<std::uint16_t>(2 * (word * 4 + i % 2 * 2 + i / 2) + 1);
    return order;
}();

HEADRACE_INLINE __m512i in_wide_order(__m512i first, __m512i second) {
    return _mm512_permutex2var_epi16(first, load_words(kWideOrder.of), second);
}

// One group of a token.
HEADRACE_INLINE void put_wide_group(const float* x, std::uint16_t* high, std::uint16_t* low) {
    __m512i h[2], l[2];
    for (int i = 0; i < 2; ++i) {
        const __m512 v = _mm512_loadu_ps(x + i * 16);
        h[i] = bf16_bits(v);
        l[i] = bf16_bits(_mm512_sub_ps(v, _mm512_castsi512_ps(h[i])));
    }
    const __m512i all[2] = {in_wide_order(h[0], h[1]), in_wide_order(l[0], l[1])};
    std::memcpy(high, &all[0], sizeof all[0]);
    std::memcpy(low, &all[1], sizeof all[1]);
}

// A tile of up to 16 tokens, the others zeros: as many groups at a time as stay in L1.
inline void put_wide_tokens(const float* const* x, int tokens, int groups, WideGroup* to) {
    for (int from = 0; from < groups; from += kStripGroups) {
        const int end = std::min(from + kStripGroups, groups);
        for (int t = 0; t < kTile; ++t)
            for (int g = from; g < end; ++g) {
                if (t < tokens) {
                    put_wide_group(x[t] + g * 32, to[g].high[t], to[g].low[t]);
                    continue;
                }
                std::memset(to[g].high[t], 0, sizeof to[g].high[t]);
                std::memset(to[g].low[t], 0, sizeof to[g].low[t]);
            }
    }
}

// Sums of a span: [tile of tokens, tile of rows].
struct alignas(64) WideSums {
    float of[2][2][kTile][kTile];
};

HEADRACE_INLINE void zero_wide_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

// Groups [g, g + groups) of 32 rows with one tile of tokens or two, `apart` from each other.
template <bool kTwo>
HEADRACE_INLINE void multiply_span(const WidePanel& p, const WideGroup* x, std::ptrdiff_t apart,
                                   int g, int groups, WideSums& sums) {
    zero_wide_sums();
    for (int i = g; i < g + groups; ++i) {
        _tile_loadd(6, p.w[i][0], 64);
        _tile_loadd(7, p.w[i][1], 64);
        _tile_loadd(4, x[i].high, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (kTwo) {
            _tile_loadd(5, x[apart + i].high, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_loadd(4, x[i].low, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (kTwo) {
            _tile_loadd(5, x[apart + i].low, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums.of[0][0], 64);
    _tile_stored(1, sums.of[0][1], 64);
    if constexpr (kTwo) {
        _tile_stored(2, sums.of[1][0], 64);
        _tile_stored(3, sums.of[1][1], 64);
    }
}

// to[t * kWideRows] += the panel's products, of up to 32 tokens.
inline void multiply_panel(const WidePanel& p, const WideGroup* x, std::ptrdiff_t apart, int groups,
                           int span, int tokens, float* to) {
    WideSums sums;
    for (int g = 0; g < groups; g += span) {
        const int many = std::min(span, groups - g);
        memory_barrier();
        if (tokens > kTile)
            multiply_span<true>(p, x, apart, g, many, sums);
        else
            multiply_span<false>(p, x, apart, g, many, sums);
        memory_barrier();
        const float* scale = p.scale[g + many - 1];
        for (int t = 0; t < tokens; ++t)
            for (int r = 0; r < 2; ++r) {
                float* at = to + t * kWideRows + r * kTile;
                fma(F32::load(sums.of[t / kTile][r][t % kTile]), F32::load(scale + r * kTile),
                    F32::load(at))
                    .store(at);
            }
    }
}

inline int wide_tokens(int tokens) {
    return std::min(kWideTiles, (tokens + kTile - 1) / kTile) * kTile;
}

template <class W>
inline std::size_t wide_scratch_nbytes(int columns, int tokens) {
    const auto block = static_cast<std::size_t>(wide_tokens(tokens));
    return sizeof(WidePanel) + (sizeof(W) + 63) / 64 * 64 +
           block / kTile * static_cast<std::size_t>(columns) / 32 * sizeof(WideGroup) +
           block * kWideRows * sizeof(float) + pointers_nbytes(tokens);
}

// All rows with `tokens` of a block, from `first` on.
template <class W>
inline void wide_block(const Dot& d, const Tiles& tiles, const WideGroup* x, int first, int tokens,
                       WidePanel& panel, W& format, float* sums) {
    const int groups = d.columns / 32, span = W::span(tiles);
    for (int row = 0; row < d.rows; row += kWideRows) {
        std::memset(sums, 0, static_cast<std::size_t>(tokens * kWideRows) * sizeof(float));
        for (int g = 0; g < groups; g += kStripGroups) {
            const int many = std::min(kStripGroups, groups - g);
            format.fill(panel, d, tiles, row, g, many);
            const bool last = g + many == groups;
            W::ask(d, tiles, last ? row + kWideRows : row, last ? 0 : g + many,
                   std::min(kStripGroups, last ? groups : groups - g - many));
            for (int t = 0; t < tokens; t += kWideTokens)
                multiply_panel(panel, x + t / kTile * groups + g, groups, many, span,
                               std::min(kWideTokens, tokens - t), sums + t * kWideRows);
        }
        W::put_whole(panel, d, tiles, row);
        const int rows = std::min(kWideRows, d.rows - row);
        for (int t = 0; t < tokens; ++t) {
            float* at = sums + t * kWideRows;
            for (int r = 0; r < kWideRows; r += kTile)
                (F32::load(at + r) * F32::load(panel.whole + r)).store(at + r);
            std::memcpy(d.out + static_cast<std::size_t>(first + t) * d.out_stride + row, at,
                        static_cast<std::size_t>(rows) * sizeof(float));
        }
    }
}

template <class W>
inline void wide_run(const Dot& d) {
    const Tiles tiles{d.w, d.w_stride, d.columns, d.format};
    const int block = wide_tokens(d.tokens), groups = d.columns / 32;
    auto& panel = *reinterpret_cast<WidePanel*>(d.scratch);
    auto& format = *reinterpret_cast<W*>(d.scratch + sizeof(WidePanel));
    auto* packed =
        reinterpret_cast<WideGroup*>(d.scratch + sizeof(WidePanel) + (sizeof(W) + 63) / 64 * 64);
    auto* sums = reinterpret_cast<float*>(packed + block / kTile * groups);
    auto** x = reinterpret_cast<const float**>(sums + block * kWideRows);
    for (int t = 0; t < d.tokens; ++t) x[t] = typename W::Row(d.x[t], d.columns).x;
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) config.set(tile, kTile, 64);
    load_config(config);
    for (int first = 0; first < d.tokens; first += block) {
        const int tokens = std::min(block, d.tokens - first);
        for (int t = 0; t < tokens; t += kTile)
            put_wide_tokens(x + first + t, tokens - t, groups, packed + t / kTile * groups);
        wide_block<W>(d, tiles, packed, first, tokens, panel, format, sums);
    }
    _tile_release();
}

// W for many tokens where it can, else what the kernel was.
template <class W, void (*kElse)(const Dot&)>
void wide_or_else(const Dot& d) {
    if (d.tokens > 3 && W::fits({d.w, d.w_stride, d.columns, d.format})) return wide_run<W>(d);
    kElse(d);
}

template <class W, std::size_t (*kElse)(int, int, int)>
std::size_t wide_or_else_nbytes(int rows, int columns, int tokens) {
    return std::max(wide_scratch_nbytes<W>(columns, tokens), kElse(rows, columns, tokens));
}

inline void put_wide_kernels(KernelTable& t) {
    using NVFP4 = WideCodes<CodesNVFP4InBlocks, kFoursInput>;
    t.fast[kNVFP4] = {kFoursInput, kTileTokens,
                      wide_or_else<NVFP4, many_run<FixedNVFP4, CodesNVFP4, unpack_nvfp4>>,
                      wide_or_else_nbytes<NVFP4, many_scratch_nbytes>, strips_tile_rows};
    t.fast[kGgmlMXFP4] = {LanesMXFP4::kInput,
                          kTileTokens,
                          wide_or_else<WideMXFP4, lanes_run<LanesMXFP4>>,
                          wide_or_else_nbytes<WideMXFP4, lanes_scratch_nbytes>,
                          strips_tile_rows,
                          LanesMXFP4::kStreams * kLaneRows};
    t.fast[kFP8Block] = {kWideInput, kTileTokens,
                         wide_or_else<WideFP8, e4m3_run<false, unpack_fp8_block>>,
                         wide_or_else_nbytes<WideFP8, fixed_scratch_nbytes>, strips_tile_rows};
    t.fast[kFP8Row] = {kWideInput, kTileTokens,
                       wide_or_else<WideFP8, e4m3_run<false, unpack_fp8_row>>,
                       wide_or_else_nbytes<WideFP8, fixed_scratch_nbytes>, strips_tile_rows};
}

}  // namespace headrace::HEADRACE_ISA
