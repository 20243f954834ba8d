// The two small products inside attention, C = A B and C += A B, and the loading of key tiles.
//
// Invariant: element (r, j) sums over the depth in ascending order, whatever rows and columns are
// computed together.

namespace headrace::HEADRACE_ISA {

// C is R rows of V vectors; A has R rows of `depth` floats, B has `depth` rows.
template <int R, int V, bool kAdd>
inline void panel_block(const float* a, std::int64_t a_stride, const float* b,
                        std::int64_t b_stride, int depth, float* c, std::int64_t c_stride) {
    F32 sums[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int u = 0; u < V; ++u)
            sums[r][u] = kAdd ? F32::load(c + r * c_stride + u * F32::N) : F32::zero();
    for (int i = 0; i < depth; ++i) {
        F32 row[V];
#pragma GCC unroll 8
        for (int u = 0; u < V; ++u) row[u] = F32::load(b + i * b_stride + u * F32::N);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const F32 s = F32::set1(a[r * a_stride + i]);
#pragma GCC unroll 8
            for (int u = 0; u < V; ++u) sums[r][u] = fma(s, row[u], sums[r][u]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int u = 0; u < V; ++u) sums[r][u].store(c + r * c_stride + u * F32::N);
}

struct Panel {
    const float* a;
    std::int64_t a_stride;
    const float* b;
    std::int64_t b_stride;
    int depth;
    float* c;
    std::int64_t c_stride;
};

// R rows, all of `vectors`; V at a time, then what is left.
template <int R, int V, bool kAdd>
inline void panel_rows(const Panel& p, int row, int& u, int vectors) {
    for (; u + V <= vectors; u += V)
        panel_block<R, V, kAdd>(p.a + row * p.a_stride, p.a_stride, p.b + u * F32::N, p.b_stride,
                                p.depth, p.c + row * p.c_stride + u * F32::N, p.c_stride);
    if constexpr (V > 1) panel_rows<R, V / 2, kAdd>(p, row, u, vectors);
}

template <int R, int V, bool kAdd>
inline void panel_strip(const Panel& p, int row, int from, int to) {
    int u = from;
    panel_rows<R, V, kAdd>(p, row, u, to);
}

// C[rows, vectors * N]: with many rows two vectors of B stay in L1 for all of them; with few, more
// columns at once give enough independent sums.
template <bool kAdd>
inline void panel_product(const Panel& p, int rows, int vectors) {
    if (rows == 1) return panel_strip<1, 8, kAdd>(p, 0, 0, vectors);
    if (rows == 2) return panel_strip<2, 4, kAdd>(p, 0, 0, vectors);
    for (int u = 0; u < vectors; u += 2) {
        const int to = u + 2 < vectors ? u + 2 : vectors;
        int row = 0;
        for (; row + 6 <= rows; row += 6) panel_strip<6, 2, kAdd>(p, row, u, to);
        switch (rows - row) {
            case 5:
                panel_strip<5, 2, kAdd>(p, row, u, to);
                break;
            case 4:
                panel_strip<4, 2, kAdd>(p, row, u, to);
                break;
            case 3:
                panel_strip<3, 2, kAdd>(p, row, u, to);
                break;
            case 2:
                panel_strip<2, 2, kAdd>(p, row, u, to);
                break;
            case 1:
                panel_strip<1, 2, kAdd>(p, row, u, to);
                break;
            default:
                break;
        }
    }
}

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

}  // namespace headrace::HEADRACE_ISA
