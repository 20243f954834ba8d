// The activations of one call, where a descheduled worker may still read them: in its Arena.
#pragma once

#include <cstring>

#include "pool.hpp"

namespace headrace {

// A pointer to each token's row of `columns` values, float32 or bfloat16 as the kernel wants them.
inline const std::byte* const* activation_rows(Pool& pool, Arena& arena, const DotKernel& kernel,
                                               const float* x, int tokens, int columns) {
    const auto n = static_cast<std::size_t>(tokens);
    const auto width = static_cast<std::size_t>(columns);
    auto** rows = arena.take<const std::byte*>(n);
    if (!kernel.bf16) {
        if (pool.rescues(tokens)) {
            auto* copy = arena.take<float>(n * width);
            std::memcpy(copy, x, n * width * sizeof(float));
            x = copy;
        }
        for (std::size_t t = 0; t < n; ++t)
            rows[t] = reinterpret_cast<const std::byte*>(x + t * width);
        return rows;
    }
    auto* rounded = arena.take<std::uint16_t>(n * width);
    for (std::size_t t = 0; t < n; ++t)
        rows[t] = reinterpret_cast<const std::byte*>(rounded + t * width);
    // A few tokens make one piece, which runs on the submitter: decode has no barrier here.
    constexpr std::size_t kPieceTokens = 8;
    pool.parallel((n + kPieceTokens - 1) / kPieceTokens, [&](std::size_t piece, int) {
        const std::size_t first = piece * kPieceTokens;
        const std::size_t count = n - first < kPieceTokens ? n - first : kPieceTokens;
        pool.kernels().to_bf16(rounded + first * width, x + first * width, count * width);
    });
    return rows;
}

}  // namespace headrace
