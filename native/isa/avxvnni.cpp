#define HEADRACE_ISA avxvnni
#define HEADRACE_SIMD_AVX2
#define HEADRACE_VNNI
#include "isa/packed.hpp"

namespace headrace::avxvnni {
const KernelTable& table() {
    static const KernelTable t = with_formats(avx2::table(), "avxvnni");
    return t;
}
}  // namespace headrace::avxvnni
