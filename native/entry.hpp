// How a step begins and ends: rows of a table, angles of positions, the best of each row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pool.hpp"

namespace headrace {

// y[i] = table[ids[i]] as float32, dense [count, width].
struct Lookup {
    const std::byte* table;
    int format;
    std::int64_t rows;
    std::int64_t width;
    std::int64_t row_stride;  // bytes from one tile to the next
    const std::int64_t* ids;
    std::int64_t count;
    float* y;
};

// cos and sin of position * frequency, times `factor`, dense [tokens, pairs]. The angle is a
// float32, its cosine is computed in float64 and rounded once.
struct Angles {
    const std::int64_t* positions;
    std::int64_t tokens;
    const float* frequencies;
    std::int64_t pairs;
    float factor;
    float* cos;
    float* sin;
};

// ids[i] = the first of the largest of x[i, 0:width]; -1 where an element is not finite.
struct Best {
    const float* x;
    std::int64_t rows;
    std::int64_t width;
    std::int64_t* ids;
};

// As in mixers.hpp: each checks, splits the work over the pool where that pays, and returns when
// the result is written.
void lookup(Pool& pool, const Lookup& c);
void angles(Pool& pool, const Angles& c);
void best(Pool& pool, const Best& c);

}  // namespace headrace
