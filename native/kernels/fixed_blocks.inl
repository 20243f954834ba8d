// Formats for `fixed_rows` whose groups have vectors of their own: Q8_0 and ggml's blocks of 256.
//
// The activations have the even columns of each 32 before the odd ones (kEvensInput).

namespace headrace::HEADRACE_ISA {

// 32 weights as 16-bit integers: the even columns, the odd ones.
struct Codes {
    __m256i even, odd;
};

// A float for each group of a block, in all lanes or another in the upper half.
struct EightScales {
    __m256 first, second;  // of groups 0 to 3, 4 to 7, in both halves
    template <int g>
    __m256 of() const {
        return _mm256_permute_ps(g < 4 ? first : second, g % 4 * 0x55);
    }
};
inline EightScales eight_scales(__m256 w, const float* x) {
    const __m256 s = _mm256_mul_ps(w, _mm256_loadu_ps(x));
    return {_mm256_permute2f128_ps(s, s, 0x00), _mm256_permute2f128_ps(s, s, 0x11)};
}

// Two sums, of even and odd groups: one alone would wait for itself.
template <class C, int T>
HEADRACE_INLINE void add_codes(const C& c, const FixedRow (&x)[T], int xb, __m256 (&sum)[T]) {
    EightScales s[T];
    for (int t = 0; t < T; ++t) s[t] = c.scales(x[t].scale + xb * 8);
    __m256 part[T][2];
    unrolled<8>([&](auto g) {
        const Codes w = c.template group<g>();
        for (int t = 0; t < T; ++t) {
            const std::int16_t* q = x[t].q + xb * 256 + g * 32;
            const __m256 f = _mm256_cvtepi32_ps(_mm256_add_epi32(
                _mm256_madd_epi16(w.even, load_q(q)), _mm256_madd_epi16(w.odd, load_q(q + 16))));
            const __m256 scale = s[t].template of<g>();
            part[t][g % 2] =
                g < 2 ? _mm256_mul_ps(f, scale) : _mm256_fmadd_ps(f, scale, part[t][g % 2]);
        }
    });
    for (int t = 0; t < T; ++t)
        sum[t] = _mm256_add_ps(sum[t], _mm256_add_ps(part[t][0], part[t][1]));
}

struct FixedQ8_0 : FixedBlocks32<34> {
    static constexpr Input kInput = kEvensInput;
    static constexpr bool kOffset = false;
    using FixedBlocks32::FixedBlocks32;
    FixedQ8_0 tail(std::byte* copy, int b, int groups) const {
        return copy_tail(copy, b, groups), FixedQ8_0(copy);
    }
    struct Block {
        const std::byte* q;
        __m256 w;
        template <int g>
        Codes group() const {
            const __m256i v = load32(q + g * 34);
            return {_mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8), _mm256_srai_epi16(v, 8)};
        }
        EightScales scales(const float* x) const { return eight_scales(w, x); }
    };
    template <int T>
    HEADRACE_INLINE void add(int b, const FixedRow (&x)[T], int xb, __m256 (&sum)[T],
                             __m256 (&)[T]) const {
        add_codes(Block{block(b) + 2, gathered_halves<34>(block(b))}, x, xb, sum);
    }
};

// Q6_K: 16 columns share a signed scale of 8 bits.
struct FixedQ6_K {
    static constexpr Input kInput = kEvensInput;
    static constexpr bool kOffset = false, kTails = false;
    const std::byte* blocks;
    FixedQ6_K(const std::byte* tile, const Tiles&) : blocks(tile) {}
    static bool fits(const Tiles&) { return true; }
    struct Block {
        const std::byte* b;
        __m256 first, second;  // scales of the first 16 columns of four groups, of the others
        explicit Block(const std::byte* block) : b(block) {
            const __m128i apart =
                _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
            const __m128i s = _mm_shuffle_epi8(load16(b + 192), apart);
            const __m256 d = _mm256_set1_ps(half_fast(b + 208));
            first = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(s)));
            second = _mm256_mul_ps(
                d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(s, s))));
        }
        // Times 256.
        template <int g>
        Codes group() const {
            constexpr int kHalf = g / 4, kQuarter = g % 4;
            __m256i low = load32(b + kHalf * 64 + kQuarter % 2 * 32);
            if constexpr (kQuarter >= 2) low = _mm256_srli_epi16(low, 4);
            __m256i high = _mm256_and_si256(load32(b + 128 + kHalf * 32),
                                            _mm256_set1_epi8(static_cast<char>(3 << 2 * kQuarter)));
            if constexpr (kQuarter < 2) high = _mm256_slli_epi16(high, 4 - 2 * kQuarter);
            if constexpr (kQuarter > 2) high = _mm256_srli_epi16(high, 2);
            const __m256i code = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(15)), high);
            const __m256i v = _mm256_sub_epi8(code, _mm256_set1_epi8(32));
            return {_mm256_slli_epi16(v, 8),
                    _mm256_and_si256(v, _mm256_set1_epi16(static_cast<short>(0xff00)))};
        }
        EightScales scales(const float* from) const {
            const __m256 x = _mm256_loadu_ps(from);
            return {_mm256_mul_ps(first, _mm256_permute2f128_ps(x, x, 0x00)),
                    _mm256_mul_ps(second, _mm256_permute2f128_ps(x, x, 0x11))};
        }
    };
    template <int T>
    HEADRACE_INLINE void add(int b, const FixedRow (&x)[T], int xb, __m256 (&sum)[T],
                             __m256 (&)[T]) const {
        add_codes(Block(blocks + b * 210), x, xb, sum);
    }
    static constexpr int kStreamNbytes = 210;
    const std::byte* stream(int b) const { return blocks + b * kStreamNbytes; }
    float whole() const { return 0x1p-8f; }
};

struct TwoRows {
    using Row = FixedRow;
    static constexpr int kRows = 2;
};
template <>
struct Habits<FixedQ8_0> : TwoRows {};
template <>
struct Habits<FixedQ6_K> : TwoRows {};

inline void put_fixed_inputs(KernelTable& t) {
    t.put[kEvensInput] = put_fixed<kEvensInput>;
    t.put[kFoursInput] = put_fixed<kFoursInput>;
    t.put[kHalvesInput] = put_fixed<kHalvesInput>;
    t.put[kPlanesInput] = put_planes;
}

}  // namespace headrace::HEADRACE_ISA
