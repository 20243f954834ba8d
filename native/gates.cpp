#include "gates.hpp"

#include <algorithm>
#include <cmath>

#include "split.hpp"

namespace headrace {
namespace {

// A softplus in double takes about as long as so many vector elements.
constexpr std::int64_t kSoftplusWork = 64;

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

}  // namespace headrace
