// Integer products on Arm: signed bytes, four to a lane of 32 bits (SDOT where there is one), and
// in panels eight (SMMLA).
//
// The other half of products_x86.inl. Activations lie as bytes h and l of q = 256 h + l: of each
// group of 32 columns 32 h, then 32 l; of kFoursInput even columns come before odd ones.

namespace headrace::HEADRACE_ISA {

HEADRACE_INLINE V16 add_fours(V16 sum, V16 a, V16 b) {
#if defined(__ARM_FEATURE_DOTPROD)
    return bits(vdotq_s32(s32(sum), s8(a), s8(b)));
#else
    const int16x8_t low = vmull_s8(vget_low_s8(s8(a)), vget_low_s8(s8(b)));
    const int16x8_t high = vmull_high_s8(s8(a), s8(b));
    return bits(vaddq_s32(s32(sum), vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high))));
#endif
}
HEADRACE_INLINE V32 add_fours(V32 sum, V32 a, V32 b) {
    return {add_fours(sum.low, a.low, b.low), add_fours(sum.high, a.high, b.high)};
}

// [even of the first 16, even of the others], then the odd ones likewise.
inline void by_evens(V32 first, V32 second, V32 (&out)[2]) {
    out[0] = {bits(vuzp1q_s16(s16(first.low), s16(first.high))),
              bits(vuzp1q_s16(s16(second.low), s16(second.high)))};
    out[1] = {bits(vuzp2q_s16(s16(first.low), s16(first.high))),
              bits(vuzp2q_s16(s16(second.low), s16(second.high)))};
}

// Group g of a row in the order of an input, 16 integers and 16 more.
template <Input kInput>
inline void put_order(std::int16_t* q, int g, V32 first, V32 second) {
    V32 parts[2] = {first, second};
    if constexpr (kInput == kFoursInput) by_evens(first, second, parts);
    const V32 a = in_bytes(parts[0]), b = in_bytes(parts[1]);
    store32(q + g * 32, {zip64_low(a.low, a.high), zip64_low(b.low, b.high)});
    store32(q + g * 32 + 16, {zip64_high(a.low, a.high), zip64_high(b.low, b.high)});
}

// Sums of the integers of a group's first 16 columns and of its others (kEvensInput).
inline void sums_of_sixteens(const std::int16_t* q, int (&sums)[2]) {
    const V32 h = load32(q), l = load32(q + 16);
    sums[0] = 256 * vaddlvq_s8(s8(h.low)) + vaddlvq_s8(s8(l.low));
    sums[1] = 256 * vaddlvq_s8(s8(h.high)) + vaddlvq_s8(s8(l.high));
}

// 32 weights: signed bytes in order.
struct Codes {
    static constexpr int kTimes = 1;
    V32 of;
    static HEADRACE_INLINE Codes plain(V32 v) { return {v}; }
    static HEADRACE_INLINE Codes times(V32 v) { return {v}; }
    // Group g of a row, in eight lanes, four of them of the first 16 columns.
    HEADRACE_INLINE V32 products(const std::int16_t* q) const {
        const V32 high = left32(add_fours(no_bits(), of, load32(q)), 8);
        return add_fours(high, of, load32(q + 16));
    }
};

// Of groups j and j + 4 in the halves of vectors: signed bytes, those of low nibbles and of high
// ones.
struct Nibbles {
    V32 low, high;
    static HEADRACE_INLINE Nibbles plain(V32 low, V32 high) { return {low, high}; }
    HEADRACE_INLINE V32 products(const std::int16_t* block, int j) const {
        const std::int16_t *a = block + j * 32, *b = a + 128;
        V32 sum = add_fours(no_bits(), low, load_halves(a, b));
        sum = left32(add_fours(sum, high, load_halves(a + 8, b + 8)), 8);
        sum = add_fours(sum, low, load_halves(a + 16, b + 16));
        return add_fours(sum, high, load_halves(a + 24, b + 24));
    }
};

// Nothing needs to be kept (products_x86.inl).
HEADRACE_INLINE void keep(const V32&) {}

// 32 bits of memory in every lane.
HEADRACE_INLINE V32 each_from(const void* p) {
    std::int32_t word;
    std::memcpy(&word, p, sizeof word);
    return each32(word);
}

// Codes below 128 with h and l of the activations, a lane for each group, or for each row of one.
struct LaneSums {
    static constexpr bool kNarrow = false;
    V32 h = no_bits(), l = no_bits();
    struct X {
        V32 h, l;
    };
    // A lane for each group.
    static HEADRACE_INLINE X lanes(const std::int8_t* x) { return {load32(x), load32(x + 32)}; }
    // Four columns, the same for every row.
    static HEADRACE_INLINE X columns(const std::int8_t* x) {
        return {each_from(x), each_from(x + 32)};
    }
    HEADRACE_INLINE void add(V32 codes, const X& x) {
        h = add_fours(h, codes, x.h);
        l = add_fours(l, codes, x.l);
    }
    HEADRACE_INLINE void hold() {}
    HEADRACE_INLINE V32 whole() const { return add32(left32(h, 8), l); }
};

// Signed bytes of codes, four columns of eight rows, with the integers of a group (kEvensInput).
struct WordSums : LaneSums {
    static HEADRACE_INLINE X columns(const std::int16_t* group, int word) {
        return LaneSums::columns(reinterpret_cast<const std::int8_t*>(group) + 4 * word);
    }
};

// sum + (c x + c1 x1) scale.
HEADRACE_INLINE V32 add_scaled_pair(V32 sum, V32 c, V32 x, V32 c1, V32 x1, V32 scale) {
    const V32 fours = add_fours(add_fours(no_bits(), c, x), c1, x1);
    return {bits(vmlaq_s32(s32(sum.low), s32(fours.low), s32(scale.low))),
            bits(vmlaq_s32(s32(sum.high), s32(fours.high), s32(scale.high)))};
}
// Where its scale comes from, byte a for eight columns and b for the next.
HEADRACE_INLINE V32 scale_places(int a, int b) {
    return both16(a, -1, -1, -1, a, -1, -1, -1, b, -1, -1, -1, b, -1, -1, -1);
}

inline constexpr int kStripVectors = 4, kStripTokens = 2;
using PanelCode = std::int8_t;

#if defined(__ARM_FEATURE_MATMUL_INT8)
// Sums of a panel's rows, of which a step has eight columns: h and l of two rows are a vector.
struct Ints {
    V32 of;
    static Ints zero() { return {no_bits()}; }
    static V32 load(const std::int8_t* p) { return load32(p); }
    static V16 columns(const std::int16_t* p) {
        const auto* h = reinterpret_cast<const std::uint8_t*>(p);
        return vcombine_u8(vld1_u8(h), vld1_u8(h + 32));
    }
    Ints add(V32 w, V16 x) const {
        return {{bits(vmmlaq_s32(s32(of.low), s8(w.low), s8(x))),
                 bits(vmmlaq_s32(s32(of.high), s8(w.high), s8(x)))}};
    }
    F32 floats() const {
        const int32x4_t h = vuzp1q_s32(s32(of.low), s32(of.high));
        const int32x4_t l = vuzp2q_s32(s32(of.low), s32(of.high));
        return {vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(h, 8), l))};
    }
};
inline constexpr int kPanelSteps = 4, kStepColumns = 8;  // of a group

// 32 columns of eight rows, four in each lane.
template <int kStep>
inline void put_words(const V32 (&words)[8], PanelCode (*to)[kStep], int row) {
    for (int i = 0; i < 4; ++i) {
        PanelCode* at = to[i] + row * 8;
        const V32 a = words[2 * i], b = words[2 * i + 1];
        store32(at, {zip32_low(a.low, b.low), zip32_high(a.low, b.low)});
        store32(at + 32, {zip32_low(a.high, b.high), zip32_high(a.high, b.high)});
    }
}

// Eight rows of 32 columns.
template <int kStep>
inline void put_eight_rows(const V32 (&r)[8], PanelCode (*to)[kStep], int row) {
    for (int i = 0; i < 8; ++i) {
        PanelCode* at = to[0] + (row + i) * 8;
        store_low8(at, r[i].low);
        store_low8(at + kStep, zip64_high(r[i].low, r[i].low));
        store_low8(at + 2 * kStep, r[i].high);
        store_low8(at + 3 * kStep, zip64_high(r[i].high, r[i].high));
    }
}
#else
// Sums of a panel's rows, of which a step has four columns.
struct Ints {
    struct Columns {
        V16 h, l;
    };
    V16 h, l;
    static Ints zero() { return {small8(0), small8(0)}; }
    static V16 load(const std::int8_t* p) { return load16(p); }
    static Columns columns(const std::int16_t* p) {
        const auto* four = reinterpret_cast<const std::int32_t*>(p);
        return {bits(vld1q_dup_s32(four)), bits(vld1q_dup_s32(four + 8))};
    }
    Ints add(V16 w, const Columns& x) const { return {add_fours(h, w, x.h), add_fours(l, w, x.l)}; }
    F32 floats() const { return {vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(s32(h), 8), s32(l)))}; }
};

inline constexpr int kPanelSteps = 8, kStepColumns = 4;  // of a group

// 32 columns of eight rows, four in each lane.
template <int kStep>
inline void put_words(const V32 (&words)[8], PanelCode (*to)[kStep], int row) {
    for (int i = 0; i < 8; ++i) store32(to[i] + row * 4, words[i]);
}

// Four columns of four rows next to each other.
HEADRACE_INLINE void put_four_rows(V16 a, V16 b, V16 c, V16 d, PanelCode* to, std::size_t step) {
    const V16 ab = zip32_low(a, b), cd = zip32_low(c, d);
    const V16 rest_ab = zip32_high(a, b), rest_cd = zip32_high(c, d);
    vst1q_s8(to, s8(zip64_low(ab, cd)));
    vst1q_s8(to + step, s8(zip64_high(ab, cd)));
    vst1q_s8(to + 2 * step, s8(zip64_low(rest_ab, rest_cd)));
    vst1q_s8(to + 3 * step, s8(zip64_high(rest_ab, rest_cd)));
}

// Eight rows of 32 columns.
template <int kStep>
inline void put_eight_rows(const V32 (&r)[8], PanelCode (*to)[kStep], int row) {
    for (int i = 0; i < 8; i += 4) {
        PanelCode* at = to[0] + (row + i) * 4;
        put_four_rows(r[i].low, r[i + 1].low, r[i + 2].low, r[i + 3].low, at, kStep);
        put_four_rows(r[i].high, r[i + 1].high, r[i + 2].high, r[i + 3].high, at + 4 * kStep,
                      kStep);
    }
}
#endif

// Where the activations of a group have a step's columns: the first half of the steps is of the
// first 16 columns, and of kFoursInput every other half of that of even columns.
template <Input kInput>
struct StepOrder {
    static constexpr bool kFours = kInput == kFoursInput;
    static constexpr int first(int g) { return g * 32; }
    static constexpr int place(int step) {
        constexpr int kHalf = kPanelSteps / 2, kQuarter = kHalf / 2;
        const int odd = step / kQuarter % 2, half = step / kHalf;
        const int at = kFours ? odd * kHalf + half * kQuarter + step % kQuarter : step;
        return at * kStepColumns / 2;
    }
    // 32 columns as the steps of a panel.
    static HEADRACE_INLINE V32 in_steps(V32 codes) {
        if constexpr (!kFours) return codes;
        return lookup(codes, both16(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    }
};

}  // namespace headrace::HEADRACE_ISA
