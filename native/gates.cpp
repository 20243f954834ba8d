#include "gates.hpp"

#include <algorithm>
#include <cmath>

#include "split.hpp"

namespace headrace {
namespace {

// A softplus in double takes about as long as so many vector elements.
constexpr std::int64_t kSoftplusWork = 64;

// The same sums whatever set of instructions the compiler has: eight, each in order.
template <class Term>
double sum_of(std::int64_t n, Term&& term) {
    double sums[8] = {};
    std::int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (std::int64_t u = 0; u < 8; ++u) sums[u] += term(i + u);
    for (; i < n; ++i) sums[0] += term(i);
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
           ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

double softplus(double x) { return x > 40.0 ? x : std::log1p(std::exp(x)); }

}  // namespace

void gate(Pool& pool, const Gate& c) {
    require(c.width > 0 && c.heads > 0, number(c.heads) + " heads of " + number(c.width),
            "at least 1 of 1 element");
    const Pool::Busy busy(pool);
    const auto kernel = pool.kernels().gate;
    split(pool, c.tokens * c.heads, 3 * c.width,
          [&](std::int64_t first, std::int64_t last, int) { kernel(c, first, last); });
}

void decay(Pool& pool, const Decay& c) {
    const Pool::Busy busy(pool);
    split(pool, c.tokens, c.heads * kSoftplusWork, [&](std::int64_t first, std::int64_t last, int) {
        for (std::int64_t t = first; t < last; ++t)
            for (std::int64_t h = 0; h < c.heads; ++h) {
                const float x = c.a[t * c.token_stride + h] + c.bias[h];
                c.y[t * c.heads + h] =
                    static_cast<float>(c.rate[h] * softplus(static_cast<double>(x)));
            }
    });
}

void clamp(Pool& pool, const Clamp& c) {
    require(c.width > 0, "a row of " + number(c.width), "at least 1 element");
    const Pool::Busy busy(pool);
    const auto kernel = pool.kernels().clamp;
    split(pool, c.tokens, c.width, [&](std::int64_t first, std::int64_t last, int) {
        for (std::int64_t t = first; t < last; ++t)
            kernel(c.x + t * c.token_stride, c.limit, static_cast<std::size_t>(c.width));
    });
}

void multiply(Pool& pool, const Multiply& c) {
    require(c.width > 0, "a row of " + number(c.width), "at least 1 element");
    const Pool::Busy busy(pool);
    const auto kernel = pool.kernels().multiply;
    split(pool, c.tokens, c.width, [&](std::int64_t first, std::int64_t last, int) {
        for (std::int64_t t = first; t < last; ++t)
            kernel(c.x + t * c.x_stride, c.by + t * c.by_stride, c.y + t * c.width,
                   static_cast<std::size_t>(c.width));
    });
}

void check_order(const Arrange& c) {
    require(std::all_of(c.order, c.order + c.columns,
                        [&](std::int32_t i) { return i >= 0 && i < c.token_stride; }),
            "an order of other columns than " + number(c.token_stride), "columns that there are");
}

void arrange(Pool& pool, const Arrange& c) {
    const Pool::Busy busy(pool);
    split(pool, c.tokens, c.columns, [&](std::int64_t first, std::int64_t last, int) {
        for (std::int64_t t = first; t < last; ++t)
            for (std::int64_t i = 0; i < c.columns; ++i)
                c.y[t * c.columns + i] = c.x[t * c.token_stride + c.order[i]];
    });
}

void scale(Pool& pool, const Scale& c) {
    require(c.width > 0 && c.cap >= 0.0f, "rows of " + number(c.width),
            "at least 1 element, and a cap of at least 0");
    const Pool::Busy busy(pool);
    const auto kernel = pool.kernels().scale;
    split(pool, c.tokens, (c.cap > 0.0f ? 8 : 1) * c.width,
          [&](std::int64_t first, std::int64_t last, int) {
              kernel(c.x + first * c.width, c.factor, c.cap,
                     static_cast<std::size_t>((last - first) * c.width));
          });
}

void scale_rows(Pool& pool, const ScaleRows& c) {
    require(c.width > 0 && c.heads > 0, number(c.heads) + " heads of " + number(c.width),
            "at least 1 of 1 element");
    const Pool::Busy busy(pool);
    split(pool, c.tokens, c.heads * c.width, [&](std::int64_t first, std::int64_t last, int) {
        for (std::int64_t t = first; t < last; ++t)
            for (std::int64_t h = 0; h < c.heads; ++h) {
                const float by = c.by[t * c.by_token_stride + h * c.by_head_stride];
                float* x = c.x + t * c.token_stride + h * c.head_stride;
                for (std::int64_t i = 0; i < c.width; ++i) x[i] *= by;
            }
    });
}

void temperature(Pool& pool, const Temperature& c) {
    require(c.span > 0, "a span of " + number(c.span), "at least 1 position");
    const Pool::Busy busy(pool);
    for (std::int64_t t = 0; t < c.tokens; ++t) {
        const auto spans = static_cast<double>((c.positions[t] + c.ahead) / c.span);
        c.y[t] = static_cast<float>(1.0 + c.strength * std::log1p(spans));
    }
}

void layer_norm(Pool& pool, const LayerNorm& c) {
    require(c.width > 0, "rows of " + number(c.width), "at least 1 element");
    const Pool::Busy busy(pool);
    split(pool, c.rows, 8 * c.width, [&](std::int64_t first, std::int64_t last, int) {
        const auto n = static_cast<double>(c.width);
        for (std::int64_t r = first; r < last; ++r) {
            const float* x = c.x + r * c.width;
            float* y = c.y + r * c.width;
            const double mean = sum_of(c.width, [x](std::int64_t i) { return double{x[i]}; }) / n;
            const double square = sum_of(c.width, [x, mean](std::int64_t i) {
                const double from = x[i] - mean;
                return from * from;
            });
            const double by = 1.0 / std::sqrt(square / n + static_cast<double>(c.eps));
            for (std::int64_t i = 0; i < c.width; ++i) {
                const auto normed = static_cast<float>((x[i] - mean) * by);
                y[i] = normed * c.weight[i] + (c.bias == nullptr ? 0.0f : c.bias[i]);
            }
        }
    });
}

}  // namespace headrace
