// Many tokens with packed weights on AMX tiles: bytes of codes with bytes of activations.
//
// The sums and their order are those of strip_tile (kernels/strips.inl), to the bit: within a
// group integers, of which a tile of tokens has those of h and of l, then float32. A panel
// has words of four columns, as tiles do.

namespace headrace::HEADRACE_ISA {

inline constexpr int kBlockTiles = 8;  // of tokens: their bytes stay in L2 for all rows of a piece

// 16 tokens' integers of 32 columns.
struct alignas(64) TokenGroup {
    std::int8_t q[kTile][64];  // h of all columns, then l
    float scale[kTile];
    float sum[2][kTile];  // of all columns, or of the halves
};

// Which of a group's 32 integers is column c's (`put_order`); those of nibbles lie in four parts.
template <Input kInput>
constexpr int place_of_column(int c) {
    if (kInput == kFoursInput) return c % 4 * 8 + c / 4;
    if (kInput == kHalvesInput) return (c % 2 * 2 + c / 16) * 8 + c % 16 / 2;
    return c % 2 * 16 + c / 16 * 8 + c % 16 / 2;
}
template <Input kInput>
struct ByteOrder {
    alignas(64) std::uint8_t of[64];
};
template <Input kInput>
inline constexpr ByteOrder<kInput> kByteOrder = [] {
    ByteOrder<kInput> order{};
    for (int c = 0; c < 32; ++c) {
        order.of[c] = static_cast<std::uint8_t>(2 * place_of_column<kInput>(c) + 1);
        order.of[32 + c] = static_cast<std::uint8_t>(2 * place_of_column<kInput>(c));
    }
    return order;
}();

template <Input kInput>
HEADRACE_INLINE __m512i integers_of(const std::int16_t* q, int g) {
    if constexpr (kInput == kFoursInput || kInput == kHalvesInput) {
        const std::int16_t* at = q + g / 8 * 256 + g % 4 * 64 + g / 4 % 2 * 8;
        const V32 low = load_halves(at, at + 16), high = load_halves(at + 32, at + 48);
        return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    } else {
        return load_words(q + g * 32);
    }
}

// q = 256 h + l with signed bytes: h is the upper one of q + 128.
template <Input kInput>
HEADRACE_INLINE __m512i bytes_of(const std::int16_t* q, int g) {
    const __m512i v = integers_of<kInput>(q, g);
    const __m512i above = _mm512_add_epi16(v, _mm512_set1_epi16(128));
    const __m512i low = _mm512_set1_epi16(255);
    const __m512i both = _mm512_or_si512(_mm512_and_si512(v, low), _mm512_andnot_si512(low, above));
    return _mm512_permutexvar_epi8(load_words(kByteOrder<kInput>.of), both);
}

// Groups [from, from + groups) of one token; without one, zeros.
template <class C, Input kInput>
HEADRACE_INLINE void put_token(const FixedRow* x, int t, int from, int groups, TokenGroup* to) {
    for (int g = from; g < from + groups; ++g) {
        const __m512i bytes = x != nullptr ? bytes_of<kInput>(x->q, g) : _mm512_setzero_si512();
        std::memcpy(to[g].q[t], &bytes, sizeof bytes);
        to[g].scale[t] = x != nullptr ? x->scale[g] : 0.0f;
        for (int half = 0; half < (half_offsets<C> ? 2 : C::kOffset ? 1 : 0); ++half) {
            const float sum = x == nullptr      ? 0.0f
                              : half_offsets<C> ? x->sum16()[2 * g + half]
                                                : x->sum[g];
            to[g].sum[half][t] = sum;
        }
    }
}

// A tile of up to 16 tokens, the others zeros: as many groups at a time as stay in L1.
template <class C, Input kInput>
inline void put_tokens(const FixedRow* x, int tokens, int groups, TokenGroup* to) {
    for (int g = 0; g < groups; g += kStripGroups)
        for (int t = 0; t < kTile; ++t) {
            if (t + 2 < tokens) {
                const auto* next = reinterpret_cast<const std::byte*>(x[t + 2].q + g * 32);
                ask_for(next, next + kStripGroups * 64);
            }
            put_token<C, kInput>(t < tokens ? x + t : nullptr, t, g,
                                 std::min(kStripGroups, groups - g), to);
        }
}

// Where tiles of weights lie, of 16 rows: a group's, or those of its two halves.
struct TileCodes {
    const std::byte* at;
    std::size_t group_nbytes, half_nbytes, stride;

    template <int kParts>
    const std::byte* unit(int u) const {
        return at + static_cast<std::size_t>(u / kParts) * group_nbytes +
               static_cast<std::size_t>(u % kParts) * half_nbytes;
    }
};

// What the panel behind will want, asked for with every unit: all at once would wait for memory.
struct TileAhead {
    const std::byte* at;
    std::size_t nbytes, stride;
    int each;  // pieces of `nbytes`

    HEADRACE_INLINE void ask(int unit) const {
        for (int i = unit * each; i < (unit + 1) * each; ++i) {
            const std::byte* p = at + static_cast<std::size_t>(i) * stride;
            ask_for(p, p + nbytes);
        }
    }
};

// 16 rows of a panel, from `row` on, with their codes there or elsewhere.
struct TileStrip {
    TileCodes codes;
    const StripPanel& panel;
    int row;  // 0: the tokens' bytes are not in L1 yet
    TileAhead ahead;
};

// A unit ahead of what is loaded.
HEADRACE_INLINE void ask_for_tokens(const TokenGroup* x) {
    const auto* p = reinterpret_cast<const std::byte*>(x);
    ask_for(p, p + sizeof *x);
}

// A unit is the columns of one scale: of h and of l, [token, row].
struct alignas(64) UnitSums {
    std::int32_t h[kTile][kTile], l[kTile][kTile];
};

template <int kParts>
HEADRACE_INLINE void load_unit(const TileStrip& s, const TokenGroup* x, int unit) {
    const std::int8_t* q = x[unit / kParts].q[0] + unit % kParts * 16;
    _tile_loadd(6, s.codes.unit<kParts>(unit), s.codes.stride);
    _tile_loadd(4, q, 64);
    _tile_loadd(5, q + 32, 64);
}

// kOffsets: floats of sums that meet `more` of a group.
template <int kParts, int kOffsets, int T>
HEADRACE_INLINE void add_unit(const TileStrip& s, const TokenGroup* x, int unit, const UnitSums& of,
                              F32 (&sum)[T]) {
    const int g = unit / kParts, part = unit % kParts;
    const F32 w = F32::load(s.panel.scale[g][part] + s.row);
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
        const __m512i h = _mm512_slli_epi32(load_words(of.h[t]), 8);
        const F32 whole{_mm512_cvtepi32_ps(_mm512_add_epi32(h, load_words(of.l[t])))};
        if constexpr (kOffsets > 0) {
            const F32 by = F32::set1(x[g].sum[kOffsets == 2 ? part : 0][t]);
            sum[t] = fma(F32::load(s.panel.more[g][part] + s.row), by, sum[t]);
        }
        sum[t] = fma(whole, w * F32::set1(x[g].scale[t]), sum[t]);
    }
}

// T tokens: sums[t * kStripRows] += the products of a panel's groups.
//
// What comes first is what waits for nothing: tiles are loaded for the next unit before the sums of
// this one are stored (a load behind a store to the same place of another page waits for it, and
// that store for the products), and a unit is added up while the next one is multiplied.
template <int kParts, int kOffsets, int T>
inline void strip_of_tiles(const TileStrip& s, const TokenGroup* x, int groups, float* sums) {
    UnitSums even, odd;
    F32 sum[T];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) sum[t] = F32::load(sums + t * kStripRows);
    const int units = groups * kParts;
    memory_barrier();
    load_unit<kParts>(s, x, 0);
    for (int u = 0; u < units; u += 2) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 5, 6);
        load_unit<kParts>(s, x, std::min(u + 1, units - 1));
        memory_barrier();
        s.ahead.ask(u);
        if (s.row == 0) ask_for_tokens(x + (u + 2) / kParts);
        if (u > 0) add_unit<kParts, kOffsets, T>(s, x, u - 1, odd, sum);
        _tile_stored(0, even.h, 64);
        _tile_stored(1, even.l, 64);
        _tile_zero(2);
        _tile_zero(3);
        _tile_dpbssd(2, 4, 6);
        _tile_dpbssd(3, 5, 6);
        load_unit<kParts>(s, x, std::min(u + 2, units - 1));
        memory_barrier();
        s.ahead.ask(u + 1);
        if (s.row == 0 && kParts == 1) ask_for_tokens(x + u + 3);
        add_unit<kParts, kOffsets, T>(s, x, u, even, sum);
        _tile_stored(2, odd.h, 64);
        _tile_stored(3, odd.l, 64);
        memory_barrier();
    }
    if (units % 2 == 0) add_unit<kParts, kOffsets, T>(s, x, units - 1, odd, sum);
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) sum[t].store(sums + t * kStripRows);
}

template <class C>
inline void strip_of_tiles(const TileStrip& s, const TokenGroup* x, int groups, int tokens,
                           float* sums) {
    constexpr int kParts = C::kHalves ? 2 : 1;
    constexpr int kOffsets = half_offsets<C> ? 2 : C::kOffset ? 1 : 0;
    if (tokens > 12) return strip_of_tiles<kParts, kOffsets, 16>(s, x, groups, sums);
    if (tokens > 8) return strip_of_tiles<kParts, kOffsets, 12>(s, x, groups, sums);
    if (tokens > 4) return strip_of_tiles<kParts, kOffsets, 8>(s, x, groups, sums);
    strip_of_tiles<kParts, kOffsets, 4>(s, x, groups, sums);
}

inline int block_tiles(int tokens) { return std::min(kBlockTiles, (tokens + kTile - 1) / kTile); }

inline std::size_t strips_scratch_nbytes(int columns, int tokens) {
    const auto tiles = static_cast<std::size_t>(block_tiles(tokens));
    const std::size_t groups = static_cast<std::size_t>(columns) / 32;
    return sizeof(StripPanel) +
           tiles * (groups * sizeof(TokenGroup) + kTile * kStripRows * sizeof(float)) +
           static_cast<std::size_t>(tokens) * sizeof(FixedRow);
}

template <class C>
inline void load_tiles_for(int tokens) {
    constexpr int kUnit = C::kHalves ? 16 : 32;
    const int rows = std::min(kTile, (tokens + 3) / 4 * 4);
    TileConfig config;
    for (int c = 0; c < 4; ++c) config.set(c, rows, 64);
    for (const int a : {4, 5}) config.set(a, rows, kUnit);
    config.set(6, kUnit / 4, 64);
    load_config(config);
}

// Groups [g, g + groups) of 16 rows from `row` on, asked for in as many steps as there are units.
template <class C>
inline TileAhead ahead_of(const Tiles& tiles, const Dot& d, int row, int g, int groups) {
    constexpr int kParts = C::kHalves ? 2 : 1;
    if (row >= d.rows) return {};
    if constexpr (Laned<C>) {
        return {C::group(tiles, row, g), C::kGroupNbytes, C::kGroupNbytes, 1};
    } else {
        if (row + kTile > d.rows || tile_rows(d.format) != 1) return {};
        const C c(tiles.tile(row), tiles);
        const int units = groups * kParts;
        return {c.at(g), static_cast<std::size_t>(c.at(g + groups) - c.at(g)), tiles.stride,
                (kTile + units - 1) / units};
    }
}

// Of 16 rows of those that a panel has, from `row` on, and from group g on.
template <class C>
inline TileStrip strip_at(const StripPanel& p, const Tiles& tiles, int first, int row, int g,
                          const TileAhead& ahead) {
    if constexpr (kReadsInPlace<C>) {
        const std::byte* group = C::group(tiles, first + row, g);
        return {{group + kLaneRows * 2, C::kGroupNbytes, 0, 64}, p, row, ahead};
    } else {
        const auto* codes = reinterpret_cast<const std::byte*>(p.q[0][0]);
        return {{codes + row * kStepColumns, sizeof p.q[0], sizeof p.q[0] / 2,
                 kStripRows * kStepColumns},
                p,
                row,
                ahead};
    }
}

// All rows with the tokens of some tiles.
template <class C, Input kInput>
inline void strips_with(const Dot& d, const TokenGroup* x, int first, int tokens, StripPanel& panel,
                        float* sums) {
    const Tiles tiles{d.w, d.w_stride, d.columns, d.format};
    const int groups = d.columns / 32;
    const auto all = static_cast<std::size_t>((tokens + kTile - 1) / kTile * kTile * kStripRows);
    for (int row = 0; row < d.rows; row += kStripRows) {
        std::memset(sums, 0, all * sizeof(float));
        for (int g = 0; g < groups; g += kStripGroups) {
            const int many = std::min(kStripGroups, groups - g);
            fill_strip<C, kInput>(panel, d, tiles, row, g, many);
            const bool last = g + many == groups;
            const int next_row = last ? row + kStripRows : row, next = last ? 0 : g + many;
            // The tokens' bytes stay in L1 for all rows of the strip.
            for (int t = 0; t < tokens; t += kTile)
                for (int r = 0; r < kStripRows && row + r < d.rows; r += kTile) {
                    const TileAhead ahead =
                        t == 0 ? ahead_of<C>(tiles, d, next_row + r, next, many) : TileAhead{};
                    strip_of_tiles<C>(strip_at<C>(panel, tiles, row, r, g, ahead),
                                      x + t / kTile * groups + g, many, std::min(kTile, tokens - t),
                                      sums + t * kStripRows + r);
                }
        }
        const int rows = std::min(kStripRows, d.rows - row);
        for (int t = 0; t < tokens; ++t)
            std::memcpy(d.out + static_cast<std::size_t>(first + t) * d.out_stride + row,
                        sums + t * kStripRows, static_cast<std::size_t>(rows) * sizeof(float));
    }
}

template <class C, Input kInput>
inline void strips_run(const Dot& d) {
    const int groups = d.columns / 32, block = block_tiles(d.tokens) * kTile;
    auto& panel = *reinterpret_cast<StripPanel*>(d.scratch);
    auto* packed = reinterpret_cast<TokenGroup*>(d.scratch + sizeof(StripPanel));
    auto* sums = reinterpret_cast<float*>(packed + block / kTile * groups);
    auto* x = reinterpret_cast<FixedRow*>(sums + block * kStripRows);
    for (int t = 0; t < d.tokens; ++t) x[t] = FixedRow(d.x[t], d.columns);
    load_tiles_for<C>(d.tokens);
    for (int first = 0; first < d.tokens; first += block) {
        const int tokens = std::min(block, d.tokens - first);
        for (int t = 0; t < tokens; t += kTile)
            put_tokens<C, kInput>(x + first + t, tokens - t, groups, packed + t / kTile * groups);
        strips_with<C, kInput>(d, packed, first, tokens, panel, sums);
    }
    _tile_release();
}

// Rows of a piece: its tokens are put into tiles once.
inline int strips_tile_rows(int) { return 32 * kStripRows; }

}  // namespace headrace::HEADRACE_ISA
