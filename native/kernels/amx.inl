// bfloat16 products on AMX tiles. Weight rows are the A operand, straight from where they lie; the
// activations are packed as B, pairs of k side by side, 16 tokens to a tile.
//
// A token's sums are its own column of C and walk k upwards, so they do not depend on the others.

namespace headrace::amx {

inline constexpr int kTileTokens2 = 2 * kTile;  // two B tiles at once

// out[c][r] = in[r][c] for 16 x 16 words of 32 bits.
inline void transpose16(const __m512i (&in)[16], __m512i (&out)[16]) {
    __m512i t[16], u[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(in[i], in[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(in[i], in[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int j = 0; j < 4; ++j) {
        const __m512i a = _mm512_shuffle_i32x4(u[j], u[4 + j], 0x88);
        const __m512i b = _mm512_shuffle_i32x4(u[j], u[4 + j], 0xdd);
        const __m512i c = _mm512_shuffle_i32x4(u[8 + j], u[12 + j], 0x88);
        const __m512i d = _mm512_shuffle_i32x4(u[8 + j], u[12 + j], 0xdd);
        out[j] = _mm512_shuffle_i32x4(a, c, 0x88);
        out[4 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
        out[8 + j] = _mm512_shuffle_i32x4(a, c, 0xdd);
        out[12 + j] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
}

inline __m512i load_words(const void* p) {
    __m512i v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// Rounded to nearest even; what is no number stays so.
inline __m512i bf16_bits(__m512 x) {
    const __m512i u = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i nan = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    const __mmask16 is = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_and_si512(_mm512_mask_blend_epi32(is, up, nan),
                            _mm512_set1_epi32(static_cast<int>(0xffff0000)));
}

// 32 values from `from`, of which only `n` exist.
inline __m512i load_values(const std::byte* from, int n) {
    if (n >= kTileColumns) return load_words(from);
    std::uint16_t padded[kTileColumns] = {};
    std::memcpy(padded, from, static_cast<std::size_t>(n) * sizeof padded[0]);
    return load_words(padded);
}

inline int tile_steps(int columns) { return (columns + kTileColumns - 1) / kTileColumns; }

// B tiles of up to 16 tokens, one after the other in k.
inline void pack_tokens(const std::byte* const* x, int tokens, int columns, std::byte* to) {
    for (int s = 0; s < tile_steps(columns); ++s, to += 1024) {
        __m512i rows[16], packed[16];
        const int left = columns - s * kTileColumns;
        for (int t = 0; t < kTile; ++t)
            rows[t] = t < tokens ? load_values(x[t] + s * 64, left) : _mm512_setzero_si512();
        transpose16(rows, packed);
        std::memcpy(to, packed, sizeof packed);
    }
}

// Weight rows of one A tile: in place, or a padded copy where rows or columns are missing.
struct Rows16 {
    const std::byte* w;
    std::size_t stride;
    int rows, columns;
    alignas(64) std::byte padded[1024];

    const std::byte* tile(int s, std::size_t& tile_stride) {
        const int left = columns - s * kTileColumns;
        if (rows == kTile && left >= kTileColumns) {
            tile_stride = stride;
            return w + static_cast<std::size_t>(s) * 64;
        }
        for (int r = 0; r < kTile; ++r) {
            const std::byte* from = w + static_cast<std::size_t>(r) * stride + s * 64;
            const __m512i v = r < rows ? load_values(from, left) : _mm512_setzero_si512();
            std::memcpy(padded + r * 64, &v, sizeof v);
        }
        tile_stride = 64;
        return padded;
    }
};

// C [16 rows, 16 tokens] to out[t * out_stride + r].
inline void store_sums(const std::byte* sums, const Dot& d, int row, int token) {
    __m512i in[16], out[16];
    for (int r = 0; r < kTile; ++r) in[r] = load_words(sums + r * 64);
    transpose16(in, out);
    const auto rows = static_cast<std::size_t>(std::min(kTile, d.rows - row));
    for (int t = 0; t < kTile && token + t < d.tokens; ++t)
        std::memcpy(d.out + static_cast<std::size_t>(token + t) * d.out_stride +
                        static_cast<std::size_t>(row),
                    &out[t], rows * sizeof(float));
}

inline Rows16 rows_from(const Dot& d, int row) {
    return {d.w + static_cast<std::size_t>(row) * d.w_stride,
            d.w_stride,
            std::min(kTile, d.rows - row),
            d.columns,
            {}};
}

// 32 rows by 32 tokens: four C tiles, so that each load feeds two products.
inline void square(const Dot& d, int row, int token, const std::byte* packed) {
    const int steps = tile_steps(d.columns);
    const std::byte* second = packed + static_cast<std::size_t>(steps) * 1024;
    Rows16 low = rows_from(d, row), high = rows_from(d, row + kTile);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int s = 0; s < steps; ++s) {
        std::size_t low_stride = 0, high_stride = 0;
        const std::byte* a = low.tile(s, low_stride);
        const std::byte* b = high.tile(s, high_stride);
        memory_barrier();
        _tile_loadd(4, a, low_stride);
        _tile_loadd(5, b, high_stride);
        _tile_loadd(6, packed + s * 1024, 64);
        _tile_loadd(7, second + s * 1024, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    alignas(64) std::byte sums[4][1024];
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
    memory_barrier();
    store_sums(sums[0], d, row, token);
    store_sums(sums[1], d, row, token + kTile);
    store_sums(sums[2], d, row + kTile, token);
    store_sums(sums[3], d, row + kTile, token + kTile);
}

// 16 rows by up to 16 tokens.
inline void single(const Dot& d, int row, int token, const std::byte* packed) {
    Rows16 rows = rows_from(d, row);
    _tile_zero(0);
    for (int s = 0; s < tile_steps(d.columns); ++s) {
        std::size_t stride = 0;
        const std::byte* a = rows.tile(s, stride);
        memory_barrier();
        _tile_loadd(4, a, stride);
        _tile_loadd(6, packed + s * 1024, 64);
        _tile_dpbf16ps(0, 4, 6);
    }
    alignas(64) std::byte sums[1024];
    _tile_stored(0, sums, 64);
    memory_barrier();
    store_sums(sums, d, row, token);
}

// One token: B has one column, which is the activations as they are.
inline void one_token(const Dot& d) {
    TileConfig config;
    config.set(0, kTile, 4);
    config.set(1, kTile, 4);
    for (const int a : {4, 5}) config.set(a, kTile, 64);
    config.set(6, kTile, 4);
    load_config(config);
    const int steps = tile_steps(d.columns);
    alignas(64) std::byte tail[64];
    const __m512i last = load_values(d.x[0] + static_cast<std::size_t>(steps - 1) * 64,
                                     d.columns - (steps - 1) * kTileColumns);
    std::memcpy(tail, &last, sizeof tail);
    for (int row = 0; row < d.rows; row += 2 * kTile) {
        const bool two = row + kTile < d.rows;
        Rows16 low = rows_from(d, row), high = rows_from(d, two ? row + kTile : row);
        _tile_zero(0);
        _tile_zero(1);
        for (int s = 0; s < steps; ++s) {
            std::size_t low_stride = 0, high_stride = 0;
            const std::byte* a = low.tile(s, low_stride);
            const std::byte* b = high.tile(s, high_stride);
            memory_barrier();
            _tile_loadd(6, s + 1 < steps ? d.x[0] + static_cast<std::size_t>(s) * 64 : tail, 4);
            _tile_loadd(4, a, low_stride);
            _tile_dpbf16ps(0, 4, 6);
            if (!two) continue;
            _tile_loadd(5, b, high_stride);
            _tile_dpbf16ps(1, 5, 6);
        }
        float sums[2 * kTile];
        _tile_stored(0, sums, 4);
        _tile_stored(1, sums + kTile, 4);
        memory_barrier();
        std::memcpy(d.out + row, sums,
                    static_cast<std::size_t>(std::min(2 * kTile, d.rows - row)) * sizeof(float));
    }
    _tile_release();
}

inline void many_tokens(const Dot& d) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) config.set(tile, kTile, 64);
    load_config(config);
    const std::size_t group = static_cast<std::size_t>(tile_steps(d.columns)) * 1024;
    for (int token = 0; token < d.tokens; token += kTileTokens2) {
        const int tokens = std::min(kTileTokens2, d.tokens - token);
        pack_tokens(d.x + token, std::min(kTile, tokens), d.columns, d.scratch);
        if (tokens > kTile)
            pack_tokens(d.x + token + kTile, tokens - kTile, d.columns, d.scratch + group);
        memory_barrier();
        for (int row = 0; row < d.rows; row += 2 * kTile) {
            if (tokens > kTile && row + kTile < d.rows) {
                square(d, row, token, d.scratch);
                continue;
            }
            for (int r = row; r < d.rows && r < row + 2 * kTile; r += kTile) {
                single(d, r, token, d.scratch);
                if (tokens > kTile) single(d, r, token + kTile, d.scratch + group);
            }
        }
    }
    _tile_release();
}

inline void dot_run_tiles(const Dot& d) {
    if (d.tokens == 1) return one_token(d);
    if (d.tokens > 1) many_tokens(d);
}

inline std::size_t tiles_scratch_nbytes(int, int columns, int tokens) {
    if (tokens <= 1) return 0;
    return static_cast<std::size_t>(tile_steps(columns)) * 2048;
}

// Packing 32 tokens costs as much as some 64 rows of products; a quarter of L2 stays for them.
inline int tiles_tile_rows(int columns) {
    const int fit = (1 << 20) / (columns * 2) / 32 * 32;
    return std::clamp(fit, 64, 512);
}

inline DotKernel tiles_kernel() {
    return {kBf16Input, kTileTokens2, dot_run_tiles, tiles_scratch_nbytes, tiles_tile_rows};
}

}  // namespace headrace::amx
