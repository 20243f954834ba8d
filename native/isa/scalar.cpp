#define HEADRACE_ISA scalar
#define HEADRACE_SIMD_SCALAR
#include "isa/generic.hpp"

namespace headrace::scalar {
const KernelTable& table() {
    static const KernelTable t = generic_table("scalar");
    return t;
}
}  // namespace headrace::scalar
