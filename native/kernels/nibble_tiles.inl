// Many tokens with codes of four bits on AMX tiles: one product of bytes for 32 columns.
//
// An activation's 16 bits are 16 (16 a + b) + r with bytes a and b. A code c and 16 c fit a byte,
// so that one product of 64 columns has all sums of c (16 a + b), exactly. Twelve bits of a group's
// largest are 1 / 7500 of it in error, less than bfloat16's rounding of the group however its
// values lie; where one value has most of the group's energy, its others would still lose what
// bfloat16 keeps, and r meets c in a second product: such a group of a token has all 16 bits.

namespace headrace::HEADRACE_ISA {

// 16 tokens' integers of kStripGroups groups.
struct alignas(64) FineBlock {
    std::int8_t q[kStripGroups][kTile][64];  // a of all columns, then b
    float scale[kStripGroups][kTile];        // of 16 a + b
    std::uint16_t sums[kTile][32];           // h and l of each group's, twice
    std::uint32_t with_rest;                 // which groups have one, a bit each
    alignas(64) std::int8_t rest[kStripGroups][kTile][32];
};

// Squares of a that sum up to less: three quarters of them are one value's.
inline constexpr int kOneOutlier = 127 * 127 * 4 / 3;

// Group g of a block, token t: what the sum of its integers lacks. The largest of them,
// kMostFixed, is 16 (16 127 + 8) - 1.
template <Input kInput, bool kEvens>
HEADRACE_INLINE int put_fine(__m512i q, FineBlock& to, int g, int t) {
    const __m512i eight = _mm512_set1_epi16(8);
    // Half of 16 to the even one: rounded upwards, errors would add up.
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(q, 4), _mm512_set1_epi16(1));
    const __m512i up = _mm512_add_epi16(odd, _mm512_set1_epi16(7));
    const __m512i fine = _mm512_srai_epi16(_mm512_add_epi16(q, up), 4);
    const __m512i a = _mm512_min_epi16(_mm512_srai_epi16(_mm512_add_epi16(fine, eight), 4),
                                       _mm512_set1_epi16(127));
    const __m512i b = _mm512_sub_epi16(fine, _mm512_slli_epi16(a, 4));
    const __m512i bytes = in_byte_order<kInput, kEvens>(_mm512_slli_epi16(a, 8), b);
    std::memcpy(to.q[g][t], &bytes, sizeof bytes);
    const __m512i rest = _mm512_sub_epi16(q, _mm512_slli_epi16(fine, 4));
    if (_mm512_reduce_add_epi32(_mm512_madd_epi16(a, a)) >= kOneOutlier)
        return _mm512_reduce_add_epi32(_mm512_madd_epi16(rest, _mm512_set1_epi16(1)));
    if (_mm512_test_epi16_mask(rest, rest) == 0) return 0;
    if ((to.with_rest >> g & 1) == 0) std::memset(to.rest[g], 0, sizeof to.rest[g]);
    to.with_rest |= 1u << g;
    const __m512i last = in_byte_order<kInput, kEvens>(rest, rest);
    const __m256i low = _mm512_extracti64x4_epi64(last, 1);
    std::memcpy(to.rest[g][t], &low, sizeof low);
    return 0;
}

// The sums of a block's groups as h and l, twice.
HEADRACE_INLINE void put_sums(const float* of, std::uint16_t* to) {
    const __m512 v = _mm512_castps256_ps512(_mm256_loadu_ps(of));
    const __m512i h = bf16_bits(v), l = bf16_bits(_mm512_sub_ps(v, _mm512_castsi512_ps(h)));
    const __m128i high = _mm256_castsi256_si128(_mm512_cvtepi32_epi16(_mm512_srli_epi32(h, 16)));
    const __m128i low = _mm256_castsi256_si128(_mm512_cvtepi32_epi16(_mm512_srli_epi32(l, 16)));
    const __m128i parts[4] = {high, low, high, low};
    std::memcpy(to, parts, sizeof parts);
}

// A tile of up to 16 tokens, the others zeros.
template <Input kInput, bool kEvens, bool kSums>
inline void put_fine_tokens(const FixedRow* x, int tokens, int groups, FineBlock* to) {
    for (int from = 0; from < groups; from += kStripGroups, ++to) {
        to->with_rest = 0;
        const int many = std::min(kStripGroups, groups - from);
        for (int t = 0; t < kTile; ++t) {
            if (t >= tokens) {
                for (int g = 0; g < many; ++g) {
                    std::memset(to->q[g][t], 0, sizeof to->q[g][t]);
                    to->scale[g][t] = 0.0f;
                }
                std::memset(to->sums[t], 0, sizeof to->sums[t]);
                continue;
            }
            if (t + 2 < tokens) {
                const auto* next = reinterpret_cast<const std::byte*>(x[t + 2].q + from * 32);
                ask_for(next, next + kStripGroups * 64);
            }
            float sums[kStripGroups] = {};
            for (int g = 0; g < many; ++g) {
                const float scale = x[t].scale[from + g];
                const int lacks =
                    put_fine<kInput, kEvens>(integers_of<kInput>(x[t].q, from + g), *to, g, t);
                to->scale[g][t] = scale * 16.0f;
                sums[g] = x[t].sum[from + g] - scale * static_cast<float>(lacks);
            }
            if constexpr (kSums) put_sums(sums, to->sums[t]);
        }
    }
}

// 16 rows of a panel with a block of tokens.
struct FineStrip {
    const NibbleTile* q;  // of every second tile
    const float (*scale)[2][kStripRows];
    const std::uint16_t (*offsets)[kTile][2];
    const FineBlock& x;
    TileAhead ahead;
};

// What codes from 0 on have too much. Before products are: their sums would be waited for.
HEADRACE_INLINE void add_offsets(const FineStrip& s, float* sums) {
    _tile_loadd(1, sums, kStripRows * sizeof(float));
    _tile_loadd(4, s.x.sums, 64);
    _tile_loadd(6, s.offsets, 64);
    _tile_dpbf16ps(1, 4, 6);
    _tile_stored(1, sums, kStripRows * sizeof(float));
}

// Sums of c (16 a + b), and of c r where there are such: [token, row].
struct alignas(64) FineSums {
    std::int32_t of[kTile][kTile], rest[kTile][kTile];
};

template <bool kRest>
HEADRACE_INLINE bool has_rest(const FineBlock& x, int g) {
    return kRest && (x.with_rest >> g & 1) != 0;
}

HEADRACE_INLINE void load_fine(const FineStrip& s, int g) {
    _tile_loadd(6, s.q[2 * g], 64);
    _tile_loadd(4, s.x.q[g], 64);
}

// Tiles' numbers are part of instructions.
#define HEADRACE_PRODUCT(sums, x, codes)  \
    do {                                  \
        _tile_zero(sums);                 \
        if constexpr (kUnsigned)          \
            _tile_dpbsud(sums, x, codes); \
        else                              \
            _tile_dpbssd(sums, x, codes); \
    } while (false)

template <bool kOdd, bool kUnsigned, bool kRest>
HEADRACE_INLINE void multiply_fine(const FineStrip& s, int g) {
    if constexpr (kOdd)
        HEADRACE_PRODUCT(2, 4, 6);
    else
        HEADRACE_PRODUCT(0, 4, 6);
    if (has_rest<kRest>(s.x, g)) {
        _tile_loadd(7, s.q[2 * g] + 8, 64);
        _tile_loadd(5, s.x.rest[g], 32);
        if constexpr (kOdd)
            HEADRACE_PRODUCT(3, 5, 7);
        else
            HEADRACE_PRODUCT(1, 5, 7);
    }
}
#undef HEADRACE_PRODUCT

template <bool kOdd, bool kRest>
HEADRACE_INLINE void store_fine(const FineStrip& s, int g, FineSums& to) {
    if constexpr (kOdd)
        _tile_stored(2, to.of, 64);
    else
        _tile_stored(0, to.of, 64);
    if (has_rest<kRest>(s.x, g)) {
        if constexpr (kOdd)
            _tile_stored(3, to.rest, 64);
        else
            _tile_stored(1, to.rest, 64);
    }
}

template <int T, bool kRest>
HEADRACE_INLINE void add_fine(const FineStrip& s, int g, const FineSums& of, F32 (&sum)[T]) {
    const F32 w = F32::load(s.scale[g][0]);
    const float* scale = s.x.scale[g];
    if (has_rest<kRest>(s.x, g)) {
        const F32 finer = w * F32::set1(1.0f / 16);
#pragma GCC unroll 16
        for (int t = 0; t < T; ++t) {
            const __m512i up = _mm512_slli_epi32(load_words(of.of[t]), 4);
            const F32 whole{_mm512_cvtepi32_ps(_mm512_add_epi32(up, load_words(of.rest[t])))};
            sum[t] = fma(whole, finer * F32::set1(scale[t]), sum[t]);
        }
        return;
    }
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
        const F32 whole{_mm512_cvtepi32_ps(load_words(of.of[t]))};
        sum[t] = fma(whole, w * F32::set1(scale[t]), sum[t]);
    }
}

// T tokens: sums[t * kStripRows] += the products of a panel's groups. The order is that of
// strip_of_tiles (kernels/tile_panels.inl).
template <bool kUnsigned, bool kRest, int T>
inline void fine_strip(const FineStrip& s, int groups, float* sums) {
    FineSums even, odd;
    F32 sum[T];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) sum[t] = F32::zero();
    memory_barrier();
    if constexpr (kUnsigned) add_offsets(s, sums);
    load_fine(s, 0);
    for (int u = 0; u < groups; u += 2) {
        const int v = std::min(u + 1, groups - 1);
        multiply_fine<false, kUnsigned, kRest>(s, u);
        load_fine(s, v);
        memory_barrier();
        s.ahead.ask(u);
        if (u > 0) add_fine<T, kRest>(s, u - 1, odd, sum);
        store_fine<false, kRest>(s, u, even);
        multiply_fine<true, kUnsigned, kRest>(s, v);
        load_fine(s, std::min(u + 2, groups - 1));
        memory_barrier();
        s.ahead.ask(u + 1);
        add_fine<T, kRest>(s, u, even, sum);
        store_fine<true, kRest>(s, v, odd);
        memory_barrier();
    }
    if (groups % 2 == 0) add_fine<T, kRest>(s, groups - 1, odd, sum);
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
        float* at = sums + t * kStripRows;
        (F32::load(at) + sum[t]).store(at);
    }
}

template <bool kUnsigned, int T>
inline void fine_strip(const FineStrip& s, int groups, float* sums) {
    if (s.x.with_rest != 0) return fine_strip<kUnsigned, true, T>(s, groups, sums);
    fine_strip<kUnsigned, false, T>(s, groups, sums);
}

// Codes of four bits: their product with twelve of the activations' bits.
template <class C, Input kInput>
struct OneProduct {
    using Panel = NibblePanel;
    using Tokens = FineBlock;

    static std::size_t tokens_of(int groups) {
        return static_cast<std::size_t>((groups + kStripGroups - 1) / kStripGroups);
    }
    static const Tokens* at(const Tokens* x, int g) { return x + g / kStripGroups; }
    static void put(const FixedRow* x, int tokens, int groups, Tokens* to) {
        put_fine_tokens<kInput, kEvenWords<C>, C::kOffset>(x, tokens, groups, to);
    }
    static void configure(TileConfig& config, int rows) {
        for (const int c : {0, 1, 2, 3, 4}) config.set(c, rows, 64);
        config.set(5, rows, 32);
        config.set(6, kTile, 64);
        config.set(7, kTile / 2, 64);
    }
    static void fill(Panel& p, const Dot& d, const Tiles& tiles, int row, int g, int groups) {
        fill_nibbles<C>(p, d, tiles, row, g, groups);
    }
    static void strip(const Panel& p, const std::byte*, int row, int groups, const Tokens* x,
                      int tokens, const TileAhead& ahead, float* sums) {
        const auto* scale = reinterpret_cast<const float (*)[2][kStripRows]>(p.scale[0][0] + row);
        const FineStrip s{&p.q[0][row / kTile], scale, p.offsets[row / kTile], *x, ahead};
        if (tokens > 12)
            fine_strip<C::kOffset, 16>(s, groups, sums);
        else if (tokens > 8)
            fine_strip<C::kOffset, 12>(s, groups, sums);
        else if (tokens > 4)
            fine_strip<C::kOffset, 8>(s, groups, sums);
        else
            fine_strip<C::kOffset, 4>(s, groups, sums);
    }
};

}  // namespace headrace::HEADRACE_ISA
