// The rate at which a pool can only read memory: the limit that decode is measured against.
#pragma once

#include "pool.hpp"

namespace headrace {

// Bytes per second, the median of the passes that fit in `seconds` (at least three).
double measure_read_bandwidth(Pool& pool, std::size_t nbytes, double seconds);

}  // namespace headrace
