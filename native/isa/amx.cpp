#define HEADRACE_ISA amx
#define HEADRACE_SIMD_AVX512
#include "isa/generic.hpp"

namespace headrace::amx {
const KernelTable& table() {
    static const KernelTable t = generic_table("amx");
    return t;
}
}  // namespace headrace::amx
