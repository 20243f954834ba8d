#define HEADRACE_ISA neondot
#define HEADRACE_SIMD_NEON
#include "isa/packed.hpp"

namespace headrace::neondot {
const KernelTable& table() {
    static const KernelTable t = with_formats(neon::table(), "neondot");
    return t;
}
}  // namespace headrace::neondot
