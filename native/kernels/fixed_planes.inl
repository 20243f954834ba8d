// Q4_K and Q5_K for `fixed_rows`: codes are bytes, and so are the halves of the activations.
//
// All 256 columns of a block have one scale of the activations, of which q = 256 h + l with signed
// bytes h and l: a block is sums of integers, with its scales of 6 bits, and one float product.

namespace headrace::HEADRACE_ISA {

// A vector of codes has two groups: eight columns of the first, as many of the second, and again
// the columns 16 further; the activations' h of these come before their l. `place` is where group g
// of a block has its columns 8 i to 8 i + 7.
struct PlanesRow : FixedRow {
    const float* scales;  // one for each block

    PlanesRow() = default;
    PlanesRow(const std::byte* row, int columns) : FixedRow(row, columns) {
        scales = reinterpret_cast<const float*>(more + fixed_blocks(columns) * 512);
    }
    static constexpr int vector(int half, int nibble, int odd) {
        return ((half * 2 + nibble) * 2 + odd) * 64;
    }
    static constexpr int place(int g, int i) {
        return vector(g / 4, g % 2, i % 2) + i / 2 * 16 + g / 2 % 2 * 8;
    }
};

// 256 floats as two bytes each, in units of `scale`.
inline void put_planes_block(std::int8_t* to, const float* from, float inverse) {
    const __m256 unit = _mm256_set1_ps(inverse);
    for (int g = 0; g < 8; ++g) {
        __m256i n[4];
        for (int i = 0; i < 4; ++i)
            n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + g * 32 + i * 8), unit));
        for (int i = 0; i < 4; i += 2) {
            const __m256i q = _mm256_permute4x64_epi64(_mm256_packs_epi32(n[i], n[i + 1]), 0xd8);
            const __m256i bytes = in_bytes(q);
            for (int k = 0; k < 2; ++k) {
                const __m128i eight = k == 0 ? low_half(bytes) : high_half(bytes);
                std::int8_t* at = to + PlanesRow::place(g, i + k);
                _mm_storel_epi64(reinterpret_cast<__m128i*>(at), eight);
                _mm_storel_epi64(reinterpret_cast<__m128i*>(at + 32),
                                 _mm_unpackhi_epi64(eight, eight));
            }
        }
    }
}

inline void put_planes(std::byte* row, int columns, int first, const float* x, int n) {
    put_fixed<kEvensInput>(row, columns, first, x, n);
    const PlanesRow at(row, columns);
    for (int k = 0; k < n; k += 256) {
        float block[256] = {};
        std::memcpy(block, x + k, static_cast<std::size_t>(std::min(n - k, 256)) * sizeof(float));
        float largest = 0.0f;
        bool sound = true;
        for (const float f : block) {
            largest = std::max(largest, std::abs(f));
            sound = sound && std::abs(f) <= 3e38f;
        }
        const int b = (first + k) / 256;
        const_cast<float*>(at.scales)[b] =
            sound ? largest / kMostFixed : std::bit_cast<float>(0x7fc00000u);
        if (!sound) std::memset(block, 0, sizeof block);
        put_planes_block(const_cast<std::int8_t*>(at.bytes()) + b * 512, block,
                         sound && largest > 1e-30f ? kMostFixed / largest : 0.0f);
    }
}

template <int kNbytes, bool kFifth>
struct PlanesK {
    static constexpr Input kInput = kPlanesInput;
    static constexpr bool kOffset = true, kTails = false;
    const std::byte* blocks;
    PlanesK(const std::byte* tile, const Tiles&) : blocks(tile) {}
    static bool fits(const Tiles&) { return true; }

    // Eight scales, eight minima: as `scale_min`, all at once.
    struct Six {
        std::uint64_t scales, minima;
        explicit Six(const std::byte* b) {
            const auto s = load_as<std::uint32_t>(b + 4), m = load_as<std::uint32_t>(b + 8);
            const auto rest = load_as<std::uint32_t>(b + 12);
            const std::uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, top = 0x30303030;
            scales = (s & six) | std::uint64_t{(rest & four) | (s >> 2 & top)} << 32;
            minima = (m & six) | std::uint64_t{(rest >> 4 & four) | (m >> 2 & top)} << 32;
        }
    };
    // The scale of a vector's two groups, in 16-bit lanes.
    template <int kHalf, int kNibble>
    static __m256i spread(__m256i scales) {
        constexpr char a = kHalf * 4 + kNibble, b = a + 2, no = -1;
        return _mm256_shuffle_epi8(
            scales, _mm256_setr_epi8(a, no, a, no, a, no, a, no, b, no, b, no, b, no, b, no, a, no,
                                     a, no, a, no, a, no, b, no, b, no, b, no, b, no));
    }
    // The fifth bit of a vector's codes where they have it, of `bits` twice what 8 columns have.
    template <int kHalf, int kNibble>
    static __m256i with_fifth(__m256i codes, __m256i bits) {
        if constexpr (!kFifth) return codes;
        const auto by = [](int a, int b) { return _mm256_setr_epi64x(a, b, a, b); };
        const __m256i at = kHalf == 0 ? _mm256_sllv_epi64(bits, by(4 - kNibble, 2 - kNibble))
                                      : _mm256_srlv_epi64(bits, by(kNibble, 2 + kNibble));
        return _mm256_or_si256(codes, _mm256_and_si256(at, _mm256_set1_epi8(16)));
    }

    template <int T>
    HEADRACE_INLINE void add(int block, const PlanesRow (&x)[T], int xb, __m256 (&sum)[T],
                             __m256 (&less)[T]) const {
        const std::byte* b = blocks + block * kNbytes;
        const Six six(b);
        const __m256i scales = _mm256_set1_epi64x(static_cast<long long>(six.scales));
        const __m256i low = _mm256_set1_epi8(15);
        __m256i bits[2] = {};
        if constexpr (kFifth) {
            const __m256i all = load32(b + 16);
            bits[0] = _mm256_unpacklo_epi64(all, all);
            bits[1] = _mm256_unpackhi_epi64(all, all);
        }
        __m256i high_sum[T], low_sum[T];
        unrolled<2>([&](auto half) {
            const std::byte* q = b + (kFifth ? 48 : 16) + half * 64;
            const __m256i first = load32(q), second = load32(q + 32);
            const __m256i v[2] = {_mm256_unpacklo_epi64(first, second),
                                  _mm256_unpackhi_epi64(first, second)};
            unrolled<2>([&](auto nibble) {
                __m256i c[2];
                for (int odd = 0; odd < 2; ++odd)
                    c[odd] = with_fifth<half, nibble>(
                        _mm256_and_si256(nibble == 0 ? v[odd] : _mm256_srli_epi16(v[odd], 4), low),
                        bits[odd]);
                const __m256i s = spread<half, nibble>(scales);
                for (int t = 0; t < T; ++t) {
                    const std::int8_t* p =
                        x[t].bytes() + xb * 512 + PlanesRow::vector(half, nibble, 0);
                    const auto of = [&](int plane) {
                        return _mm256_madd_epi16(
                            _mm256_add_epi16(
                                _mm256_maddubs_epi16(c[0], load32(p + plane * 32)),
                                _mm256_maddubs_epi16(c[1], load32(p + 64 + plane * 32))),
                            s);
                    };
                    const bool begins = half + nibble == 0;
                    high_sum[t] = begins ? of(0) : _mm256_add_epi32(high_sum[t], of(0));
                    low_sum[t] = begins ? of(1) : _mm256_add_epi32(low_sum[t], of(1));
                }
            });
        });
        const __m256 minima = _mm256_cvtepi32_ps(
            _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<std::int64_t>(six.minima))));
        const float d = half_fast(b), least = half_fast(b + 2);
        for (int t = 0; t < T; ++t) {
            const __m256 product =
                _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_slli_epi32(high_sum[t], 8), low_sum[t]));
            sum[t] = _mm256_fmadd_ps(product, _mm256_set1_ps(d * x[t].scales[xb]), sum[t]);
            less[t] = _mm256_fmadd_ps(_mm256_mul_ps(minima, _mm256_loadu_ps(x[t].sum + xb * 8)),
                                      _mm256_set1_ps(least), less[t]);
        }
    }
    static constexpr int kStreamNbytes = kNbytes;
    const std::byte* stream(int b) const { return blocks + b * kNbytes; }
    float whole() const { return 1.0f; }
};

template <int kNbytes, bool kFifth>
struct Habits<PlanesK<kNbytes, kFifth>> {
    using Row = PlanesRow;
    static constexpr int kRows = 1;
};

}  // namespace headrace::HEADRACE_ISA
