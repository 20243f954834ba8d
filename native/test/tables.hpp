// The kernel tables that a test can run here, and tiles of random bits for packed formats.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "cpu.hpp"
#include "table.hpp"

namespace headrace {

// `matrices`: also those whose kernels differ for plain floats alone.
inline std::vector<const KernelTable*> tables_to_test(bool matrices) {
    std::vector<const KernelTable*> tables{&scalar::table()};
#if defined(__x86_64__)
    if (cpu().avx2) tables.push_back(&avx2::table());
#if defined(HEADRACE_SIMDE)
    const bool wide = cpu().avx2, bf16 = wide, tiles = wide;
#else
    const bool wide = cpu().avx512, bf16 = cpu().avx512_bf16, tiles = cpu().amx_bf16;
#endif
#if !defined(HEADRACE_NARROW)
    if (wide) tables.push_back(&avx512::table());
    if (bf16 && matrices) tables.push_back(&avx512bf16::table());
    if (tiles && matrices) tables.push_back(&amx::table());
#else
    (void)wide, (void)bf16, (void)tiles, (void)matrices;
#endif
#elif defined(__aarch64__)
    tables.push_back(&neon::table());
#endif
    return tables;
}

constexpr int with_group(int kind, int group, bool zeros = false) {
    return kind | group << 8 | static_cast<int>(zeros) << 24;
}

// Bytes of the bits of `kept` and `always`; where columns have an order, one that is.
inline void fill_tiles(std::byte* tiles, std::size_t count, int format, int columns, unsigned kept,
                       unsigned always, std::mt19937& bits) {
    const std::size_t nbytes = tile_nbytes(format, columns);
    std::vector<std::uint16_t> order(static_cast<std::size_t>(columns));
    std::iota(order.begin(), order.end(), std::uint16_t{0});
    std::shuffle(order.begin(), order.end(), bits);
    for (std::size_t i = 0; i < count * nbytes; ++i)
        tiles[i] = static_cast<std::byte>((bits() & kept) | always);
    for (std::size_t i = 0; is_ordered(format) && i < count; ++i)
        std::memcpy(tiles + i * nbytes, order.data(), 2 * order.size());
}

}  // namespace headrace
