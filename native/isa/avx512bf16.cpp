#define HEADRACE_ISA avx512bf16
#define HEADRACE_SIMD_AVX512
#include "isa/plain.hpp"

#include "kernels/bf16dot.inl"
#include "kernels/e4m3_bf16.inl"

// Over it.
#include "kernels/e4m3_vbmi.inl"

namespace headrace::avx512bf16 {
const KernelTable& table() {
    static const KernelTable t = [] {
        KernelTable made = avx512vnni::table();
        made.fast[kBF16] = bf16_dot_kernel();
        put_e4m3_vbmi(made);
        return made;
    }();
    return t;
}
}  // namespace headrace::avx512bf16
