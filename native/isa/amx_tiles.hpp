// The tile intrinsics that the AMX kernel uses, with the compiler barriers that they need: GCC 12
// tells its optimiser that loading a configuration reads 8 of the 64 bytes (bug 114098), and that
// tile loads and stores touch no memory at all.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(HEADRACE_EMULATE_AMX)
#include "test/emulate_amx.hpp"
#else
#include <immintrin.h>
#endif

namespace headrace::amx {

inline constexpr int kTile = 16;         // rows of a tile, and tokens
inline constexpr int kTileColumns = 32;  // bfloat16 values in a row of 64 bytes

struct alignas(64) TileConfig {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_nbytes[16] = {};
    std::uint8_t rows[16] = {};

    void set(int tile, int tile_rows, int nbytes) {
        rows[tile] = static_cast<std::uint8_t>(tile_rows);
        row_nbytes[tile] = static_cast<std::uint16_t>(nbytes);
    }
};

inline void memory_barrier() { asm volatile("" ::: "memory"); }

inline void load_config(const TileConfig& config) {
    memory_barrier();
    _tile_loadconfig(&config);
}

}  // namespace headrace::amx
