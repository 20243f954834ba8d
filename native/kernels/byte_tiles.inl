// What products of bytes on AMX tiles share: the order of the activations' bytes, and what is asked
// for ahead.

namespace headrace::HEADRACE_ISA {

// The sums of a token with rows [row, row + kRows): of those that there are.
template <int kRows>
HEADRACE_INLINE void put_out(const Dot& d, int token, int row, const float* sums) {
    float* to = d.out + static_cast<std::size_t>(token) * d.out_stride + row;
    if (row + kRows <= d.rows)
        std::memcpy(to, sums, kRows * sizeof(float));  // no call
    else
        std::memcpy(to, sums, static_cast<std::size_t>(d.rows - row) * sizeof(float));
}

// Which columns a code's bytes stand for, four in each word: as they come, or (INT4) even ones of
// eight, then odd ones.
template <bool kEvens>
constexpr int column_of_place(int place) {
    const int word = place / 4, i = place % 4;
    return kEvens ? word / 2 * 8 + 2 * i + word % 2 : place;
}

// Which of a group's 32 integers is column c's (`put_order`); those of nibbles lie in four parts.
template <Input kInput>
constexpr int place_of_column(int c) {
    if (kInput == kFoursInput) return c % 4 * 8 + c / 4;
    if (in_halves(kInput)) return (c % 2 * 2 + c / 16) * 8 + c % 16 / 2;
    return c % 2 * 16 + c / 16 * 8 + c % 16 / 2;
}
template <Input kInput, bool kEvens>
struct ByteOrder {
    alignas(64) std::uint8_t of[64];
};
template <Input kInput, bool kEvens>
inline constexpr ByteOrder<kInput, kEvens> kByteOrder = [] {
    ByteOrder<kInput, kEvens> order{};
    for (int i = 0; i < 32; ++i) {
        const int at = 2 * place_of_column<kInput>(column_of_place<kEvens>(i));
        order.of[i] = static_cast<std::uint8_t>(at + 1);
        order.of[32 + i] = static_cast<std::uint8_t>(at);
    }
    return order;
}();

template <Input kInput>
HEADRACE_INLINE __m512i integers_of(const std::int16_t* q, int g) {
    if constexpr (kInput == kFoursInput || in_halves(kInput)) {
        const std::int16_t* at = q + g / 8 * 256 + g % 4 * 64 + g / 4 % 2 * 8;
        const V32 low = load_halves(at, at + 16), high = load_halves(at + 32, at + 48);
        return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    } else {
        return load_words(q + g * 32);
    }
}

// The upper bytes of one's 32 integers, then the lower ones of another's.
template <Input kInput, bool kEvens = false>
HEADRACE_INLINE __m512i in_byte_order(__m512i upper, __m512i lower) {
    const __m512i low = _mm512_set1_epi16(255);
    const __m512i both =
        _mm512_or_si512(_mm512_and_si512(lower, low), _mm512_andnot_si512(low, upper));
    return _mm512_permutexvar_epi8(load_words(kByteOrder<kInput, kEvens>.of), both);
}

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

}  // namespace headrace::HEADRACE_ISA
