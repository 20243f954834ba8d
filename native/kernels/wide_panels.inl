// Weights that are exact in bfloat16, as tiles take them (kernels/float_tiles.inl).
//
// A panel is 32 rows of a few groups; columns of a group are in the order in which bytes of words
// come apart: even ones of every four, then odd ones.

namespace headrace::HEADRACE_ISA {

inline constexpr int kWideRows = 2 * kTile;

using WidePair = std::uint16_t[kTile][2];  // two columns of 16 rows

struct alignas(64) WidePanel {
    WidePair w[kStripGroups][2][16];
    float scale[kStripGroups][kWideRows];  // of a span, where its last group is
    float whole[kWideRows];                // of a row
};

// Weights of a format, put into a panel: groups [from, from + groups) of rows [row, row + 32), past
// the last row that one again. `span` groups share what a panel's scale is.

// Words of four codes of 16 rows as the bfloat16 of a table, times float32 of each row.
HEADRACE_INLINE __m512i times_rows(__m512i pairs, __m512 scale) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, upper));
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(_mm512_mul_ps(even, scale)), 16);
    const __m512i high = _mm512_castps_si512(_mm512_mul_ps(odd, scale));
    return _mm512_or_si512(low, _mm512_and_si512(high, upper));
}

HEADRACE_INLINE void put_pair(WidePair& to, __m512i pairs) {
    std::memcpy(to, &pairs, sizeof pairs);
}

// Codes that are twice an E2M1: by their low five bits.
struct WideSteps {
    alignas(64) std::uint16_t of[32];
};
inline constexpr WideSteps kWideSteps = [] {
    WideSteps table{};
    for (int code = -12; code <= 12; ++code)
        table.of[code & 31] = static_cast<std::uint16_t>(
            std::bit_cast<std::uint32_t>(static_cast<float>(code)) >> 16);
    return table;
}();

// C's codes and scales, by way of a panel of bytes.
template <class C, Input kInput>
struct WideCodes {
    using Row = FixedRow;
    StripPanel bytes;

    static bool fits(const Tiles& t) { return C::fits(t); }
    static int span(const Tiles&) { return kStripGroups; }
    void fill(WidePanel& p, const Dot& d, const Tiles& tiles, int row, int from, int groups) {
        fill_strip<C, kInput>(bytes, d, tiles, row, from, groups);
        const __m512i table = load_words(kWideSteps.of);
        for (int g = 0; g < groups; ++g)
            for (int r = 0; r < 2; ++r)
                for (int word = 0; word < 8; ++word) {
                    const __m512i v = load_words(bytes.q[g][word] + r * 64);
                    const __m512 scale =
                        _mm512_loadu_ps(bytes.scale[g][C::kHalves ? word / 4 : 0] + r * kTile);
                    const __m512i even = _mm512_permutexvar_epi16(v, table);
                    const __m512i odd = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 8), table);
                    put_pair(p.w[g][r][2 * word], times_rows(even, scale));
                    put_pair(p.w[g][r][2 * word + 1], times_rows(odd, scale));
                }
        std::fill_n(p.scale[groups - 1], kWideRows, 1.0f);
    }
    static void put_whole(WidePanel& p, const Dot& d, const Tiles& tiles, int row) {
        for (int r = 0; r < kWideRows; ++r)
            p.whole[r] = C::whole_of(tiles.tile(std::min(row + r, d.rows - 1)));
    }
    static void ask(const Dot& d, const Tiles& tiles, int row, int from, int groups) {
        ask_for_strip<C>(d, tiles, row, from, groups);
    }
};

// NVFP4 without the scale of a tensor, which is none of bfloat16's.
struct CodesNVFP4InBlocks : CodesNVFP4 {
    CodesNVFP4InBlocks(const std::byte* w, const Tiles& t) : CodesNVFP4(w, t) { whole = 1.0f; }
    static float whole_of(const std::byte* tile) { return load_as<float>(tile); }
};

// E2M1, by four bits that one of other bits may be above.
inline constexpr WideSteps kWideE2M1 = [] {
    WideSteps table{};
    for (int code = 0; code < 32; ++code)
        table.of[code] =
            static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(kE2M1[code & 15]) >> 16);
    return table;
}();

// MXFP4 in lanes: a power of two is added to the exponents.
struct WideMXFP4 {
    using Row = FixedRow;

    static bool fits(const Tiles&) { return true; }
    static int span(const Tiles&) { return kStripGroups; }
    void fill(WidePanel& p, const Dot& d, const Tiles& tiles, int row, int from, int groups) {
        for (int r = 0; r < 2; ++r) {
            const std::byte* group =
                LanesMXFP4::group(tiles, std::min(row + r * kTile, d.rows - 1), from);
            for (int g = 0; g < groups; ++g, group += LanesMXFP4::kGroupNbytes)
                put_group(p.w[g][r], group);
        }
        std::fill_n(p.scale[groups - 1], kWideRows, 1.0f);
    }
    static HEADRACE_INLINE void put_group(WidePair* to, const std::byte* group) {
        const V16 scales = load16(group);
        const __m512i e = _mm512_inserti64x4(_mm512_castsi256_si512(words_of_bytes(scales)),
                                             words_of_bytes(zip64_high(scales, scales)), 1);
        const __m512i bits = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(127)), 7);
        const __m512i more = _mm512_or_si512(_mm512_and_si512(bits, _mm512_set1_epi32(0xffff)),
                                             _mm512_slli_epi32(bits, 16));
        // Such that 0.5 is normal and 6 is finite.
        const V16 most = small8(252 - 2);
        const V16 above = _mm_max_epu8(sub8(scales, small8(2)), most);
        const bool plain = _mm_movemask_epi8(_mm_cmpeq_epi8(above, most)) == 0xffff;
        float scale[kTile];
        if (!plain)
            for (int r = 0; r < kTile; ++r) scale[r] = float_from_e8m0(group[r]);
        const __m512i table = load_words(kWideE2M1.of);
        const auto put = [&](int pair, __m512i at) {
            const __m512i v = _mm512_permutexvar_epi16(at, table);
            if (!plain) return put_pair(to[pair], times_rows(v, _mm512_loadu_ps(scale)));
            const __mmask32 some = _mm512_test_epi16_mask(v, _mm512_set1_epi16(0x7fff));
            put_pair(to[pair], _mm512_mask_add_epi16(v, some, v, more));
        };
        for (int i = 0; i < 4; ++i) {
            const __m512i v = load_words(group + kLaneRows + i * 64);
            put(2 * i, v);
            put(2 * i + 1, _mm512_srli_epi16(v, 8));
            put(8 + 2 * i, _mm512_srli_epi16(v, 4));
            put(8 + 2 * i + 1, _mm512_srli_epi16(v, 12));
        }
    }
    static void put_whole(WidePanel& p, const Dot&, const Tiles&, int) {
        std::fill_n(p.whole, kWideRows, 1.0f);
    }
    static void ask(const Dot& d, const Tiles& tiles, int row, int from, int groups) {
        ask_for_strip<LanesMXFP4>(d, tiles, row, from, groups);
    }
};

// E4M3 as bfloat16, its upper and its lower bytes by its seven bits without the sign.
struct WideE4M3 {
    alignas(64) std::uint8_t high[128], low[128];
};
inline constexpr WideE4M3 kWideE4M3 = [] {
    WideE4M3 table{};
    for (int code = 0; code < 128; ++code) {
        const auto bits = std::bit_cast<std::uint32_t>(float_from_e4m3(code)) >> 16;
        table.high[code] = static_cast<std::uint8_t>(bits >> 8);
        table.low[code] = static_cast<std::uint8_t>(bits);
    }
    return table;
}();

struct WideFP8 {
    using Row = WideRow;
    alignas(64) PanelCode bytes[kStripGroups][kPanelSteps][kStripRows * kStepColumns];

    static int group(const Tiles& t) {
        return kind_of(t.format) == kFP8Row ? t.columns : group_of(t.format);
    }
    static bool fits(const Tiles& t) {
        return t.columns % 32 == 0 &&
               (group(t) % (32 * kStripGroups) == 0 || group(t) == t.columns || group(t) == 128);
    }
    static int span(const Tiles& t) {
        return group(t) == t.columns ? kStripGroups : std::min(kStripGroups, group(t) / 32);
    }
    static const std::byte* codes(const Tiles& t, int row) {
        const int groups = (t.columns + group(t) - 1) / group(t);
        return t.tile(row) + groups * 4 +
               static_cast<std::ptrdiff_t>(row % tile_rows(t.format)) * t.columns;
    }
    static float scale(const Tiles& t, int row, int column) {
        return load_as<float>(t.tile(row) + column / group(t) * 4);
    }
    void fill(WidePanel& p, const Dot& d, const Tiles& tiles, int row, int from, int groups) {
        const std::byte* q[kWideRows];
        for (int r = 0; r < kWideRows; ++r)
            q[r] = codes(tiles, std::min(row + r, d.rows - 1)) + from * 32;
        // All of them first: a load of 64 bytes waits for two stores of 32 that are under way.
        for (int g = 0; g < groups; ++g)
            for (int eight = 0; eight < kWideRows; eight += 8) {
                V32 rows[8];
                for (int r = 0; r < 8; ++r) rows[r] = load32(q[eight + r] + g * 32);
                put_eight_rows(rows, bytes[g], eight);
            }
        for (int g = 0; g < groups; ++g)
            for (int r = 0; r < 2; ++r)
                for (int word = 0; word < 8; ++word)
                    put_words_of_rows(load_words(bytes[g][word] + r * 64), &p.w[g][r][2 * word]);
        if (group(tiles) == tiles.columns) return put_ones(p.scale[groups - 1]);
        const int each = span(tiles);
        for (int g = 0; g < groups; g += each) {
            float* to = p.scale[std::min(g + each, groups) - 1];
            for (int r = 0; r < kWideRows; ++r)
                to[r] = scale(tiles, std::min(row + r, d.rows - 1), (from + g) * 32);
        }
    }
    static void put_ones(float* to) { std::fill_n(to, kWideRows, 1.0f); }
    static HEADRACE_INLINE void put_words_of_rows(__m512i v, WidePair* to) {
        const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
        const __m512i at = _mm512_andnot_si512(sign, v);
        const auto* table = &kWideE4M3;
        const __m512i high = _mm512_or_si512(
            _mm512_permutex2var_epi8(load_words(table->high), at, load_words(table->high + 64)),
            _mm512_and_si512(sign, v));
        const __m512i low =
            _mm512_permutex2var_epi8(load_words(table->low), at, load_words(table->low + 64));
        const __m512i lower = _mm512_set1_epi16(255);
        const __m512i even =
            _mm512_or_si512(_mm512_and_si512(lower, low), _mm512_slli_epi16(high, 8));
        const __m512i odd =
            _mm512_or_si512(_mm512_srli_epi16(low, 8), _mm512_andnot_si512(lower, high));
        put_pair(to[0], even);
        put_pair(to[1], odd);
    }
    static void put_whole(WidePanel& p, const Dot& d, const Tiles& tiles, int row) {
        for (int r = 0; r < kWideRows; ++r)
            p.whole[r] = group(tiles) == tiles.columns
                             ? scale(tiles, std::min(row + r, d.rows - 1), 0)
                             : 1.0f;
    }
    static void ask(const Dot& d, const Tiles& tiles, int row, int from, int groups) {
        for (int r = row; r < std::min(row + kWideRows, d.rows); ++r)
            ask_for(codes(tiles, r) + from * 32, codes(tiles, r) + (from + groups) * 32);
    }
};

}  // namespace headrace::HEADRACE_ISA
