// The formats of an instruction set, each with what it has best.

namespace headrace::HEADRACE_ISA {

template <class Rows>
inline void unpack_floats(const Tiles& t, int row, float* to) {
    const auto* x = reinterpret_cast<const typename Rows::Weight*>(t.tile(row));
    int k = 0;
    for (; k + F32::N <= t.columns; k += F32::N) Rows::load(x + k).store(to + k);
    const int rest = t.columns - k;
    if (rest > 0) Widened<Rows>::weight_partial(x + k, rest).store_partial(to + k, rest);
}

inline void put_plain_formats(KernelTable& t) {
    t.exact[kF32] = widened_kernel<FloatRows>();
    t.exact[kBF16] = widened_kernel<Bf16Rows>();
    t.exact[kF16] = widened_kernel<F16Rows>();
    t.unpack[kF32] = unpack_floats<FloatRows>;
    t.unpack[kBF16] = unpack_floats<Bf16Rows>;
    t.unpack[kF16] = unpack_floats<F16Rows>;
    put_unpacked<unpack_fp8_block>(t, kFP8Block);
    put_unpacked<unpack_fp8_row>(t, kFP8Row);
    put_unpacked<unpack_mxfp8>(t, kMXFP8);
    put_unpacked<unpack_mxfp4>(t, kMXFP4);
    put_unpacked<unpack_nvfp4>(t, kNVFP4);
    put_unpacked<unpack_int4<false>>(t, kInt4F16);
    put_unpacked<unpack_int4<true>>(t, kInt4BF16);
    put_unpacked<unpack_q4_0>(t, kQ4_0);
    put_unpacked<unpack_q5_0>(t, kQ5_0);
    put_unpacked<unpack_q4_1>(t, kQ4_1);
    put_unpacked<unpack_q5_1>(t, kQ5_1);
    put_unpacked<unpack_q8_0>(t, kQ8_0);
    put_unpacked<unpack_q2_k>(t, kQ2_K);
    put_unpacked<unpack_q3_k>(t, kQ3_K);
    put_unpacked<unpack_q4_k>(t, kQ4_K);
    put_unpacked<unpack_q5_k>(t, kQ5_K);
    put_unpacked<unpack_q6_k>(t, kQ6_K);
    put_unpacked<unpack_iq4_nl>(t, kIQ4_NL);
    put_unpacked<unpack_iq4_xs>(t, kIQ4_XS);
    put_unpacked<unpack_ggml_mxfp4>(t, kGgmlMXFP4);
#if defined(HEADRACE_PACKED)
    put_codes(t);
#endif
}

// All formats: plain decoders and products, and better ones where there are some.
inline void put_formats(KernelTable& t) {
    put_plain_formats(t);
    for (int f = 0; f < kFormats; ++f) t.fast[f] = t.exact[f];
#if defined(HEADRACE_PACKED)
    put_fixed_inputs(t);
    put_panel_kernels(t);
    put_ggml_kernels(t);
    put_e4m3_kernels(t);
#endif
    put_ordered_kernels(t);
}

// A table whose formats are of this set and all else of another.
inline KernelTable with_formats(const KernelTable& other, const char* name) {
    KernelTable t = other;
    t.name = name;
    put_formats(t);
    return t;
}

}  // namespace headrace::HEADRACE_ISA
