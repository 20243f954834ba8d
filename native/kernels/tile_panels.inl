// Many tokens with packed weights on AMX tiles: bytes of codes with bytes of activations.
//
// The sums and their order are those of strip_tile (kernels/strips.inl), to the bit: within a
// group integers, of which a tile of tokens has those of h and of l, then float32. A panel
// has words of four columns, as tiles do.

namespace headrace::HEADRACE_ISA {

// 16 tokens' integers of 32 columns.
struct alignas(64) TokenGroup {
    std::int8_t q[kTile][64];  // h of all columns, then l
    float scale[kTile];
    float sum[2][kTile];  // of all columns, or of the halves
};

// q = 256 h + l with signed bytes: h is the upper one of q + 128.
template <Input kInput>
HEADRACE_INLINE __m512i bytes_of(const std::int16_t* q, int g) {
    const __m512i v = integers_of<kInput>(q, g);
    return in_byte_order<kInput>(_mm512_add_epi16(v, _mm512_set1_epi16(128)), v);
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

// Codes of eight bits: their products with both bytes.
template <class C, Input kInput>
struct TwoProducts {
    using Panel = StripPanel;
    using Tokens = TokenGroup;

    static std::size_t tokens_of(int groups) { return static_cast<std::size_t>(groups); }
    static const Tokens* at(const Tokens* x, int g) { return x + g; }
    static void put(const FixedRow* x, int tokens, int groups, Tokens* to) {
        put_tokens<C, kInput>(x, tokens, groups, to);
    }
    static void configure(TileConfig& config, int rows) {
        constexpr int kUnit = C::kHalves ? 16 : 32;
        for (int c = 0; c < 4; ++c) config.set(c, rows, 64);
        for (const int a : {4, 5}) config.set(a, rows, kUnit);
        config.set(6, kUnit / 4, 64);
    }
    static void fill(Panel& p, const Dot& d, const Tiles& tiles, int row, int g, int groups) {
        fill_strip<C, kInput>(p, d, tiles, row, g, groups);
    }
    // 16 rows of those that the panel has, from `row` on, with up to 16 tokens.
    static void strip(const Panel& p, const std::byte* in_place, int row, int groups,
                      const Tokens* x, int tokens, const TileAhead& ahead, float* sums) {
        const auto* codes = reinterpret_cast<const std::byte*>(p.q[0][0]) + row * kStepColumns;
        TileCodes from{codes, sizeof p.q[0], sizeof p.q[0] / 2, kStripRows * kStepColumns};
        if constexpr (kReadsInPlace<C>) from = {in_place + kLaneRows * 2, C::kGroupNbytes, 0, 64};
        strip_of_tiles<C>({from, p, row, ahead}, x, groups, tokens, sums);
    }
};

}  // namespace headrace::HEADRACE_ISA
