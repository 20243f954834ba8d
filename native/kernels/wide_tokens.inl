// Activations as products of floats on tiles take them (kernels/float_tiles.inl): two bfloat16
// each.

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

// One group of a token: the upper half of each, and what that leaves out, rounded. What is no
// number stays so in one of them.
HEADRACE_INLINE void put_wide_group(const float* x, std::uint16_t* high, std::uint16_t* low) {
    __m512i v[2], l[2];
    for (int i = 0; i < 2; ++i) {
        v[i] = load_words(x + i * 16);
        const __m512i h = _mm512_and_si512(v[i], _mm512_set1_epi32(static_cast<int>(0xffff0000)));
        const __m512 rest = _mm512_sub_ps(_mm512_castsi512_ps(v[i]), _mm512_castsi512_ps(h));
        l[i] = _mm512_add_epi32(_mm512_castps_si512(rest), _mm512_set1_epi32(0x8000));
    }
    const __m512i all[2] = {in_wide_order(v[0], v[1]), in_wide_order(l[0], l[1])};
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

template <class W>
bool takes_wide(const Dot& d) {
    return d.tokens > 3 && W::fits({d.w, d.w_stride, d.columns, d.format});
}

// All tokens' tiles, one after another: of `Row`, whatever the weights.
template <class Row>
inline void put_wide_some(const Dot& d, int first, int count, WideGroup* to) {
    const float* x[kTile];
    for (int t = 0; t < count; t += kTile, to += d.columns / 32) {
        const int n = std::min(kTile, count - t);
        for (int i = 0; i < n; ++i) x[i] = Row(d.x[first + t + i], d.columns).x;
        put_wide_tokens(x, n, d.columns / 32, to);
    }
}
inline std::size_t wide_packed_nbytes(int columns, int tokens) {
    return static_cast<std::size_t>((tokens + kTile - 1) / kTile * (columns / 32)) *
           sizeof(WideGroup);
}
template <class W>
void put_wide_packed(const Dot& d, std::byte* to) {
    if (takes_wide<W>(d))
        put_wide_some<typename W::Row>(d, 0, d.tokens, reinterpret_cast<WideGroup*>(to));
}
template <class W>
inline constexpr Packing kWidePacking{wide_packed_nbytes, put_wide_packed<W>};

}  // namespace headrace::HEADRACE_ISA
