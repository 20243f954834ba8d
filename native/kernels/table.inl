// The table of an instruction set whose kernels all come from the generic sources.

namespace headrace::HEADRACE_ISA {

inline KernelTable generic_table(const char* name) {
    KernelTable t{};
    t.name = name;
    put_formats(t);
    t.activate = activate;
    t.add_scaled = add_scaled;
    t.add = add;
    t.multiply = multiply;
    t.put[kFloatInput] = put_floats;
    t.put[kBf16Input] = put_bf16;
    t.gate = gate_heads;
    t.clamp = clamp_row;
    t.scale = scale_row;
    t.top_of = top_of;
    t.read = read_all;
    t.mixers = mixer_table();
    return t;
}

}  // namespace headrace::HEADRACE_ISA
