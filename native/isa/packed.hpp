// The kernels of packed weights: what a file of isa/ compiles that only has better products.
#pragma once

#include "isa/plain.hpp"
#include "simd/packed.hpp"

#include "kernels/unpack.inl"

// Blocks of a format of its own.
#include "kernels/ggml.inl"

#if defined(HEADRACE_PACKED)
#if defined(HEADRACE_SIMD_NEON)
#include "kernels/products_neon.inl"
#else
#include "kernels/products_x86.inl"
#endif

#include "kernels/fixed.inl"

// Its formats.
#include "kernels/fixed_nibbles.inl"

#include "kernels/fixed_planes.inl"

#include "kernels/fixed_blocks.inl"

// Readers of rows.
#include "kernels/codes.inl"

// Formats of tiles.
#include "kernels/lanes.inl"

// Walks over them.
#if defined(HEADRACE_SIMD_AVX512) && defined(HEADRACE_VNNI)
#define HEADRACE_SIXTEEN_ROWS
#include "kernels/lanes_512.inl"
#endif
#include "kernels/lane_walks.inl"

// Rows in lanes for many tokens.
#include "kernels/fixed_panels.inl"

// Products with them.
#if defined(HEADRACE_TILES)
#include "isa/amx_tiles.hpp"
#include "kernels/amx.inl"

// Over both: bytes on tiles.
#include "kernels/byte_tiles.inl"

// Products of bytes.
#include "kernels/nibble_panels.inl"

#include "kernels/nibble_tiles.inl"
#include "kernels/tile_panels.inl"

// With blocks of tokens.
#include "kernels/tile_strips.inl"
#else
#include "kernels/strips.inl"
#endif

#include "kernels/many.inl"

// More formats for few tokens and many.
#include "kernels/fixed_ggml.inl"

#include "kernels/e4m3.inl"

#if defined(HEADRACE_TILES)
#include "kernels/e4m3_bf16.inl"

// In panels.
#include "kernels/wide_panels.inl"

// Their tokens.
#include "kernels/wide_tokens.inl"

// Products with them.
#include "kernels/float_tiles.inl"
#endif
#endif

// Over the kernels of plain INT4.
#include "kernels/ordered.inl"

#include "kernels/packed.inl"
