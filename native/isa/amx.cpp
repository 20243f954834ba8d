#define HEADRACE_ISA amx
#define HEADRACE_SIMD_AVX512
#include "isa/plain.hpp"

#include "isa/amx_tiles.hpp"
#include "kernels/amx.inl"

namespace headrace::amx {
const KernelTable& table() {
    static const KernelTable t = [] {
        KernelTable made = avx512vnni::table();
        made.name = "amx";
        made.fast[kBF16] = tiles_kernel();
        return made;
    }();
    return t;
}
}  // namespace headrace::amx
