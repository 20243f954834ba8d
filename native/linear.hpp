// y = x W^T + bias, with W in place and in one or more parts.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "pool.hpp"

namespace headrace {

struct Matrix {
    struct Part {
        const std::byte* data;
        int rows;
        int first_row;  // of y
    };
    // Throws std::invalid_argument for sizes that cannot be.
    Matrix(const std::vector<std::pair<std::uintptr_t, std::int64_t>>& parts, std::int64_t columns,
           std::int64_t row_stride_bytes, int format);

    std::vector<Part> parts;
    int rows = 0;
    int columns = 0;
    std::size_t row_stride = 0;
    int format = kF32;
    std::size_t nbytes = 0;
};

void linear(Pool& pool, const float* x, int tokens, const Matrix& w, const float* bias, float* y,
            bool exact);

}  // namespace headrace
