// y = x W^T + bias, with W in place and in one or more parts, each of a format of its own; and the
// same head by head, where each part meets inputs of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "pool.hpp"

namespace headrace {

struct Matrix {
    // Rows that lie together: `stride` bytes from one tile of them to the next.
    struct Part {
        const std::byte* data;
        int rows;
        int first_row;  // of y
        std::size_t stride;
        int format;
    };
    struct Given {
        std::uintptr_t address;
        std::int64_t rows, stride_bytes;
        int format;
    };
    // Throws std::invalid_argument for sizes that cannot be.
    Matrix(const std::vector<Given>& parts, std::int64_t columns);

    std::vector<Part> parts;
    int rows = 0;
    int columns = 0;
    std::size_t nbytes = 0;
};

// Part h of a matrix meets x[t, h], whose rows lie `head_stride` apart, and gives y[t, h], dense
// [tokens, parts, N + keep]; the `keep` floats behind x[t, h] follow there as they are. `across`:
// y = x W, N being W's columns; else y = x W^T, N being its rows.
struct PerHead {
    const float* x;
    int tokens;
    std::int64_t token_stride, head_stride;  // in floats
    float* y;
    int keep;
    bool across;
    bool exact;
};

// std::invalid_argument where the parts differ in their rows.
void per_head(Pool& pool, const PerHead& c, const Matrix& w);

void linear(Pool& pool, const float* x, int tokens, const Matrix& w, const float* bias, float* y,
            bool exact);

}  // namespace headrace
