#define HEADRACE_ISA avx2
#define HEADRACE_SIMD_AVX2
#include "isa/generic.hpp"

namespace headrace::avx2 {
const KernelTable& table() {
    static const KernelTable t = generic_table("avx2");
    return t;
}
}  // namespace headrace::avx2
