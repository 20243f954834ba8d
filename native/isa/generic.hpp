// Everything that a file of isa/ compiles under its own flags, after naming its set.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>
#include <utility>

#include "gates.hpp"
#include "mixers.hpp"
#include "simd.hpp"
#include "table.hpp"

// The kernels need what is above, and the last one all the others.
#include "kernels/dot.inl"

#include "kernels/blocks.inl"

#include "kernels/elementwise.inl"
#include "kernels/gates.inl"
#include "kernels/mixers.inl"
#include "kernels/unpack.inl"

// Blocks of a format of its own, then the table of all.
#include "kernels/ggml.inl"

#if defined(HEADRACE_SIMD_AVX2) || defined(HEADRACE_SIMD_AVX512)
#include "kernels/fixed.inl"

// Its formats, the second with the table of both.
#include "kernels/fixed_nibbles.inl"

#include "kernels/fixed_planes.inl"

#include "kernels/fixed_blocks.inl"

// Many tokens with them.
#include "kernels/codes.inl"
#include "kernels/fixed_panels.inl"

// More formats for few tokens and many.
#include "kernels/fixed_ggml.inl"

#include "kernels/e4m3.inl"
#endif

// Over the kernels of plain INT4.
#include "kernels/ordered.inl"

#include "kernels/table.inl"
