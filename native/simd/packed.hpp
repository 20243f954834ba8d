// Vectors for packed weights, after simd.hpp: V16 and V32 of bytes, F8 of floats, the same
// operations for every set that has them. Lanes are as wide as an operation's name says.
#pragma once

#include "simd.hpp"

#if defined(HEADRACE_SIMD_AVX2) || defined(HEADRACE_SIMD_AVX512)
#define HEADRACE_PACKED
#include "simd/packed_x86.inl"
#elif defined(HEADRACE_SIMD_NEON)
#define HEADRACE_PACKED
#include "simd/packed_neon.inl"
#endif

#if defined(HEADRACE_PACKED)
namespace headrace::HEADRACE_ISA {

// 16-bit integers as 256 h + l with signed bytes h and l.
inline constexpr float kMostFixed = 127 * 256 + 127;

// Eight h and eight l of 16 integers, and those of the other eight.
HEADRACE_INLINE V32 in_bytes(V32 q) {
    const V32 low = down16(left16(q, 8), 8);
    return narrow16(down16(sub16(q, low), 8), low);
}

}  // namespace headrace::HEADRACE_ISA
#endif
