// Cutting a call's work into pieces for the pool, where it is worth a barrier.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "pool.hpp"

namespace headrace {

// About 10 us of one core's vector work, in elements touched: less than that is not worth waking
// anyone, and a piece should not be smaller.
inline constexpr std::int64_t kPieceWork = 32 * 1024;
inline constexpr std::int64_t kPiecesPerThread = 4;

inline void require(bool ok, const std::string& found, const char* expected) {
    if (!ok) throw std::invalid_argument("found " + found + "; expected " + expected);
}

inline std::string number(std::int64_t n) { return std::to_string(n); }

inline std::int64_t piece_count(const Pool& pool, std::int64_t units, std::int64_t work_per_unit) {
    const std::int64_t worth = units * work_per_unit / kPieceWork;
    return std::max<std::int64_t>(1, std::min({units, worth, pool.threads() * kPiecesPerThread}));
}

// Calls fn(first, last, worker) over [0, units) cut evenly; at once where one piece is enough.
template <class F>
void split(Pool& pool, std::int64_t units, std::int64_t work_per_unit, F&& fn) {
    if (units <= 0) return;
    const std::int64_t pieces = piece_count(pool, units, work_per_unit);
    if (pieces == 1) return fn(std::int64_t{0}, units, 0);
    pool.parallel(static_cast<std::size_t>(pieces), [&](std::size_t piece, int worker) {
        const auto p = static_cast<std::int64_t>(piece);
        fn(units * p / pieces, units * (p + 1) / pieces, worker);
    });
}

}  // namespace headrace
