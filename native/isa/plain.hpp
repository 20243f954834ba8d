// The products of plain floats: what a file of isa/ compiles whose instructions are for one format.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>
#include <utility>

#include "simd.hpp"
#include "table.hpp"

// The kernels need what is above, and each those before it.
#include "kernels/dot.inl"

#include "kernels/blocks.inl"
