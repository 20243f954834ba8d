// Sixteen rows in lanes as one vector of AVX-512 with VNNI: what the formats' `add` does with two
// of AVX2, to the bit (kernels/lanes.inl).

namespace headrace::HEADRACE_ISA {

HEADRACE_INLINE __m512i word_of_rows(const std::byte* p) {
    __m512i v;
    std::memcpy(&v, p, sizeof v);
    keep(v);
    return v;
}
HEADRACE_INLINE __m512i word_for_rows(const void* p) {
    return _mm512_set1_epi32(load_as<std::int32_t>(static_cast<const std::byte*>(p)));
}
HEADRACE_INLINE __m512i nibbles_of_rows(__m512i v, int n) {
    return _mm512_and_si512(n == 0 ? v : _mm512_srli_epi16(v, 4), _mm512_set1_epi8(15));
}
HEADRACE_INLINE __m512 floats_of_rows(F8 first, F8 second) {
    return _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castps_pd(_mm512_castps256_ps512(first)),
                                               _mm256_castps_pd(second), 1));
}
// Scales of a group, as `scales` of eight rows.
template <class F>
HEADRACE_INLINE __m512 scales_of_rows(const std::byte* group, int part) {
    return floats_of_rows(F::scales(group, 0, part), F::scales(group, 1, part));
}
template <>
HEADRACE_INLINE __m512 scales_of_rows<LanesNVFP4>(const std::byte* group, int part) {
    return _mm512_cvtph_ps(e4m3_halves(load32(group), part, [](int v) { return each16(v); }));
}
HEADRACE_INLINE __m512i codes_of_rows(PlainCodes, __m512i nibbles) { return nibbles; }
HEADRACE_INLINE __m512i codes_of_rows(StepsAbove, __m512i nibbles) {
    const __m512i steps =
        _mm512_broadcast_i32x4(bytes16(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    return _mm512_shuffle_epi8(steps, nibbles);
}

// Unsigned bytes of codes with h and l of the activations.
struct SixteenSums {
    __m512i h = _mm512_setzero_si512(), l = _mm512_setzero_si512();
    HEADRACE_INLINE void add(__m512i codes, const std::int8_t* x) {
        h = _mm512_dpbusd_epi32(h, codes, word_for_rows(x));
        l = _mm512_dpbusd_epi32(l, codes, word_for_rows(x + 32));
        keep(h);
        keep(l);
    }
    HEADRACE_INLINE __m512 times(float scale) const {
        const __m512i whole = _mm512_add_epi32(_mm512_slli_epi32(h, 8), l);
        return _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(scale));
    }
};

// As LanesQ4_K::Six, of all rows.
struct SixteenSix {
    __m512i scales[2], minima[2];
    HEADRACE_INLINE explicit SixteenSix(const std::byte* block) {
        const auto word = [&](int i) { return word_of_rows(block + i * (kLaneRows * 4)); };
        const __m512i six = _mm512_set1_epi32(0x3f3f3f3f), four = _mm512_set1_epi32(0x0f0f0f0f);
        const __m512i top = _mm512_set1_epi32(0x30303030), rest = word(3);
        const auto last = [&](__m512i of, __m512i nibbles) {
            return _mm512_or_si512(_mm512_and_si512(nibbles, four),
                                   _mm512_and_si512(_mm512_srli_epi32(of, 2), top));
        };
        scales[0] = _mm512_and_si512(word(1), six);
        scales[1] = last(word(1), rest);
        minima[0] = _mm512_and_si512(word(2), six);
        minima[1] = last(word(2), _mm512_srli_epi32(rest, 4));
    }
};

// As LanesQ4_K::Whole, of all rows.
struct SixteenWhole {
    __m512 scale, least;
    HEADRACE_INLINE explicit SixteenWhole(const std::byte* block) {
        const __m512i both = word_of_rows(block);
        scale = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(both));
        least = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16)));
    }
};

template <class F, int T>
struct TileSums {
    __m512 sum[T];

    HEADRACE_INLINE void clear() {
#pragma GCC unroll 3
        for (int t = 0; t < T; ++t) sum[t] = _mm512_setzero_ps();
    }
    void store(int t, float* to) const { _mm512_storeu_ps(to, sum[t]); }

    HEADRACE_INLINE void add(const std::byte* block, const FixedRow (&x)[T], int b) {
        if constexpr (std::is_same_v<F, LanesQ8_0>)
            add_words(block, x, b);
        else if constexpr (std::is_same_v<F, LanesQ4_K>)
            add_block(block, x, b);
        else
            add_nibbles(block, x, b);
    }
    HEADRACE_INLINE void add_words(const std::byte* group, const FixedRow (&x)[T], int g) {
        __m512i part[T];
#pragma GCC unroll 3
        for (int t = 0; t < T; ++t) part[t] = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
            const __m512i v = word_of_rows(group + kLaneRows * (2 + i * 4));
            const __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8);
            const __m512i odd = _mm512_srai_epi16(v, 8);
#pragma GCC unroll 3
            for (int t = 0; t < T; ++t) {
                const std::int16_t* q = x[t].q + g * 32 + 2 * i;
                part[t] = _mm512_dpwssd_epi32(part[t], even, word_for_rows(q));
                part[t] = _mm512_dpwssd_epi32(part[t], odd, word_for_rows(q + 16));
                keep(part[t]);
            }
        }
        const __m512 w = scales_of_rows<F>(group, 0);
#pragma GCC unroll 3
        for (int t = 0; t < T; ++t) {
            const __m512 scale = _mm512_set1_ps(x[t].scale[g]);
            sum[t] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(part[t]), scale), w, sum[t]);
        }
    }
    HEADRACE_INLINE void add_nibbles(const std::byte* group, const FixedRow (&x)[T], int g) {
        constexpr int kParts = F::kHalves ? 2 : 1;
        SixteenSums part[kParts][T];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const __m512i v = word_of_rows(group + F::kHeadNbytes + i * (kLaneRows * 4));
#pragma GCC unroll 2
            for (int n = 0; n < 2; ++n) {
                const __m512i codes = codes_of_rows(typename F::Code{}, nibbles_of_rows(v, n));
#pragma GCC unroll 3
                for (int t = 0; t < T; ++t)
                    part[n % kParts][t].add(
                        codes, x[t].bytes() + g / 8 * 512 + g % 8 * 4 + i * 128 + n * 64);
            }
        }
#pragma GCC unroll 2
        for (int p = 0; p < kParts; ++p) {
            const __m512 w = scales_of_rows<F>(group, p);
#pragma GCC unroll 3
            for (int t = 0; t < T; ++t) {
                const __m512 above = part[p][t].times(x[t].scale[g]);
                const __m512 zero = _mm512_set1_ps(F::kZero);
                const __m512 all = _mm512_set1_ps(F::sum_of(x[t], g, p));
                sum[t] = _mm512_fmadd_ps(w, _mm512_fnmadd_ps(zero, all, above), sum[t]);
            }
        }
    }
    HEADRACE_INLINE void add_block(const std::byte* block, const FixedRow (&x)[T], int b) {
        __m512 above[T], below[T];
#pragma GCC unroll 3
        for (int t = 0; t < T; ++t) above[t] = below[t] = _mm512_setzero_ps();
        const SixteenSix six(block);
        __m512i scales = six.scales[0], minima = six.minima[0];
        for (int pair = 0; pair < 4; ++pair) {
            const std::byte* codes = block + (4 + pair * 8) * (kLaneRows * 4);
            const std::byte* ahead = block + kLanesAhead + pair * (2 * F::kGroupNbytes);
            ask_for(ahead, ahead + 2 * F::kGroupNbytes);
            if (pair == 2) {
                scales = six.scales[1];
                minima = six.minima[1];
            }
            SixteenSums part[2][T];
#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i) {
                const __m512i v = word_of_rows(codes + i * (kLaneRows * 4));
#pragma GCC unroll 2
                for (int n = 0; n < 2; ++n)
#pragma GCC unroll 3
                    for (int t = 0; t < T; ++t)
                        part[n][t].add(
                            nibbles_of_rows(v, n),
                            x[t].bytes() + b * 512 + (pair * 2 + n) * 4 + i % 4 * 128 + i / 4 * 64);
            }
#pragma GCC unroll 2
            for (int n = 0; n < 2; ++n) {
                const int g = b * 8 + pair * 2 + n;
                const __m512i byte = _mm512_set1_epi32(255);
                const __m512 scale = _mm512_cvtepi32_ps(_mm512_and_si512(scales, byte));
                const __m512 least = _mm512_cvtepi32_ps(_mm512_and_si512(minima, byte));
                scales = _mm512_srli_epi32(scales, 8);
                minima = _mm512_srli_epi32(minima, 8);
#pragma GCC unroll 3
                for (int t = 0; t < T; ++t) {
                    above[t] = _mm512_fmadd_ps(scale, part[n][t].times(x[t].scale[g]), above[t]);
                    below[t] = _mm512_fmadd_ps(least, _mm512_set1_ps(x[t].sum[g]), below[t]);
                }
            }
        }
        const SixteenWhole whole(block);
#pragma GCC unroll 3
        for (int t = 0; t < T; ++t)
            sum[t] = _mm512_fnmadd_ps(whole.least, below[t],
                                      _mm512_fmadd_ps(whole.scale, above[t], sum[t]));
    }
};

}  // namespace headrace::HEADRACE_ISA
