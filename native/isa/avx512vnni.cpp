#define HEADRACE_ISA avx512vnni
#define HEADRACE_SIMD_AVX512
#define HEADRACE_VNNI
#include "isa/packed.hpp"

namespace headrace::avx512vnni {
const KernelTable& table() {
    static const KernelTable t = with_formats(avx512::table(), "avx512");
    return t;
}
}  // namespace headrace::avx512vnni
