// One vector type, F32, per instruction set, with the same operations everywhere.
//
// A file of isa/ sets HEADRACE_ISA (its namespace) and one of HEADRACE_SIMD_{SCALAR,AVX2,AVX512,
// NEON}, and includes this before any kernel. Invariant: every operation is the same arithmetic in
// every lane, and reduce_add has one order, so a kernel written over F32 gives the same bits
// however its work is cut. Multiplies and adds are fused only where fma() says so.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if !defined(HEADRACE_ISA)
#error "define HEADRACE_ISA before including simd.hpp"
#endif

// Kernels that hold their sums in registers: a call would put them into memory.
#define HEADRACE_INLINE inline __attribute__((always_inline))

namespace headrace::HEADRACE_ISA {

inline float float_from_bf16(std::uint16_t h) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(h) << 16);
}

// Rounds to nearest even; a NaN stays a NaN.
inline std::uint16_t bf16_from_float(float f) {
    const auto u = std::bit_cast<std::uint32_t>(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x40u);
    return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

inline float float_from_f16(std::uint16_t h) {
    const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
    const std::uint32_t rest = h & 0x7fffu;
    if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    // Moves exponent and mantissa into place; the multiplication corrects the exponent's bias and
    // turns subnormal halves into normal floats.
    const float shifted = std::bit_cast<float>(rest << 13) * 0x1p112f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(shifted));
}

}  // namespace headrace::HEADRACE_ISA

#if defined(HEADRACE_SIMD_AVX512)
#include "simd/avx512.inl"
#elif defined(HEADRACE_SIMD_AVX2)
#include "simd/avx2.inl"
#elif defined(HEADRACE_SIMD_NEON)
#include "simd/neon.inl"
#else
#include "simd/scalar.inl"
#endif

namespace headrace::HEADRACE_ISA {

// e^x to about 1 ulp: x = n ln 2 + r, |r| <= ln 2 / 2, Taylor to r^7 (next term below 6e-9).
// Below -86.6 the result is 0, above 88.7 the largest finite power; NaN stays NaN.
inline F32 exp(F32 x) {
    const F32 low = F32::set1(-86.6f);
    const F32 clamped = max(low, min(F32::set1(88.72f), x));
    const F32 n = round(clamped * F32::set1(1.44269504088896341f));
    // ln 2 in two parts, the first with few enough bits for n * part to be exact.
    F32 r = fma(n, F32::set1(-0.693359375f), clamped);
    r = fma(n, F32::set1(2.12194440e-4f), r);
    F32 p = F32::set1(1.0f / 5040.0f);
    p = fma(p, r, F32::set1(1.0f / 720.0f));
    p = fma(p, r, F32::set1(1.0f / 120.0f));
    p = fma(p, r, F32::set1(1.0f / 24.0f));
    p = fma(p, r, F32::set1(1.0f / 6.0f));
    p = fma(p, r, F32::set1(0.5f));
    p = fma(p, r * r, r) + F32::set1(1.0f);
    // 2^128 is no float: double first, then scale by 2^(n-1).
    const F32 y = (p + p) * pow2(n - F32::set1(1.0f));
    return select_less(x, low, F32::zero(), y);
}

inline F32 sigmoid(F32 x) {
    const F32 one = F32::set1(1.0f);
    return one / (one + exp(F32::zero() - x));
}

inline F32 silu(F32 x) { return x * sigmoid(x); }

// tanh as 1 - 2 / (e^2x + 1): absolute error near one ulp of 1, which is what gelu needs.
inline F32 tanh(F32 x) {
    const F32 one = F32::set1(1.0f);
    return one - F32::set1(2.0f) / (exp(x + x) + one);
}

}  // namespace headrace::HEADRACE_ISA
