// Everything that a file of isa/ compiles under its own flags, after naming its set.
#pragma once

#include "gates.hpp"
#include "isa/packed.hpp"
#include "mixers.hpp"

#include "kernels/elementwise.inl"
#include "kernels/gates.inl"
#include "kernels/mixers.inl"

#include "kernels/table.inl"
