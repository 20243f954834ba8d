#if defined(HEADRACE_SIMDE) && defined(HEADRACE_VNNI)
#include "test/simde512.hpp"
#else
#include <immintrin.h>
#endif

namespace headrace::HEADRACE_ISA {

inline __m256i lane_mask(int n) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lanes);
}

struct F32 {
    static constexpr int N = 8;
    __m256 v;

    static F32 set1(float s) { return {_mm256_set1_ps(s)}; }
    static F32 zero() { return {_mm256_setzero_ps()}; }
    static F32 load(const float* p) { return {_mm256_loadu_ps(p)}; }
    static F32 load_partial(const float* p, int n) { return {_mm256_maskload_ps(p, lane_mask(n))}; }
    void store(float* p) const { _mm256_storeu_ps(p, v); }
    void store_partial(float* p, int n) const { _mm256_maskstore_ps(p, lane_mask(n), v); }
    static F32 from_bf16(const std::uint16_t* p) {
        const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))};
    }
    static F32 from_f16(const std::uint16_t* p) {
        return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
    }
    void to_bf16(std::uint16_t* p) const {
        alignas(32) float lanes[N];
        _mm256_store_ps(lanes, v);
        for (int i = 0; i < N; ++i) p[i] = bf16_from_float(lanes[i]);
    }
    float reduce_add() const {
        __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
    }
    float reduce_max() const {
        __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        s = _mm_max_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
    }
};

inline F32 operator+(F32 a, F32 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F32 operator-(F32 a, F32 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F32 operator*(F32 a, F32 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F32 operator/(F32 a, F32 b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F32 fma(F32 a, F32 b, F32 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F32 round(F32 a) {
    return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline F32 pow2(F32 n) {
    const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(e, 23))};
}
inline F32 select_less(F32 a, F32 b, F32 yes, F32 no) {
    return {_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}

}  // namespace headrace::HEADRACE_ISA
