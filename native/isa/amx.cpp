#define HEADRACE_ISA amx
#define HEADRACE_SIMD_AVX512
#define HEADRACE_VNNI
#define HEADRACE_TILES
#include "isa/packed.hpp"

namespace headrace::amx {
const KernelTable& table() {
    static const KernelTable t = [] {
        KernelTable made = with_formats(avx512::table(), "amx");
        made.fast[kBF16] = tiles_kernel();
        put_wide_kernels(made);
        return made;
    }();
    return t;
}
}  // namespace headrace::amx
