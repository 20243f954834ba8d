// Codes of four bits in panels for one product on AMX tiles (kernels/nibble_tiles.inl): of 32
// columns of 16 rows first sixteen times each code, then the code.

namespace headrace::HEADRACE_ISA {

// Formats of such codes. Those with an offset have codes from 0 on.
template <class>
inline constexpr bool kFourBits = false;
template <>
inline constexpr bool kFourBits<LanesQ4_0> = true;
template <bool kBF16Scales>
inline constexpr bool kFourBits<CodesInt4<kBF16Scales>> = true;
template <>
inline constexpr bool kFourBits<LanesQ4_K> = true;

// Whose words have even columns of eight, or odd ones (`column_of_place`).
template <class>
inline constexpr bool kEvenWords = false;
template <bool kBF16Scales>
inline constexpr bool kEvenWords<CodesInt4<kBF16Scales>> = true;

using NibbleTile = std::uint8_t[16][64];  // words of four columns, 16 rows of each

struct alignas(64) NibblePanel {
    NibbleTile q[kStripGroups][2];
    float scale[kStripGroups][2][kStripRows];
    float more[kStripGroups][2][kStripRows];    // of the activations' sums
    std::uint16_t offsets[2][kTile][kTile][2];  // `more` as bfloat16 (`put_offsets`)
};

HEADRACE_INLINE void put_word(std::uint8_t* to, __m512i v) { std::memcpy(to, &v, sizeof v); }

// Four columns in low nibbles: word i of a tile.
HEADRACE_INLINE void put_low_nibbles(NibbleTile& to, int i, __m512i v) {
    const __m512i low = _mm512_and_si512(v, _mm512_set1_epi8(15));
    put_word(to[i], _mm512_slli_epi16(low, 4));
    put_word(to[8 + i], low);
}
HEADRACE_INLINE void put_high_nibbles(NibbleTile& to, int i, __m512i v) {
    const __m512i high = _mm512_andnot_si512(_mm512_set1_epi8(15), v);
    put_word(to[i], high);
    put_word(to[8 + i], _mm512_srli_epi16(high, 4));
}

// Rows [row, row + 16) of Q4_0: eight is taken off each code.
inline void put_lanes_of_nibbles(NibblePanel& p, const Tiles& tiles, int row, int half, int from,
                                 int groups) {
    const __m512i low = _mm512_set1_epi8(15), eight = _mm512_set1_epi8(8);
    const std::byte* group = LanesQ4_0::group(tiles, row, from);
    for (int g = 0; g < groups; ++g, group += LanesQ4_0::kGroupNbytes) {
        NibbleTile& to = p.q[g][half];
        const __m512 scale = _mm512_cvtph_ps(load_halves(group, group + 16));
        std::memcpy(p.scale[g][0] + half * kTile, &scale, sizeof scale);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const __m512i v = load_words(group + kLaneRows * 2 + i * 64);
            const __m512i less = _mm512_xor_si512(v, _mm512_set1_epi8(static_cast<char>(0x88)));
            const __m512i first = _mm512_slli_epi16(_mm512_and_si512(less, low), 4);
            put_word(to[i], first);
            put_word(to[4 + i], _mm512_andnot_si512(low, less));
            put_word(to[8 + i], _mm512_sub_epi8(_mm512_and_si512(v, low), eight));
            const __m512i up = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
            put_word(to[12 + i], _mm512_sub_epi8(up, eight));
        }
    }
}

// 16 rows of INT4, 64 bytes of each at a time: words of eight columns of four groups.
template <class At>
inline void put_rows_of_nibbles(NibblePanel& p, int half, int groups, At&& at) {
    for (int g = 0; g < groups; g += 4) {
        __m512i rows[16], words[16];
        for (int r = 0; r < kTile; ++r) rows[r] = at(r, g);
        transpose16(rows, words);
        for (int j = 0; j < 4 * std::min(4, groups - g); ++j) {
            NibbleTile& to = p.q[g + j / 4][half];
            put_low_nibbles(to, j % 4 * 2, words[j]);
            put_high_nibbles(to, j % 4 * 2 + 1, words[j]);
        }
    }
}

// Bytes 0 to 3 of each, times a float.
HEADRACE_INLINE void put_bytes_times(__m512i bytes, __m512 by, float (*to)[2][kStripRows],
                                     int row) {
    for (int i = 0; i < 4; ++i, bytes = _mm512_srli_epi32(bytes, 8)) {
        const __m512i byte = _mm512_and_si512(bytes, _mm512_set1_epi32(255));
        _mm512_storeu_ps(to[i][0] + row, _mm512_mul_ps(_mm512_cvtepi32_ps(byte), by));
    }
}

// A block of Q4_K of 16 rows: as LanesQ4_K has scales and minima, of all at once.
inline void put_block_of_nibbles(NibblePanel& p, const std::byte* block, int half) {
    const SixteenSix six(block);
    const SixteenWhole whole(block);
    const __m512 least = _mm512_sub_ps(_mm512_setzero_ps(), whole.least);
    const int row = half * kTile;
    for (int i = 0; i < 2; ++i) {
        put_bytes_times(six.scales[i], whole.scale, p.scale + i * 4, row);
        put_bytes_times(six.minima[i], least, p.more + i * 4, row);
    }
    for (int pair = 0; pair < 4; ++pair) {
        const std::byte* codes = block + (4 + pair * 8) * (kLaneRows * 4);
        NibbleTile &low = p.q[2 * pair][half], &high = p.q[2 * pair + 1][half];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
            const __m512i v = load_words(codes + i * (kLaneRows * 4));
            put_low_nibbles(low, i, v);
            put_high_nibbles(high, i, v);
        }
    }
}

// What a tile of bfloat16 adds: `more` is the sum of two, h and l, as is a token's sum of a group,
// and columns are those of h h, h l, l h and l l, of eight groups each, in pairs.
inline void put_offsets(NibblePanel& p, int half, int groups) {
    const __m512i zero = _mm512_setzero_si512();
    for (int g = 0; g < kStripGroups; g += 2) {
        __m512i h[2] = {zero, zero}, l[2] = {zero, zero};
        for (int i = 0; i < 2 && g + i < groups; ++i) {
            const __m512 more = _mm512_loadu_ps(p.more[g + i][0] + half * kTile);
            h[i] = bf16_bits(more);
            l[i] = bf16_bits(_mm512_sub_ps(more, _mm512_castsi512_ps(h[i])));
        }
        const __m512i high = _mm512_or_si512(_mm512_srli_epi32(h[0], 16), h[1]);
        const __m512i low = _mm512_or_si512(_mm512_srli_epi32(l[0], 16), l[1]);
        std::memcpy(p.offsets[half][g / 2], &high, sizeof high);
        std::memcpy(p.offsets[half][4 + g / 2], &high, sizeof high);
        std::memcpy(p.offsets[half][8 + g / 2], &low, sizeof low);
        std::memcpy(p.offsets[half][12 + g / 2], &low, sizeof low);
    }
}

// Groups [from, from + groups) of rows [row, row + kStripRows); past the last row, that one again.
template <class C>
inline void fill_nibbles(NibblePanel& p, const Dot& d, const Tiles& tiles, int row, int from,
                         int groups) {
    for (int half = 0; half < 2 && row + half * kTile < d.rows; ++half) {
        const int first = row + half * kTile;
        if constexpr (std::is_same_v<C, LanesQ4_0>) {
            put_lanes_of_nibbles(p, tiles, first, half, from, groups);
        } else if constexpr (std::is_same_v<C, LanesQ4_K>) {
            put_block_of_nibbles(p, C::group(tiles, first, from), half);
        } else {
            for (int eight = 0; eight < kTile; eight += 8)
                put_scales(p, eight_readers<C>(d, tiles, first + eight), from, 0, groups,
                           half * kTile + eight);
            put_rows_of_nibbles(p, half, groups, [&](int r, int g) {
                const C c(tiles.tile(std::min(first + r, d.rows - 1)), tiles);
                const std::byte* q = c.at(from + g);
                if (groups - g >= 4) return load_words(q);
                __m512i v = _mm512_setzero_si512();
                std::memcpy(&v, q, static_cast<std::size_t>(groups - g) * 16);
                return v;
            });
        }
        if constexpr (C::kOffset) put_offsets(p, half, groups);
    }
}

}  // namespace headrace::HEADRACE_ISA
