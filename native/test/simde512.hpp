// AVX-512 on a machine without it: SIMDe's translations under the names of the intrinsics, and the
// few that its release 0.7 lacks.
#pragma once

#include <cstdint>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

namespace headrace::translated {
inline simde__m512 maskz_load(simde__mmask16 mask, const float* p) {
    alignas(64) float lanes[16] = {};
    for (int i = 0; i < 16; ++i)
        if (mask >> i & 1) lanes[i] = p[i];
    return simde_mm512_load_ps(lanes);
}
inline void mask_store(float* p, simde__mmask16 mask, simde__m512 v) {
    alignas(64) float lanes[16];
    simde_mm512_store_ps(lanes, v);
    for (int i = 0; i < 16; ++i)
        if (mask >> i & 1) p[i] = lanes[i];
}

// One way of the eight-bit shuffles of 128-bit lanes that a transposition needs.
inline simde__m512i shuffle_lanes(simde__m512i a, simde__m512i b, int how) {
    alignas(64) std::int64_t x[8], y[8], out[8];
    simde_mm512_store_si512(x, a);
    simde_mm512_store_si512(y, b);
    for (int i = 0; i < 4; ++i) {
        const std::int64_t* from = (i < 2 ? x : y) + 2 * (how >> 2 * i & 3);
        out[2 * i] = from[0];
        out[2 * i + 1] = from[1];
    }
    return simde_mm512_load_si512(out);
}
template <class Half>
inline simde__m512 halves(Half&& half) {
    alignas(64) float lanes[16];
    _mm256_store_ps(lanes, half(0));
    _mm256_store_ps(lanes + 8, half(1));
    return simde_mm512_load_ps(lanes);
}

inline simde__m512 widen_f16(__m256i h) {
    return halves([&](int i) {
        return _mm256_cvtph_ps(i == 0 ? _mm256_castsi256_si128(h) : _mm256_extracti128_si256(h, 1));
    });
}

inline simde__m512i widen_u16(__m256i h) {
    alignas(64) std::uint16_t from[16];
    alignas(64) std::uint32_t to[16];
    _mm256_store_si256(reinterpret_cast<__m256i*>(from), h);
    for (int i = 0; i < 16; ++i) to[i] = from[i];
    return simde_mm512_load_si512(to);
}

inline simde__m512i to_int(simde__m512 v) {
    alignas(64) float from[16];
    alignas(64) std::int32_t to[16];
    simde_mm512_store_ps(from, v);
    for (int i = 0; i < 16; ++i) to[i] = _mm_cvtss_si32(_mm_set_ss(from[i]));
    return simde_mm512_load_si512(to);
}

inline simde__m512 to_float(simde__m512i v) {
    alignas(64) std::int32_t from[16];
    alignas(64) float to[16];
    simde_mm512_store_si512(from, v);
    for (int i = 0; i < 16; ++i) to[i] = static_cast<float>(from[i]);
    return simde_mm512_load_ps(to);
}

inline __m256i low_halves(simde__m512i v) {
    alignas(64) std::int32_t from[16];
    alignas(32) std::uint16_t to[16];
    simde_mm512_store_si512(from, v);
    for (int i = 0; i < 16; ++i) to[i] = static_cast<std::uint16_t>(from[i]);
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(to));
}

inline std::int32_t sum_of_words(simde__m512i v) {
    alignas(64) std::int32_t from[16];
    simde_mm512_store_si512(from, v);
    std::int32_t sum = 0;
    for (const std::int32_t word : from) sum += word;
    return sum;
}
}  // namespace headrace::translated

#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps(mask, p) headrace::translated::maskz_load(mask, p)
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps(p, mask, v) headrace::translated::mask_store(p, mask, v)
#undef _mm512_shuffle_i32x4
#define _mm512_shuffle_i32x4(a, b, how) headrace::translated::shuffle_lanes(a, b, how)
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps(h) headrace::translated::widen_f16(h)
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32(h) headrace::translated::widen_u16(h)
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32(v) headrace::translated::to_int(v)
// The release's own name for it asks for a mask.
#undef _mm512_madd_epi16
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps(v) headrace::translated::to_float(v)
#undef _mm256_dpbusd_epi32
#define _mm256_dpbusd_epi32(sum, a, b) simde_mm256_dpbusd_epi32(sum, a, b)
#undef _mm256_dpwssd_epi32
#define _mm256_dpwssd_epi32(sum, a, b) simde_mm256_dpwssd_epi32(sum, a, b)
#undef _mm512_dpwssd_epi32
#define _mm512_dpwssd_epi32(sum, a, b) simde_mm512_dpwssd_epi32(sum, a, b)
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32(sum, a, b) simde_mm512_dpbusd_epi32(sum, a, b)
#undef _mm512_cvtepi32_epi16
#define _mm512_cvtepi32_epi16(v) headrace::translated::low_halves(v)
#undef _mm512_reduce_add_epi32
#define _mm512_reduce_add_epi32(v) headrace::translated::sum_of_words(v)
