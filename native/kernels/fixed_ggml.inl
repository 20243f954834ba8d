// ggml's types of 2, 3 and 5 bits and IQ4_XS for `fixed_rows`.
//
// Activations lie as for the K types (kEvensInput); where 16 columns have a minimum of their own,
// sums of 16 come along (kSixteensInput).

namespace headrace::HEADRACE_ISA {

// As `put_fixed`, and of each 16 columns the sum of q times the scale.
inline void put_sixteens(std::byte* row, int columns, int first, const float* x, int n) {
    put_fixed<kEvensInput>(row, columns, first, x, n);
    const FixedRow at(row, columns);
    auto* sums = const_cast<float*>(at.sum16());
    const __m256i ones = _mm256_set1_epi16(1);
    for (int g = first / 32; g < (first + n + 31) / 32; ++g) {
        const __m256i s = _mm256_add_epi32(_mm256_madd_epi16(load_q(at.q + g * 32), ones),
                                           _mm256_madd_epi16(load_q(at.q + g * 32 + 16), ones));
        const __m128i twos = _mm_hadd_epi32(low_half(s), high_half(s));
        const __m128i both = _mm_hadd_epi32(twos, twos);
        const __m128 of = _mm_mul_ps(_mm_cvtepi32_ps(both), _mm_set1_ps(at.scale[g]));
        _mm_storel_pi(reinterpret_cast<__m64*>(sums + g * 2), of);
    }
}

// Bytes that are signed codes, in order, as 16-bit integers times 256.
inline Codes codes_times_256(__m256i v) {
    return {_mm256_slli_epi16(v, 8),
            _mm256_and_si256(v, _mm256_set1_epi16(static_cast<short>(0xff00)))};
}

// Of sixteen bytes, one for each 16 columns: those of the first halves of groups 0 to 3 and then of
// their second halves, and of groups 4 to 7 likewise.
struct SixteenScales {
    __m256 first, second;
    SixteenScales(__m128i s, __m256 d) {
        const __m128i apart = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
        s = _mm_shuffle_epi8(s, apart);
        first = _mm256_mul_ps(d, floats_of_eight(s));
        second = _mm256_mul_ps(d, floats_of_eight(_mm_unpackhi_epi64(s, s)));
    }
    EightScales times(const float* from) const {
        const __m256 x = _mm256_loadu_ps(from);
        return {_mm256_mul_ps(first, _mm256_permute2f128_ps(x, x, 0x00)),
                _mm256_mul_ps(second, _mm256_permute2f128_ps(x, x, 0x11))};
    }
};

// Two bits of each byte of 32 that four groups share.
template <int g>
inline __m256i two_bits(const std::byte* q) {
    const __m256i v = load32(q + g / 4 * 32);
    return _mm256_and_si256(_mm256_srli_epi16(v, g % 4 * 2), _mm256_set1_epi8(3));
}

template <int kNbytes>
struct FixedBlocks256 {
    static constexpr Input kInput = kEvensInput;
    static constexpr bool kOffset = false, kTails = false;
    const std::byte* blocks;
    FixedBlocks256(const std::byte* tile, const Tiles&) : blocks(tile) {}
    static bool fits(const Tiles&) { return true; }
    static constexpr int kStreamNbytes = kNbytes;
    const std::byte* stream(int b) const { return blocks + b * kNbytes; }
    float whole() const { return 1.0f; }
};

struct FixedQ2_K : FixedBlocks256<84> {
    static constexpr Input kInput = kSixteensInput;
    static constexpr bool kOffset = true;
    using FixedBlocks256::FixedBlocks256;
    struct Block {
        const std::byte* q;
        SixteenScales w;
        template <int g>
        Codes group() const {
            const __m256i v = two_bits<g>(q);
            return {_mm256_and_si256(v, _mm256_set1_epi16(3)), _mm256_srli_epi16(v, 8)};
        }
        EightScales scales(const float* x) const { return w.times(x); }
    };
    template <int T>
    HEADRACE_INLINE void add(int b, const FixedRow (&x)[T], int xb, __m256 (&sum)[T],
                             __m256 (&less)[T]) const {
        const std::byte* p = stream(b);
        const __m128i packed = load16(p), minima = high_nibbles(packed);
        const __m128 d = _mm_cvtph_ps(_mm_cvtsi32_si128(load_as<std::int32_t>(p + 80)));
        const Block block{p + 16, {low_nibbles(packed), _mm256_broadcastss_ps(d)}};
        add_codes(block, x, xb, sum);
        const __m256 dmin = _mm256_broadcastss_ps(_mm_movehdup_ps(d));
        const __m256 least[2] = {
            _mm256_mul_ps(dmin, floats_of_eight(minima)),
            _mm256_mul_ps(dmin, floats_of_eight(_mm_unpackhi_epi64(minima, minima)))};
        for (int t = 0; t < T; ++t)
            for (int i = 0; i < 2; ++i)
                less[t] = _mm256_fmadd_ps(least[i], _mm256_loadu_ps(x[t].sum16() + xb * 16 + i * 8),
                                          less[t]);
    }
};

struct FixedQ3_K : FixedBlocks256<110> {
    using FixedBlocks256::FixedBlocks256;
    struct Block {
        const std::byte* b;
        SixteenScales w;
        template <int g>
        Codes group() const {
            __m256i third =
                _mm256_and_si256(load32(b), _mm256_set1_epi8(static_cast<char>(1 << g)));
            if constexpr (g < 2) third = _mm256_slli_epi16(third, 2 - g);
            if constexpr (g > 2) third = _mm256_srli_epi16(third, g - 2);
            return codes_times_256(
                _mm256_sub_epi8(_mm256_or_si256(two_bits<g>(b + 32), third), _mm256_set1_epi8(4)));
        }
        EightScales scales(const float* x) const { return w.times(x); }
    };
    template <int T>
    HEADRACE_INLINE void add(int b, const FixedRow (&x)[T], int xb, __m256 (&sum)[T],
                             __m256 (&)[T]) const {
        const std::byte* p = stream(b);
        add_codes(Block{p, {q3_k_scales(p), _mm256_set1_ps(half_fast(p + 108))}}, x, xb, sum);
    }
    float whole() const { return 0x1p-8f; }
};

struct FixedQ5_0 : FixedBlocks32<22> {
    static constexpr Input kInput = kEvensInput;
    static constexpr bool kOffset = false;
    using FixedBlocks32::FixedBlocks32;
    FixedQ5_0 tail(std::byte* copy, int b, int groups) const {
        return copy_tail(copy, b, groups), FixedQ5_0(copy);
    }
    struct Block {
        const std::byte* b;
        __m256 w;
        template <int g>
        Codes group() const {
            return codes_times_256(q5_0_codes(b + g * 22));
        }
        EightScales scales(const float* x) const { return eight_scales(w, x); }
    };
    template <int T>
    HEADRACE_INLINE void add(int b, const FixedRow (&x)[T], int xb, __m256 (&sum)[T],
                             __m256 (&)[T]) const {
        add_codes(Block{block(b), gathered_halves<22>(block(b))}, x, xb, sum);
    }
    float whole() const { return 0x1p-8f; }
};

struct FixedIQ4_XS : FixedBlocks256<136> {
    static constexpr Input kInput = kHalvesInput;
    using FixedBlocks256::FixedBlocks256;
    template <int T>
    HEADRACE_INLINE void add(int b, const FixedRow (&x)[T], int xb, __m256 (&sum)[T],
                             __m256 (&)[T]) const {
        const std::byte* p = stream(b);
        add_nibbles(Block32<iq4_steps, 16>{p + 8, iq4_xs_scales(p)}, x, xb, sum);
    }
};

inline void put_ggml_kernels(KernelTable& t) {
    t.put[kSixteensInput] = put_sixteens;
    put_many<FixedQ2_K, CodesQ2_K, unpack_q2_k>(t, kQ2_K);
    put_many<FixedQ3_K, CodesQ3_K, unpack_q3_k>(t, kQ3_K);
    put_many<FixedQ5_0, CodesQ5_0, unpack_q5_0>(t, kQ5_0);
    put_many<FixedIQ4_XS, CodesIQ4_XS, unpack_iq4_xs>(t, kIQ4_XS);
}

}  // namespace headrace::HEADRACE_ISA
