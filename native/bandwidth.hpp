// The rate at which a pool can only read memory: the limit that decode is measured against.
#pragma once

#include "pool.hpp"

namespace headrace {

// Bytes per second, the median of the passes that fit in `seconds` (at least three).
double measure_read_bandwidth(Pool& pool, std::size_t nbytes, double seconds);

// Bytes per second of weights in `format` that all workers multiply with one token's activations
// when each has its own rows of `columns` in its second-level cache: the median of passes.
double measure_product_rate(Pool& pool, int format, int columns, double seconds);

}  // namespace headrace
