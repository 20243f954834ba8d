// The AMX tile intrinsics in plain C++, for machines without them: what the instructions do to
// eight tiles per thread, checked against the tile configuration.
#pragma once

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace headrace::emulated {

struct Tiles {
    std::uint8_t config[64];
    std::uint8_t data[8][16][64];
    bool ready = false;

    int rows(int t) const { return config[48 + t]; }
    int nbytes(int t) const {
        std::uint16_t n;
        std::memcpy(&n, config + 16 + 2 * t, sizeof n);
        return n;
    }
    float word(int t, int r, int c) const {
        float f;
        std::memcpy(&f, &data[t][r][4 * c], sizeof f);
        return f;
    }
};

inline thread_local Tiles tiles;

// What the processor would refuse is an error of ours.
inline void demand(bool holds) {
    if (!holds) std::abort();
}

inline void load_config(const void* config) {
    std::memcpy(tiles.config, config, 64);
    demand(tiles.config[0] == 1);
    for (int t = 0; t < 8; ++t) demand(tiles.rows(t) <= 16 && tiles.nbytes(t) <= 64);
    std::memset(tiles.data, 0, sizeof tiles.data);
    tiles.ready = true;
}

inline void load(int t, const void* from, std::size_t stride) {
    demand(tiles.ready && tiles.rows(t) > 0);
    for (int r = 0; r < tiles.rows(t); ++r)
        std::memcpy(tiles.data[t][r],
                    static_cast<const char*>(from) + static_cast<std::size_t>(r) * stride,
                    static_cast<std::size_t>(tiles.nbytes(t)));
}

inline void store(int t, void* to, std::size_t stride) {
    demand(tiles.ready);
    for (int r = 0; r < tiles.rows(t); ++r)
        std::memcpy(static_cast<char*>(to) + static_cast<std::size_t>(r) * stride, tiles.data[t][r],
                    static_cast<std::size_t>(tiles.nbytes(t)));
}

inline float bf16(std::uint16_t h) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(h) << 16);
}

inline void demand_product(int c, int a, int b) {
    demand(tiles.ready && tiles.rows(c) == tiles.rows(a) && tiles.nbytes(c) == tiles.nbytes(b));
    demand(tiles.nbytes(a) == 4 * tiles.rows(b));
}

template <class Code>
inline void multiply_bytes(int c, int a, int b) {
    demand_product(c, a, b);
    for (int m = 0; m < tiles.rows(c); ++m)
        for (int n = 0; n < tiles.nbytes(c) / 4; ++n) {
            std::int32_t sum;
            std::memcpy(&sum, &tiles.data[c][m][4 * n], sizeof sum);
            for (int k = 0; k < tiles.nbytes(a); ++k)
                sum += static_cast<std::int8_t>(tiles.data[a][m][k]) *
                       static_cast<Code>(tiles.data[b][k / 4][4 * n + k % 4]);
            std::memcpy(&tiles.data[c][m][4 * n], &sum, sizeof sum);
        }
}

inline void multiply(int c, int a, int b) {
    demand_product(c, a, b);
    for (int m = 0; m < tiles.rows(c); ++m)
        for (int n = 0; n < tiles.nbytes(c) / 4; ++n) {
            float sum = tiles.word(c, m, n);
            for (int k = 0; k < tiles.nbytes(a) / 4; ++k) {
                std::uint16_t x[2], y[2];
                std::memcpy(x, &tiles.data[a][m][4 * k], sizeof x);
                std::memcpy(y, &tiles.data[b][k][4 * n], sizeof y);
                sum += bf16(x[0]) * bf16(y[0]);
                sum += bf16(x[1]) * bf16(y[1]);
            }
            std::memcpy(&tiles.data[c][m][4 * n], &sum, sizeof sum);
        }
}

}  // namespace headrace::emulated

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_dpbsud
#define _tile_loadconfig(config) headrace::emulated::load_config(config)
#define _tile_release() (headrace::emulated::tiles.ready = false)
#define _tile_zero(t) std::memset(headrace::emulated::tiles.data[t], 0, 1024)
#define _tile_loadd(t, from, stride) headrace::emulated::load(t, from, stride)
#define _tile_stored(t, to, stride) headrace::emulated::store(t, to, stride)
#define _tile_dpbf16ps(c, a, b) headrace::emulated::multiply(c, a, b)
#define _tile_dpbssd(c, a, b) headrace::emulated::multiply_bytes<std::int8_t>(c, a, b)
#define _tile_dpbsud(c, a, b) headrace::emulated::multiply_bytes<std::uint8_t>(c, a, b)
