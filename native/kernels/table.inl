// The table of an instruction set whose kernels all come from the generic sources.

namespace headrace::HEADRACE_ISA {

inline KernelTable generic_table(const char* name) {
    KernelTable t{};
    t.name = name;
    t.exact[kF32] = dot_kernel<Widened<FloatRows>>();
    t.exact[kBF16] = dot_kernel<Widened<Bf16Rows>>();
    t.exact[kF16] = dot_kernel<Widened<F16Rows>>();
    for (int f = 0; f < kFormats; ++f) t.fast[f] = t.exact[f];
    t.activate = activate;
    t.add_scaled = add_scaled;
    t.add = add;
    t.to_bf16 = to_bf16;
    t.gate = gate_heads;
    t.clamp = clamp_row;
    t.widen[kF32] = widen_row<FloatRows>;
    t.widen[kBF16] = widen_row<Bf16Rows>;
    t.widen[kF16] = widen_row<F16Rows>;
    t.top_of = top_of;
    t.read = read_all;
    t.mixers = mixer_table();
    return t;
}

}  // namespace headrace::HEADRACE_ISA
