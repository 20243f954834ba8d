// The kernels of one instruction set, as a table of functions.
//
// The pool picks one table when it is made; nothing else asks which instruction set runs.
// Invariant: what a table computes for one token has one fixed order of sums, whatever else
// shares the call.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "format.hpp"

namespace headrace {

// out[t * out_stride + r] = sum over k of w[r, k] * x[t][k].
struct Dot {
    const std::byte* w;
    std::size_t w_stride;  // bytes from one tile of weights to the next
    int rows;
    int columns;
    const std::byte* const* x;  // one row per token, in the kernel's `input`
    int tokens;
    float* out;
    std::size_t out_stride;
    std::byte* scratch;  // at least `scratch_nbytes` of the kernel's
    int format;
    const std::byte* packed = nullptr;  // as the kernel's `packing` made it, of these tokens
};

// What a kernel makes of many tokens' activations before it multiplies: made once, it serves all
// rows of weights. `put` takes a Dot's activations, columns and format; `to` is aligned to 64.
struct Packing {
    std::size_t (*nbytes)(int columns, int tokens);
    void (*put)(const Dot& dot, std::byte* to);
};

// How a kernel takes activations.
// From kEvensInput on: 16-bit integers with a scale for each 32 columns, and the floats they were
// made of, in the order in which a format's codes come apart (kernels/fixed.inl).
// kFoursInput, kHalvesInput: then all of them again as two bytes. kPlanesInput: those of
// kEvensInput, then as two bytes with a scale for each 256 columns (kernels/fixed_planes.inl).
enum Input : int {
    kFloatInput,
    kBf16Input,
    kEvensInput,
    kFoursInput,
    kHalvesInput,
    kSixteensInput,  // as kEvensInput, with sums of 16 columns; of whole blocks alone
    kPlanesInput,
    kHalfSumsInput,  // as kHalvesInput, with sums of 16 columns
    kUnpackedInput,  // of each 64 columns as their bytes are unpacked, and all as they were
    kWideInput,      // of each 32 columns the even ones and the odd ones, and all as they were
    kInputs
};

// Whose integers lie as those of kHalvesInput.
inline constexpr bool in_halves(Input input) {
    return input == kHalvesInput || input == kHalfSumsInput;
}

inline constexpr std::size_t fixed_blocks(int columns) {
    return (static_cast<std::size_t>(columns) + 255) / 256;
}

// 16-bit integers and two floats for each 32 columns, then the floats themselves.
inline constexpr std::size_t fixed_nbytes(int columns) {
    return (fixed_blocks(columns) * 576 + static_cast<std::size_t>(columns) * 4 + 63) / 64 * 64;
}

inline constexpr std::size_t input_nbytes(Input input, int columns) {
    const auto n = static_cast<std::size_t>(columns);
    const std::size_t blocks = fixed_blocks(columns), fixed = fixed_nbytes(columns);
    switch (input) {
        case kFloatInput:
            return n * 4;
        case kBf16Input:
            return n * 2;
        case kWideInput:
            return ((n + 31) / 32 * 128 + n * 4 + 63) / 64 * 64;
        case kUnpackedInput:
            return (n + 127) / 128 * 512 + (n * 4 + 63) / 64 * 64;
        case kSixteensInput:
            return fixed + blocks * 64;
        case kFoursInput:
        case kHalvesInput:
            return fixed + blocks * 512;
        case kHalfSumsInput:
            return fixed + blocks * 576;
        case kPlanesInput:
            return fixed + blocks * 512 + (blocks * 4 + 63) / 64 * 64;
        default:
            return fixed;
    }
}

// Columns that are put into a row of activations together.
inline constexpr int input_unit(Input input) {
    if (input == kPlanesInput) return 256;
    if (input == kUnpackedInput) return 128;
    return input >= kEvensInput ? 32 : 8;
}

inline constexpr std::size_t pointers_nbytes(int n) {
    return (static_cast<std::size_t>(n) * sizeof(void*) + 63) / 64 * 64;
}

struct DotKernel {
    Input input;
    int stream_tokens;  // up to here, weights are used as they come from memory
    void (*run)(const Dot& dot);
    std::size_t (*scratch_nbytes)(int rows, int columns, int tokens);
    // Rows that one piece should have where they meet many tokens: their tile stays in L2.
    int (*tile_rows)(int columns);
    // Rows that it streams at once where it meets few tokens.
    int stream_rows = 8;
    const Packing* packing = nullptr;  // null: nothing that would be kept

    // Rows of a piece that meets few tokens: about `rows` and at most `most`, whole streams where
    // there are some, else whole units.
    int piece_rows(int rows, int most, int unit) const {
        const int step = (stream_rows + unit - 1) / unit * unit;
        const int whole =
            std::min((std::max(rows, 2 * stream_rows) + step - 1) / step * step, most);
        return whole >= step ? whole / step * step : whole / unit * unit;
    }
};

// gate[i] = act(gate[i], up[i]); the numbers of `activation` are those of ExpertLayer.
using Activate = void (*)(int activation, float alpha, float limit, float* gate, const float* up,
                          std::size_t n);

struct MixerTable;  // in mixers.hpp
struct Gate;        // in gates.hpp

struct Top {
    float value;
    bool finite;  // all of them
};

struct KernelTable {
    const char* name;
    DotKernel exact[kFormats];
    DotKernel fast[kFormats];  // may round activations, to bfloat16 at the worst
    Activate activate;
    void (*add_scaled)(float* y, const float* x, float scale, std::size_t n);    // y += scale * x
    void (*add)(float* y, const float* x, std::size_t n);                        // y += x
    void (*multiply)(const float* x, const float* by, float* y, std::size_t n);  // y = x * by
    // Columns [first, first + n) of a row of activations, as an input takes them.
    void (*put[kInputs])(std::byte* row, int columns, int first, const float* x, int n);
    void (*gate)(const Gate& c, std::int64_t first, std::int64_t last);  // heads [first, last)
    void (*clamp)(float* x, float limit, std::size_t n);                 // to [-limit, limit]
    // times `factor`, and into (-cap, cap) by its tanh where there is one
    void (*scale)(float* x, float factor, float cap, std::size_t n);
    void (*unpack[kFormats])(const Tiles& tiles, int row, float* to);  // one row
    Top (*top_of)(const float* x, std::int64_t n);                     // the largest, n >= 1
    float (*read)(const std::byte* from, std::size_t nbytes);  // only reads; the sum keeps it alive
    const MixerTable* mixers;
};

namespace scalar {
const KernelTable& table();
}
namespace avx2 {
const KernelTable& table();
}
namespace avxvnni {
const KernelTable& table();
}
namespace avx512 {
const KernelTable& table();
}
namespace avx512vnni {
const KernelTable& table();
}
namespace avx512bf16 {
const KernelTable& table();
}
namespace amx {
const KernelTable& table();
}
namespace neon {
const KernelTable& table();
}
namespace neondot {
const KernelTable& table();
}
namespace neonmm {
const KernelTable& table();
}

}  // namespace headrace
