// y = x W^T + bias, with W in place and in one or more parts, each of a format of its own.
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

void linear(Pool& pool, const float* x, int tokens, const Matrix& w, const float* bias, float* y,
            bool exact);

}  // namespace headrace
