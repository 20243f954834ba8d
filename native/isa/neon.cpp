#define HEADRACE_ISA neon
#define HEADRACE_SIMD_NEON
#include "isa/generic.hpp"

namespace headrace::neon {
const KernelTable& table() {
    static const KernelTable t = generic_table("neon");
    return t;
}
}  // namespace headrace::neon
