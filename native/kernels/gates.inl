// Gates, rows of a table, and the largest of a row, over F32.

namespace headrace::HEADRACE_ISA {

// Heads [first, last) of all tokens.
inline void gate_heads(const Gate& c, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
        const float* g = c.gate + i / c.heads * c.token_stride + i % c.heads * c.head_stride;
        const float* x = c.x == nullptr ? nullptr : c.x + i * c.width;
        float* y = c.y + i * c.width;
        each_vector(static_cast<std::size_t>(c.width), [&](std::size_t at, int lanes) {
            const F32 open = sigmoid(load_some(g + at, lanes));
            store_some(x == nullptr ? open : load_some(x + at, lanes) * open, y + at, lanes);
        });
    }
}

inline void clamp_row(float* x, float limit, std::size_t n) {
    each_vector(n, [&](std::size_t i, int lanes) {
        const F32 v = max(F32::set1(-limit), min(F32::set1(limit), load_some(x + i, lanes)));
        store_some(v, x + i, lanes);
    });
}

inline void scale_row(float* x, float factor, float cap, std::size_t n) {
    if (cap == 0.0f) {
        each_vector(n, [&](std::size_t i, int lanes) {
            store_some(load_some(x + i, lanes) * F32::set1(factor), x + i, lanes);
        });
        return;
    }
    each_vector(n, [&](std::size_t i, int lanes) {
        const F32 v = load_some(x + i, lanes) * F32::set1(factor);
        store_some(F32::set1(cap) * tanh(v / F32::set1(cap)), x + i, lanes);
    });
}

inline Top top_of(const float* x, std::int64_t n) {
    F32 tops[4], odd[4];
    for (int u = 0; u < 4; ++u) {
        tops[u] = F32::set1(x[0]);
        odd[u] = F32::zero();
    }
    std::int64_t i = 0;
    for (; i + 4 * F32::N <= n; i += 4 * F32::N)
        for (int u = 0; u < 4; ++u) {
            const F32 v = F32::load(x + i + u * F32::N);
            tops[u] = max(tops[u], v);
            odd[u] = odd[u] + (v - v);  // stays zero while everything is finite
        }
    float top = max(max(tops[0], tops[1]), max(tops[2], tops[3])).reduce_max();
    float all = ((odd[0] + odd[1]) + (odd[2] + odd[3])).reduce_add();
    for (std::int64_t j = i; j < n; ++j) {
        top = x[j] > top ? x[j] : top;
        all += x[j] - x[j];
    }
    return {top, all == 0.0f};
}

}  // namespace headrace::HEADRACE_ISA
