// The two small products inside attention: C = A B and C += A B.
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
        // Seven and eight rows are two blocks of about four: one or two alone wait for their sums.
        for (; rows - row > 8 || rows - row == 6; row += 6) panel_strip<6, 2, kAdd>(p, row, u, to);
        if (rows - row > 6) {
            panel_strip<4, 2, kAdd>(p, row, u, to);
            row += 4;
        }
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

}  // namespace headrace::HEADRACE_ISA
