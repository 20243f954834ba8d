// Key tiles of paged KV: where they lie, and their widening to float32 with one key per column.

namespace headrace::HEADRACE_ISA {

inline F32 load_kv(const float* p) { return F32::load(p); }
inline F32 load_kv(const std::uint16_t* p) { return F32::from_bf16(p); }
inline float one_kv(float x) { return x; }
inline float one_kv(std::uint16_t x) { return float_from_bf16(x); }

#if defined(HEADRACE_SIMD_AVX2) || defined(HEADRACE_SIMD_AVX512)
inline constexpr int kTurned = 8;

inline __m256 load_eight(const float* p) { return _mm256_loadu_ps(p); }
inline __m256 load_eight(const std::uint16_t* p) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

// to[i * stride + r] = rows[r][i] for 8 rows and 8 columns.
template <class T>
inline void turn_block(const T* const* rows, std::int64_t at, float* to, std::int64_t stride) {
    __m256 a[8], b[8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) a[r] = load_eight(rows[r] + at);
#pragma GCC unroll 4
    for (int r = 0; r < 8; r += 2) {
        b[r] = _mm256_unpacklo_ps(a[r], a[r + 1]);
        b[r + 1] = _mm256_unpackhi_ps(a[r], a[r + 1]);
    }
#pragma GCC unroll 2
    for (int h = 0; h < 8; h += 4) {
        a[h] = _mm256_shuffle_ps(b[h], b[h + 2], 0x44);
        a[h + 1] = _mm256_shuffle_ps(b[h], b[h + 2], 0xee);
        a[h + 2] = _mm256_shuffle_ps(b[h + 1], b[h + 3], 0x44);
        a[h + 3] = _mm256_shuffle_ps(b[h + 1], b[h + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(to + i * stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}
#else
inline constexpr int kTurned = 4;

template <class T>
inline void turn_block(const T* const* rows, std::int64_t at, float* to, std::int64_t stride) {
    float lanes[4][F32::N];
    for (int r = 0; r < 4; ++r) load_kv(rows[r] + at).store(lanes[r]);
    for (int i = 0; i < 4; ++i)
        for (int r = 0; r < 4; ++r) to[i * stride + r] = lanes[r][i];
}
#endif

// to[d, j] = rows[j][d]: a tile of keys with one key per column.
template <class T>
inline void turn_keys(const T* const* rows, int keys, int dim, float* to, std::int64_t stride) {
    for (int j = 0; j < keys; j += kTurned) {
        int d = 0;
        for (; d + kTurned <= dim; d += kTurned)
            turn_block(rows + j, d, to + d * stride + j, stride);
        for (; d < dim; ++d)
            for (int r = 0; r < kTurned; ++r) to[d * stride + j + r] = one_kv(rows[j + r][d]);
    }
}

// to[j, d] = rows[j][d], zeros up to `padded`.
template <class T>
inline void widen_values(const T* const* rows, int keys, int dim, float* to, int padded) {
    for (int j = 0; j < keys; ++j) {
        float* row = to + static_cast<std::int64_t>(j) * padded;
        int d = 0;
        for (; d + F32::N <= dim; d += F32::N) load_kv(rows[j] + d).store(row + d);
        for (; d < dim; ++d) row[d] = one_kv(rows[j][d]);
        for (; d < padded; ++d) row[d] = 0.0f;
    }
}

// One worker's memory for a piece. Rows are (KV head, token, head of the group).
struct AttentionScratch {
    float* q;       // [rows, head_dim], scaled
    float* keys;    // [head_dim, kTile]
    float* values;  // [kTile, padded]
    float* scores;  // [rows, kTile]
    float* span;    // [rows, entry]: value sum (padded), then the maximum and the sum of weights
    float* total;   // [rows, entry]
    float* zeros;   // a row for keys that no query of the piece sees
    const void** key_rows;
    const void** value_rows;
};

inline int padded_values(const Attention& c) {
    return (c.value_dim + F32::N - 1) / F32::N * F32::N;
}

inline std::int64_t attention_entry(const Attention& c) { return padded_values(c) + F32::N; }

inline AttentionScratch attention_scratch(const Attention& c, int rows, std::byte* at,
                                          std::size_t* nbytes) {
    std::size_t used = 0;
    const auto take = [&](std::int64_t floats) {
        std::byte* start = at == nullptr ? nullptr : at + used;
        used += (static_cast<std::size_t>(floats) * sizeof(float) + 63) / 64 * 64;
        return reinterpret_cast<float*>(start);
    };
    const std::int64_t many = rows;
    const int wide = c.head_dim > c.value_dim ? c.head_dim : c.value_dim;
    AttentionScratch s{};
    s.q = take(many * c.head_dim);
    s.keys = take(static_cast<std::int64_t>(c.head_dim) * Attention::kTile);
    s.values = take(static_cast<std::int64_t>(Attention::kTile) * padded_values(c));
    s.scores = take(many * Attention::kTile);
    s.span = take(many * attention_entry(c));
    s.total = take(many * attention_entry(c));
    s.zeros = take(wide);
    s.key_rows = reinterpret_cast<const void**>(take(2 * Attention::kTile));
    s.value_rows = reinterpret_cast<const void**>(take(2 * Attention::kTile));
    *nbytes = used;
    return s;
}

inline std::size_t attention_scratch_nbytes(const Attention& c, int rows) {
    std::size_t nbytes = 0;
    attention_scratch(c, rows, nullptr, &nbytes);
    return nbytes;
}

// The row of a key in K and V, counted in heads.
inline std::int64_t kv_row(const Attention& c, int sequence, int head, std::int64_t key) {
    const std::int32_t* blocks = c.blocks + sequence * c.max_blocks;
    const std::int64_t slot = blocks[key / c.block_size] * c.block_size + key % c.block_size;
    return slot * c.stored_heads() + head / c.shared;
}

inline void touch(const std::byte* from, std::int64_t nbytes) {
    for (std::int64_t i = 0; i < nbytes; i += 64)
        static_cast<void>(*static_cast<const volatile std::byte*>(from + i));
}

// Asks for the keys [first, last) of all heads of a piece ahead of their use, in the order in
// which they lie: a row of one head alone is too short to be seen as a stream.
inline void fetch_keys(const Attention& c, const AttentionPiece& p, std::int64_t first,
                       std::int64_t last) {
    const auto size = static_cast<std::int64_t>(format_nbytes(c.format));
    const int heads = (p.last_head - 1) / c.shared - p.first_head / c.shared + 1;
    for (std::int64_t key = first; key < last; ++key) {
        const std::int64_t row = kv_row(c, p.sequence, p.first_head, key);
        touch(c.k + row * c.head_dim * size, heads * c.head_dim * size);
        if (c.v != c.k)  // else they are parts of the keys
            touch(c.v + row * c.value_row() * size, heads * c.value_row() * size);
    }
}

// Columns of a tile that are worth computing where [0, high) are seen: whole vectors, whole blocks.
inline int used_columns(int high) {
    constexpr int kUnit = F32::N > kTurned ? F32::N : kTurned;
    static_assert(Attention::kTile % kUnit == 0 && kUnit % F32::N == 0);
    return (high + kUnit - 1) / kUnit * kUnit;
}

// Keys [low, high) of the tile that starts at `base`, turned and widened; zeros elsewhere in the
// used columns.
template <class T>
inline void load_tile(const Attention& c, int sequence, int head, std::int64_t base, int low,
                      int high, const AttentionScratch& s) {
    auto** key_rows = reinterpret_cast<const T**>(s.key_rows);
    auto** value_rows = reinterpret_cast<const T**>(s.value_rows);
    const int columns = used_columns(high);
    for (int j = 0; j < columns; ++j) {
        key_rows[j] = value_rows[j] = reinterpret_cast<const T*>(s.zeros);
        if (j < low || j >= high) continue;
        const std::int64_t row = kv_row(c, sequence, head, base + j);
        key_rows[j] = reinterpret_cast<const T*>(c.k) + row * c.head_dim;
        value_rows[j] = reinterpret_cast<const T*>(c.v) + row * c.value_row();
    }
    turn_keys(key_rows, columns, c.head_dim, s.keys, Attention::kTile);
    widen_values(value_rows, columns, c.value_dim, s.values, padded_values(c));
}

}  // namespace headrace::HEADRACE_ISA
