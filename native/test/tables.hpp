// The kernel tables that a test can run here, and tiles of random bits for packed formats.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "cpu.hpp"
#include "table.hpp"

namespace headrace {

#if defined(HEADRACE_SIMDE)
inline constexpr bool kTranslated = true;
#else
inline constexpr bool kTranslated = false;
#endif

inline std::vector<const KernelTable*> tables_to_test() {
    std::vector<const KernelTable*> tables{&scalar::table()};
#if defined(__x86_64__)
    if (cpu().avx2) tables.push_back(&avx2::table());
#if !defined(HEADRACE_NARROW)
    const bool any = kTranslated && cpu().avx2;
    if (any || cpu().avx_vnni) tables.push_back(&avxvnni::table());
    if (any || cpu().avx512) tables.push_back(&avx512::table());
    if (any || cpu().avx512_vnni) tables.push_back(&avx512vnni::table());
    if (any || cpu().avx512_bf16) tables.push_back(&avx512bf16::table());
    if (any || cpu().amx) tables.push_back(&amx::table());
#endif
#elif defined(__aarch64__)
    tables.push_back(&neon::table());
    if (cpu().dot_products) tables.push_back(&neondot::table());
    if (cpu().byte_matrices) tables.push_back(&neonmm::table());
#endif
    return tables;
}

// Pairs that differ in nothing but their products of integers.
inline std::vector<std::pair<const KernelTable*, const KernelTable*>> tables_of_same_bits() {
    std::vector<std::pair<const KernelTable*, const KernelTable*>> pairs;
#if defined(__x86_64__) && !defined(HEADRACE_NARROW)
    const bool any = kTranslated && cpu().avx2;
    if (any || cpu().avx_vnni) pairs.emplace_back(&avx2::table(), &avxvnni::table());
    if (any || cpu().avx512_vnni) pairs.emplace_back(&avx512::table(), &avx512vnni::table());
    if (any || cpu().amx) pairs.emplace_back(&avx512vnni::table(), &amx::table());
#elif defined(__aarch64__)
    if (cpu().dot_products) pairs.emplace_back(&neon::table(), &neondot::table());
    if (cpu().byte_matrices) pairs.emplace_back(&neon::table(), &neonmm::table());
#endif
    return pairs;
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
