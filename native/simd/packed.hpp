// Vectors for packed weights, after simd.hpp: V16 and V32 of bytes, F8 of floats, the same
// operations for every set that has them. Lanes are as wide as an operation's name says.
#pragma once

#include "simd.hpp"

#if defined(HEADRACE_SIMD_AVX2) || defined(HEADRACE_SIMD_AVX512)
#define HEADRACE_PACKED
#include "simd/packed_x86.inl"
#endif
