// ggml's types of 2, 3 and 5 bits and IQ4_XS for `fixed_rows`.
//
// Activations lie as for the K types (kEvensInput); where 16 columns have a minimum of their own,
// sums of 16 come along (kSixteensInput).

namespace headrace::HEADRACE_ISA {

// As `put_fixed`, and of each 16 columns the sum of q times the scale.
inline void put_sixteens(std::byte* row, int columns, int first, const float* x, int n) {
    put_fixed<kEvensInput>(row, columns, first, x, n);
    const FixedRow at(row, columns);
    auto* sums = const_cast<float*>(at.sum16());
    for (int g = first / 32; g < (first + n + 31) / 32; ++g) {
        int of[2];
        sums_of_sixteens(at.q + g * 32, of);
        for (int half = 0; half < 2; ++half)
            sums[g * 2 + half] = at.scale[g] * static_cast<float>(of[half]);
    }
}

// Of sixteen bytes, one for each 16 columns: those of the first halves of groups 0 to 3 and then of
// their second halves, and of groups 4 to 7 likewise.
struct SixteenScales {
    F8 first, second;
    SixteenScales(V16 s, F8 d) {
        const V16 apart = bytes16(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
        s = lookup(s, apart);
        first = mul(d, floats_of_eight(s));
        second = mul(d, floats_of_eight(zip64_high(s, s)));
    }
    EightScales times(const float* from) const {
        const F8 x = load_floats(from);
        return {mul(first, low_twice(x)), mul(second, high_twice(x))};
    }
};

// Two bits of each byte of 32 that four groups share.
template <int g>
inline V32 two_bits(const std::byte* q) {
    const V32 v = load32(q + g / 4 * 32);
    return bits_and(right16(v, g % 4 * 2), each8(3));
}

template <int kNbytes>
struct FixedBlocks256 {
    static constexpr Input kInput = kEvensInput;
    static constexpr bool kOffset = false, kTails = false;
    const std::byte* blocks;
    FixedBlocks256(const std::byte* tile, const Tiles&) : blocks(tile) {}
    static bool fits(const Tiles&) { return true; }
    static constexpr int kStreamNbytes = kNbytes;
    const std::byte* stream(int b) const { return blocks + b * kNbytes; }
    float whole() const { return 1.0f; }
};

struct FixedQ2_K : FixedBlocks256<84> {
    static constexpr Input kInput = kSixteensInput;
    static constexpr bool kOffset = true;
    using FixedBlocks256::FixedBlocks256;
    struct Block {
        const std::byte* q;
        SixteenScales w;
        template <int g>
        Codes group() const {
            const V32 v = two_bits<g>(q);
            return Codes::plain(v);
        }
        EightScales scales(const float* x) const { return w.times(x); }
    };
    template <int T>
    HEADRACE_INLINE void add(int b, const FixedRow (&x)[T], int xb, F8 (&sum)[T],
                             F8 (&less)[T]) const {
        const std::byte* p = stream(b);
        const V16 packed = load16(p), minima = high_nibbles(packed);
        const Block block{p + 16, {low_nibbles(packed), same(half_fast(p + 80))}};
        add_codes(block, x, xb, sum);
        const F8 dmin = same(half_fast(p + 82));
        const F8 least[2] = {mul(dmin, floats_of_eight(minima)),
                             mul(dmin, floats_of_eight(zip64_high(minima, minima)))};
        for (int t = 0; t < T; ++t)
            for (int i = 0; i < 2; ++i)
                less[t] = fma(least[i], load_floats(x[t].sum16() + xb * 16 + i * 8), less[t]);
    }
};

struct FixedQ3_K : FixedBlocks256<110> {
    using FixedBlocks256::FixedBlocks256;
    struct Block {
        const std::byte* b;
        SixteenScales w;
        template <int g>
        Codes group() const {
            V32 third = bits_and(load32(b), each8(static_cast<char>(1 << g)));
            if constexpr (g < 2) third = left16(third, 2 - g);
            if constexpr (g > 2) third = right16(third, g - 2);
            return Codes::times(sub8(bits_or(two_bits<g>(b + 32), third), each8(4)));
        }
        EightScales scales(const float* x) const { return w.times(x); }
    };
    template <int T>
    HEADRACE_INLINE void add(int b, const FixedRow (&x)[T], int xb, F8 (&sum)[T], F8 (&)[T]) const {
        const std::byte* p = stream(b);
        add_codes(Block{p, {q3_k_scales(p), same(half_fast(p + 108))}}, x, xb, sum);
    }
    float whole() const { return 1.0f / Codes::kTimes; }
};

struct FixedQ5_0 : FixedBlocks32<22> {
    static constexpr Input kInput = kEvensInput;
    static constexpr bool kOffset = false;
    using FixedBlocks32::FixedBlocks32;
    FixedQ5_0 tail(std::byte* copy, int b, int groups) const {
        return copy_tail(copy, b, groups), FixedQ5_0(copy);
    }
    struct Block {
        const std::byte* b;
        F8 w;
        template <int g>
        Codes group() const {
            return Codes::times(q5_0_codes(b + g * 22));
        }
        EightScales scales(const float* x) const { return eight_scales(w, x); }
    };
    template <int T>
    HEADRACE_INLINE void add(int b, const FixedRow (&x)[T], int xb, F8 (&sum)[T], F8 (&)[T]) const {
        add_codes(Block{block(b), floats_of_f16(gathered_halves<22>(block(b)))}, x, xb, sum);
    }
    float whole() const { return 1.0f / Codes::kTimes; }
};

struct FixedIQ4_XS : FixedBlocks256<136> {
    static constexpr Input kInput = kHalvesInput;
    using FixedBlocks256::FixedBlocks256;
    template <int T>
    HEADRACE_INLINE void add(int b, const FixedRow (&x)[T], int xb, F8 (&sum)[T], F8 (&)[T]) const {
        const std::byte* p = stream(b);
        add_nibbles(Block32<iq4_steps, 16>{p + 8, iq4_xs_scales(p)}, x, xb, sum);
    }
};

inline void put_ggml_kernels(KernelTable& t) {
    t.put[kSixteensInput] = put_sixteens;
    put_many<FixedQ2_K, CodesQ2_K, unpack_q2_k>(t, kQ2_K);
    put_many<FixedQ3_K, CodesQ3_K, unpack_q3_k>(t, kQ3_K);
    put_many<FixedQ5_0, CodesQ5_0, unpack_q5_0>(t, kQ5_0);
    put_many<FixedIQ4_XS, CodesIQ4_XS, unpack_iq4_xs>(t, kIQ4_XS);
}

}  // namespace headrace::HEADRACE_ISA
