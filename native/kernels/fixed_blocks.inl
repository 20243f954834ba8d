// Q6_K for `fixed_rows`, and what formats share whose groups have vectors of their own.
//
// Activations are of kEvensInput.

namespace headrace::HEADRACE_ISA {

// A float for each group of a block, in all lanes or another in the upper half.
struct EightScales {
    F8 first, second;  // of groups 0 to 3, 4 to 7, in both halves
    template <int g>
    F8 of() const {
        return lane_of<g % 4>(g < 4 ? first : second);
    }
};
inline EightScales eight_scales(F8 w, const float* x) {
    const F8 s = mul(w, load_floats(x));
    return {low_twice(s), high_twice(s)};
}

// Two sums, of even and odd groups: one alone would wait for itself.
template <class C, int T>
HEADRACE_INLINE void add_codes(const C& c, const FixedRow (&x)[T], int xb, F8 (&sum)[T]) {
    EightScales s[T];
    for (int t = 0; t < T; ++t) s[t] = c.scales(x[t].scale + xb * 8);
    F8 part[T][2];
    unrolled<8>([&](auto g) {
        const Codes w = c.template group<g>();
        for (int t = 0; t < T; ++t) {
            const F8 f = floats(w.products(x[t].q + xb * 256 + g * 32));
            const F8 scale = s[t].template of<g>();
            part[t][g % 2] = g < 2 ? mul(f, scale) : fma(f, scale, part[t][g % 2]);
        }
    });
    for (int t = 0; t < T; ++t) sum[t] = add(sum[t], add(part[t][0], part[t][1]));
}

// Q6_K: 16 columns share a signed scale of 8 bits.
struct FixedQ6_K {
    static constexpr Input kInput = kEvensInput;
    static constexpr bool kOffset = false, kTails = false;
    const std::byte* blocks;
    FixedQ6_K(const std::byte* tile, const Tiles&) : blocks(tile) {}
    static bool fits(const Tiles&) { return true; }
    struct Block {
        const std::byte* b;
        F8 first, second;  // scales of the first 16 columns of four groups, of the others
        explicit Block(const std::byte* block) : b(block) {
            const V16 apart = bytes16(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
            const V16 s = lookup(load16(b + 192), apart);
            const F8 d = same(half_fast(b + 208));
            first = mul(d, floats(words_of_signed(s)));
            second = mul(d, floats(words_of_signed(zip64_high(s, s))));
        }
        // Times Codes::kTimes.
        template <int g>
        Codes group() const {
            constexpr int kHalf = g / 4, kQuarter = g % 4;
            V32 low = load32(b + kHalf * 64 + kQuarter % 2 * 32);
            if constexpr (kQuarter >= 2) low = right16(low, 4);
            V32 high =
                bits_and(load32(b + 128 + kHalf * 32), each8(static_cast<char>(3 << 2 * kQuarter)));
            if constexpr (kQuarter < 2) high = left16(high, 4 - 2 * kQuarter);
            if constexpr (kQuarter > 2) high = right16(high, 2);
            const V32 code = bits_or(bits_and(low, each8(15)), high);
            const V32 v = sub8(code, each8(32));
            return Codes::times(v);
        }
        EightScales scales(const float* from) const {
            const F8 x = load_floats(from);
            return {mul(first, low_twice(x)), mul(second, high_twice(x))};
        }
    };
    template <int T>
    HEADRACE_INLINE void add(int b, const FixedRow (&x)[T], int xb, F8 (&sum)[T], F8 (&)[T]) const {
        add_codes(Block(blocks + b * 210), x, xb, sum);
    }
    static constexpr int kStreamNbytes = 210;
    const std::byte* stream(int b) const { return blocks + b * kStreamNbytes; }
    float whole() const { return 1.0f / Codes::kTimes; }
};

template <>
struct Habits<FixedQ6_K> {
    using Row = FixedRow;
    static constexpr int kRows = 2;
};

inline void put_fixed_inputs(KernelTable& t) {
    t.put[kEvensInput] = put_fixed<kEvensInput>;
    t.put[kFoursInput] = put_fixed<kFoursInput>;
    t.put[kHalvesInput] = put_fixed<kHalvesInput>;
    t.put[kHalfSumsInput] = put_fixed<kHalfSumsInput>;
    t.put[kPlanesInput] = put_planes;
}

}  // namespace headrace::HEADRACE_ISA
