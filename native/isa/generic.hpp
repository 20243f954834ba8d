// Everything that a file of isa/ compiles under its own flags. Each
// of those files includes it once, after naming its set.
#pragma once

#include <algorithm>
#include <type_traits>

#include "simd.hpp"
#include "table.hpp"

#include "kernels/dot.inl"
#include "kernels/elementwise.inl"

#include "mixers.hpp"
#include "kernels/mixers.inl"

#include "kernels/table.inl"
