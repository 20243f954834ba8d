// Elementwise gates around the mixers.
//
// Invariant: an element's bits depend on its own inputs only. Strides are in floats.
#pragma once

#include <cstdint>

#include "pool.hpp"

namespace headrace {

// y = x * sigmoid(gate); x and y are dense [tokens, heads, width].
struct Gate {
    const float* x;  // nullptr: ones; may be y
    const float* gate;
    std::int64_t tokens;
    std::int64_t heads;
    std::int64_t width;
    std::int64_t token_stride;  // of gate
    std::int64_t head_stride;
    float* y;
};

// y = rate * softplus(a + bias), dense [tokens, heads]: the log decay of gated DeltaNet. In
// float64, rounded once: its exponential multiplies the state at every token.
struct Decay {
    const float* a;
    std::int64_t tokens;
    std::int64_t heads;
    std::int64_t token_stride;
    const double* rate;
    const float* bias;
    float* y;
};

// x = min(max(x, -limit), limit) in place.
struct Clamp {
    float* x;
    std::int64_t tokens;
    std::int64_t width;
    std::int64_t token_stride;
    float limit;
};

// y = x * by, dense [tokens, width]; rows of x and of `by` may lie apart.
struct Multiply {
    const float* x;
    const float* by;
    std::int64_t tokens;
    std::int64_t width;
    std::int64_t x_stride;
    std::int64_t by_stride;
    float* y;
};

// x = x * factor, and where there is a cap: cap * tanh(x * factor / cap). In place, dense.
struct Scale {
    float* x;
    std::int64_t tokens;
    std::int64_t width;
    float factor;
    float cap;  // 0: none
};

// Each row of `width` in x times its own number, in place; a stride of 0 repeats a number.
struct ScaleRows {
    float* x;
    std::int64_t tokens;
    std::int64_t heads;
    std::int64_t width;
    std::int64_t token_stride;
    std::int64_t head_stride;
    const float* by;
    std::int64_t by_token_stride;
    std::int64_t by_head_stride;
};

// y = 1 + strength * log(1 + floor((position + ahead) / span)), in float64, rounded once.
struct Temperature {
    const std::int64_t* positions;
    std::int64_t tokens;
    std::int64_t span;
    double strength;
    float* y;
    std::int64_t ahead = 1;
};

// y = (x - mean) / sqrt(variance + eps) * weight + bias, by row, dense. Sums in float64.
struct LayerNorm {
    const float* x;
    std::int64_t rows;
    std::int64_t width;
    const float* weight;
    const float* bias;  // nullptr: zeros
    float eps;
    float* y;
};

// y[t, i] = x[t, order[i]]; y is dense [tokens, columns].
struct Arrange {
    const float* x;
    std::int64_t tokens;
    std::int64_t token_stride;  // of x, which has so many columns
    const std::int32_t* order;
    std::int64_t columns;
    float* y;
};

void gate(Pool& pool, const Gate& c);
void decay(Pool& pool, const Decay& c);
void clamp(Pool& pool, const Clamp& c);
void multiply(Pool& pool, const Multiply& c);
void arrange(Pool& pool, const Arrange& c);
void scale(Pool& pool, const Scale& c);
void scale_rows(Pool& pool, const ScaleRows& c);
void temperature(Pool& pool, const Temperature& c);
void layer_norm(Pool& pool, const LayerNorm& c);
// Throws std::invalid_argument for a column that x has not.
void check_order(const Arrange& c);

}  // namespace headrace
