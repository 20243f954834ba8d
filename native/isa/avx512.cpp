#define HEADRACE_ISA avx512
#define HEADRACE_SIMD_AVX512
#include "isa/generic.hpp"

namespace headrace::avx512 {
const KernelTable& table() {
    static const KernelTable t = generic_table("avx512");
    return t;
}
}  // namespace headrace::avx512
