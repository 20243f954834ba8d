#define HEADRACE_ISA neonmm
#define HEADRACE_SIMD_NEON
#include "isa/packed.hpp"

namespace headrace::neonmm {
const KernelTable& table() {
    static const KernelTable t = with_formats(neon::table(), "neonmm");
    return t;
}
}  // namespace headrace::neonmm
