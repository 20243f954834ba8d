// Weights that are exact in bfloat16, as tiles take them (kernels/float_tiles.inl).
//
// A panel is 32 rows of a few groups; columns of a group are in the order in which bytes of words
// come apart: even ones of every four, then odd ones.

namespace headrace::HEADRACE_ISA {

inline constexpr int kWideRows = 2 * kTile, kWideGroups = 4;

using WidePair = std::uint16_t[kTile][2];  // two columns of 16 rows

inline constexpr std::size_t kPageNbytes = 4096;

struct alignas(kPageNbytes) WidePanel {
    WidePair w[kWideGroups][2][16];
    float scale[kWideRows];
};

// Groups [from, from + groups) of rows [row, row + 32), past the last row that one again. Behind a
// matrix there are none.
struct WidePlace {
    int row, from, groups;

    WidePlace next(const Dot& d) const {
        const int all = d.columns / 32, end = from + groups;
        if (end < all) return {row, end, std::min(kWideGroups, all - end)};
        const int below = row + kWideRows;
        return {below, 0, below < d.rows ? std::min(kWideGroups, all) : 0};
    }
};

// Weights of a format, put into a panel in `steps`. `scaled`: a panel's rows have scales that are
// none of bfloat16's.

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

// E2M1, by four bits that one of other bits may be above.
struct WideE2M1 {
    alignas(64) std::uint16_t of[32];
};
inline constexpr WideE2M1 kWideE2M1 = [] {
    WideE2M1 table{};
    for (int code = 0; code < 32; ++code)
        table.of[code] =
            static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(kE2M1[code & 15]) >> 16);
    return table;
}();

// Group i of a place, of its first 16 rows or of the others.
template <class F>
HEADRACE_INLINE const std::byte* wide_group(const Dot& d, const Tiles& tiles, const WidePlace& at,
                                            int half, int i) {
    const int row = std::min(at.row + half * kTile, d.rows - 1);
    return tiles.w + static_cast<std::size_t>(row / kLaneRows) * tiles.stride +
           lanes_head_nbytes(tiles.format) +
           static_cast<std::size_t>(at.from + i) * F::kGroupNbytes;
}
template <class F>
HEADRACE_INLINE void ask_for_group(const Dot& d, const Tiles& tiles, const WidePlace& at, int i) {
    for (int half = 0; half < 2; ++half) {
        const std::byte* group = wide_group<F>(d, tiles, at, half, i);
        ask_for(group, group + F::kGroupNbytes);
    }
}

// MXFP4 in lanes: a power of two is added to the exponents.
struct WideMXFP4 {
    using Row = FixedRow;

    static bool fits(const Tiles&) { return true; }
    static bool scaled(const Tiles&) { return false; }
    static int steps(int groups) { return groups; }
    HEADRACE_INLINE void step(WidePanel& p, const Dot& d, const Tiles& tiles, const WidePlace& at,
                              int i) {
        for (int r = 0; r < 2; ++r)
            put_group(p.w[i][r], wide_group<LanesMXFP4>(d, tiles, at, r, i));
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
    static void put_whole(float* to, const Dot&, const Tiles&, int) {
        std::fill_n(to, kWideRows, 1.0f);
    }
    static HEADRACE_INLINE void ask(const Dot& d, const Tiles& tiles, const WidePlace& at, int i) {
        ask_for_group<LanesMXFP4>(d, tiles, at, i);
    }
};

// NVFP4 in lanes, without the scale of a tensor, which is none of bfloat16's.
struct WideNVFP4 {
    using Row = FixedRow;

    static bool fits(const Tiles& t) { return t.columns % 32 == 0; }
    static bool scaled(const Tiles&) { return false; }
    static int steps(int groups) { return groups; }
    HEADRACE_INLINE void step(WidePanel& p, const Dot& d, const Tiles& tiles, const WidePlace& at,
                              int i) {
        for (int r = 0; r < 2; ++r)
            put_group(p.w[i][r], wide_group<LanesNVFP4>(d, tiles, at, r, i));
    }
    static HEADRACE_INLINE void put_group(WidePair* to, const std::byte* group) {
        const __m512i table = load_words(kWideE2M1.of);
        const __m512 first = scales_of_rows<LanesNVFP4>(group, 0),
                     second = scales_of_rows<LanesNVFP4>(group, 1);
        const auto put = [&](int pair, __m512i at, __m512 scale) {
            put_pair(to[pair], times_rows(_mm512_permutexvar_epi16(at, table), scale));
        };
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const __m512i v = load_words(group + kLaneRows * 2 + i * 64);
            put(2 * i, v, first);
            put(2 * i + 1, _mm512_srli_epi16(v, 8), first);
            put(8 + 2 * i, _mm512_srli_epi16(v, 4), second);
            put(8 + 2 * i + 1, _mm512_srli_epi16(v, 12), second);
        }
    }
    // Scales are 2^8 times smaller than they say.
    static void put_whole(float* to, const Dot& d, const Tiles& tiles, int row) {
        for (int r = 0; r < kWideRows; ++r) {
            const int at = std::min(row + r, d.rows - 1);
            to[r] = load_as<float>(tiles.tile(at) + at % kLaneRows * 4) * 256.0f;
        }
    }
    static HEADRACE_INLINE void ask(const Dot& d, const Tiles& tiles, const WidePlace& at, int i) {
        ask_for_group<LanesNVFP4>(d, tiles, at, i);
    }
};

template <bool kRowScales>
struct WideFP8 {
    using Row = UnpackedRow;
    static constexpr int kTall = kRowScales ? 1 : 8;
    const std::byte* codes[kWideRows];  // of the rows that are put

    static int group(const Tiles& t) { return kRowScales ? t.columns : group_of(t.format); }
    static bool whole(const Tiles& t) { return group(t) >= t.columns; }
    static bool fits(const Tiles& t) {
        return t.columns % 32 == 0 && (whole(t) || group(t) % (32 * kWideGroups) == 0);
    }
    static bool scaled(const Tiles& t) { return !whole(t); }
    static const std::byte* tile(const Tiles& t, int row) {
        return t.w + static_cast<std::size_t>(row / kTall) * t.stride;
    }
    static const std::byte* row_codes(const Tiles& t, int row) {
        const int groups = (t.columns + group(t) - 1) / group(t);
        return tile(t, row) + groups * 4 + static_cast<std::ptrdiff_t>(row % kTall) * t.columns;
    }
    static float scale(const Tiles& t, int row, int column) {
        return load_as<float>(tile(t, row) + column / group(t) * 4);
    }
    // 16 rows of 64 columns.
    static int steps(int groups) { return (groups + 1) / 2 * 2; }
    HEADRACE_INLINE void step(WidePanel& p, const Dot& d, const Tiles& tiles, const WidePlace& at,
                              int i) {
        if (i == 0) begin(p, d, tiles, at);
        const int half = i % 2, g = i - half, nbytes = std::min(2, at.groups - g) * 32;
        __m512i rows[16], words[16];
        for (int r = 0; r < kTile; ++r)
            rows[r] = bytes_at(codes[half * kTile + r] + (at.from + g) * 32, nbytes);
        transpose16(rows, words);
#pragma GCC unroll 16
        for (int word = 0; word < 16; ++word)
            put_words_of_rows(words[word], &p.w[g + word / 8][half][word % 8 * 2]);
    }
    // What is said once for a panel.
    void begin(WidePanel& p, const Dot& d, const Tiles& tiles, const WidePlace& at) {
        if (at.from == 0)
            for (int r = 0; r < kWideRows; ++r)
                codes[r] = row_codes(tiles, std::min(at.row + r, d.rows - 1));
        if (!scaled(tiles)) return;
        for (int r = 0; r < kWideRows; r += kTall)
            std::fill_n(p.scale + r, kTall,
                        scale(tiles, std::min(at.row + r, d.rows - 1), at.from * 32));
    }
    static HEADRACE_INLINE void put_words_of_rows(__m512i v, WidePair* to) {
        const E4M3Halves w(v, E4M3Tables());
        const __m512i lower = _mm512_set1_epi16(255);
        put_pair(to[0],
                 _mm512_or_si512(_mm512_and_si512(lower, w.low), _mm512_slli_epi16(w.high, 8)));
        put_pair(to[1],
                 _mm512_or_si512(_mm512_srli_epi16(w.low, 8), _mm512_andnot_si512(lower, w.high)));
    }
    static void put_whole(float* to, const Dot& d, const Tiles& tiles, int row) {
        for (int r = 0; r < kWideRows; ++r)
            to[r] = whole(tiles) ? scale(tiles, std::min(row + r, d.rows - 1), 0) : 1.0f;
    }
    static HEADRACE_INLINE void ask(const Dot& d, const Tiles& tiles, const WidePlace& at, int i) {
        constexpr int kEach = kWideRows / kWideGroups;
        for (int r = at.row + i * kEach; r < std::min(at.row + (i + 1) * kEach, d.rows); ++r) {
            const std::byte* q = row_codes(tiles, r) + at.from * 32;
            ask_for(q, q + at.groups * 32);
        }
    }
};

}  // namespace headrace::HEADRACE_ISA
