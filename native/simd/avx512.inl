#if defined(HEADRACE_SIMDE)
#include "test/simde512.hpp"
#else
#include <immintrin.h>
#endif

namespace headrace::HEADRACE_ISA {

inline __mmask16 lane_mask(int n) {
    return static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << n) - 1u);
}

struct F32 {
    static constexpr int N = 16;
    __m512 v;

    static F32 set1(float s) { return {_mm512_set1_ps(s)}; }
    static F32 zero() { return {_mm512_setzero_ps()}; }
    static F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
    static F32 load_partial(const float* p, int n) {
        return {_mm512_maskz_loadu_ps(lane_mask(n), p)};
    }
    void store(float* p) const { _mm512_storeu_ps(p, v); }
    void store_partial(float* p, int n) const { _mm512_mask_storeu_ps(p, lane_mask(n), v); }
    static F32 from_bf16(const std::uint16_t* p) {
        const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
    }
    static F32 from_f16(const std::uint16_t* p) {
        return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
    }
    void to_bf16(std::uint16_t* p) const {
        alignas(64) float lanes[N];
        _mm512_store_ps(lanes, v);
        for (int i = 0; i < N; ++i) p[i] = bf16_from_float(lanes[i]);
    }
    __m256 low_half() const { return _mm512_castps512_ps256(v); }
    __m256 high_half() const {
        return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
    }
    float reduce_add() const {
        const __m256 h = _mm256_add_ps(low_half(), high_half());
        __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
        s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
    }
    float reduce_max() const {
        const __m256 h = _mm256_max_ps(low_half(), high_half());
        __m128 s = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
        s = _mm_max_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
    }
};

inline F32 operator+(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32 operator-(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32 operator/(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F32 round(F32 a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline F32 pow2(F32 n) {
    const __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(e, 23))};
}
inline F32 select_less(F32 a, F32 b, F32 yes, F32 no) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}

}  // namespace headrace::HEADRACE_ISA
