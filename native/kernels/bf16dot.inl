// bfloat16 weights times bfloat16 activations, 32 products an instruction (AVX-512 BF16).

namespace headrace::HEADRACE_ISA {

struct Bf16Dot {
    using Weight = std::uint16_t;
    using Activation = std::uint16_t;
    using W = __m512bh;
    using X = __m512bh;
    static constexpr int kStep = 32;
    static constexpr bool kConvert = false;

    static __m512bh load(const std::uint16_t* p) {
        __m512bh v;
        std::memcpy(&v, p, sizeof v);
        return v;
    }
    static __m512bh load_partial(const std::uint16_t* p, int n) {
        std::uint16_t padded[kStep] = {};
        std::memcpy(padded, p, static_cast<std::size_t>(n) * sizeof *p);
        return load(padded);
    }
    static W weight(const std::uint16_t* p) { return load(p); }
    static W weight_partial(const std::uint16_t* p, int n) { return load_partial(p, n); }
    static X activation(const std::uint16_t* p) { return load(p); }
    static X activation_partial(const std::uint16_t* p, int n) { return load_partial(p, n); }
    static F32 mac(F32 sum, W w, X x) { return {_mm512_dpbf16_ps(sum.v, w, x)}; }
};

inline DotKernel bf16_dot_kernel() {
    DotKernel kernel = dot_kernel<Bf16Dot>();
    kernel.input = kBf16Input;
    return kernel;
}

}  // namespace headrace::HEADRACE_ISA
