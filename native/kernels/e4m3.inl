// Few tokens with E4M3 weights on AVX2: widened in registers, with the activations as they are.
//
// A row's sum walks its groups in order, whatever shares the call.

namespace headrace::HEADRACE_ISA {

// 16 E4M3 as float32 times 2^-8: each is the upper part of a float16.
struct Eights {
    __m256 low, high;
};

inline Eights e4m3_eights(const std::byte* p) {
    const __m256i up = _mm256_slli_epi16(_mm256_cvtepu8_epi16(load16(p)), 8);
    const __m256i h =
        _mm256_and_si256(_mm256_srai_epi16(up, 1), _mm256_set1_epi16(static_cast<short>(0xbf80)));
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}

// n columns of one row with T tokens' floats; sums in two lanes' worth each.
template <int T>
inline void e4m3_products(const std::byte* q, const float* const (&x)[T], int from, int n,
                          __m256 (&sum)[T]) {
    __m256 odd[T];
    for (int t = 0; t < T; ++t) sum[t] = odd[t] = _mm256_setzero_ps();
    int k = 0;
    for (; k + 16 <= n; k += 16) {
        const Eights w = e4m3_eights(q + from + k);
        for (int t = 0; t < T; ++t) {
            const float* v = x[t] + from + k;
            sum[t] = _mm256_fmadd_ps(w.low, _mm256_loadu_ps(v), sum[t]);
            odd[t] = _mm256_fmadd_ps(w.high, _mm256_loadu_ps(v + 8), odd[t]);
        }
    }
    if (k < n) {
        std::byte rest[16] = {};
        std::memcpy(rest, q + from + k, static_cast<std::size_t>(n - k));
        const Eights w = e4m3_eights(rest);
        for (int t = 0; t < T; ++t) {
            float v[16] = {};
            std::memcpy(v, x[t] + from + k, static_cast<std::size_t>(n - k) * sizeof(float));
            sum[t] = _mm256_fmadd_ps(w.low, _mm256_loadu_ps(v), sum[t]);
            odd[t] = _mm256_fmadd_ps(w.high, _mm256_loadu_ps(v + 8), odd[t]);
        }
    }
    for (int t = 0; t < T; ++t) sum[t] = _mm256_add_ps(sum[t], odd[t]);
}

template <int T>
inline void e4m3_stream(const Dot& d) {
    const Tiles tiles{d.w, d.w_stride, d.columns, d.format};
    const bool mx = kind_of(d.format) == kMXFP8, whole = kind_of(d.format) == kFP8Row;
    const int group = whole ? d.columns : group_of(d.format);
    const int groups = (d.columns + group - 1) / group;
    const float* x[T];
    for (int t = 0; t < T; ++t) x[t] = reinterpret_cast<const float*>(d.x[t]);
    for (int row = 0; row < d.rows; ++row) {
        const std::byte* tile = tiles.tile(row);
        const std::byte* q = tile + groups * (mx ? 1 : 4) + row % tile_rows(d.format) * d.columns;
        __m256 sum[T], part[T];
        for (int t = 0; t < T; ++t) sum[t] = _mm256_setzero_ps();
        for (int g = 0; g < groups; ++g) {
            const int from = g * group;
            e4m3_products<T>(q, x, from, std::min(group, d.columns - from), part);
            const float scale = mx ? kE8M0.of[byte_at(tile, g)] : load_as<float>(tile + 4 * g);
            for (int t = 0; t < T; ++t)
                sum[t] = _mm256_fmadd_ps(part[t], _mm256_set1_ps(scale * 256.0f), sum[t]);
        }
        for (int t = 0; t < T; ++t)
            d.out[static_cast<std::size_t>(t) * d.out_stride + static_cast<std::size_t>(row)] =
                sum_of_lanes(sum[t]);
    }
}

template <void (*kUnpack)(const Tiles&, int, float*)>
void e4m3_run(const Dot& d) {
    if (d.tokens == 1) return e4m3_stream<1>(d);
    if (d.tokens == 2) return e4m3_stream<2>(d);
    if (d.tokens == 3) return e4m3_stream<3>(d);
    unpacked_run<kUnpack>(d);
}

inline void put_e4m3_kernels(KernelTable& t) {
    t.fast[kFP8Block].run = e4m3_run<unpack_fp8_block>;
    t.fast[kFP8Row].run = e4m3_run<unpack_fp8_row>;
    t.fast[kMXFP8].run = e4m3_run<unpack_mxfp8>;
}

}  // namespace headrace::HEADRACE_ISA
