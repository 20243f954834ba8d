// Integer products on x86: 16-bit pairs, and unsigned bytes with signed ones.
//
// All that depends on what a processor multiplies is here (products_neon.inl is its other half):
// the order of the activations' integers, and their sums with codes. With VNNI a product and its
// sum are one instruction; sums are the same to the bit.

namespace headrace::HEADRACE_ISA {

#if defined(HEADRACE_VNNI)
HEADRACE_INLINE V32 add_pairs(V32 sum, V32 a, V32 b) { return _mm256_dpwssd_epi32(sum, a, b); }
HEADRACE_INLINE V32 add_fours(V32 sum, V32 codes, V32 x) {
    return _mm256_dpbusd_epi32(sum, codes, x);
}
#else
HEADRACE_INLINE V32 add_pairs(V32 sum, V32 a, V32 b) { return add32(sum, _mm256_madd_epi16(a, b)); }
#endif

// Four times eight of 32 integers in order, as nibbles come apart in 16-bit lanes.
struct Quarters {
    V16 of[4];
};

// [even of the first 16, even of the others], then the odd ones likewise.
inline void by_evens(V32 first, V32 second, V32 (&out)[2]) {
    const V32 apart = both16(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    first = _mm256_permute4x64_epi64(lookup(first, apart), 0xd8);
    second = _mm256_permute4x64_epi64(lookup(second, apart), 0xd8);
    out[0] = _mm256_permute2x128_si256(first, second, 0x20);
    out[1] = _mm256_permute2x128_si256(first, second, 0x31);
}

// Every fourth: where a byte has two neighbours.
inline Quarters by_fours(V32 first, V32 second) {
    const V32 apart = both16(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    first = lookup(first, apart);
    second = lookup(second, apart);
    const V16 a = low_half(first), b = high_half(first), c = low_half(second),
              d = high_half(second);
    const V16 ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d);
    const V16 rest_ab = _mm_unpackhi_epi32(a, b), rest_cd = _mm_unpackhi_epi32(c, d);
    return {{zip64_low(ab, cd), zip64_high(ab, cd), zip64_low(rest_ab, rest_cd),
             zip64_high(rest_ab, rest_cd)}};
}

// Group g of a row in the order of an input, 16 integers and 16 more. Of a nibble's inputs, groups
// j and j + 4 of a block share vectors: their scales are then in the two halves of one.
template <Input kInput>
inline void put_order(std::int16_t* q, int g, V32 first, V32 second) {
    V32 evens[2];
    by_evens(first, second, evens);
    if constexpr (kInput == kEvensInput) {
        for (int i = 0; i < 2; ++i) store32(q + g * 32 + i * 16, evens[i]);
    } else {
        Quarters quarters{
            {low_half(evens[0]), high_half(evens[0]), low_half(evens[1]), high_half(evens[1])}};
        if constexpr (kInput == kFoursInput) quarters = by_fours(first, second);
        std::int16_t* at = q + g / 8 * 256 + g % 4 * 64 + g / 4 % 2 * 8;
        for (int i = 0; i < 4; ++i)
            _mm_storeu_si128(reinterpret_cast<V16*>(at + i * 16), quarters.of[i]);
    }
}

// Sums of the integers of a group's first 16 columns and of its others (kEvensInput).
inline void sums_of_sixteens(const std::int16_t* q, int (&sums)[2]) {
    const V32 s = add_pairs(_mm256_madd_epi16(load32(q), each16(1)), load32(q + 16), each16(1));
    const V16 twos = _mm_hadd_epi32(low_half(s), high_half(s)), both = _mm_hadd_epi32(twos, twos);
    sums[0] = _mm_cvtsi128_si32(both);
    sums[1] = _mm_extract_epi32(both, 1);
}

// 32 weights as 16-bit integers, the even columns and the odd ones: signed bytes in order.
struct Codes {
    static constexpr int kTimes = 256;  // of those that are as they come cheaply
    V32 even, odd;
    static HEADRACE_INLINE Codes plain(V32 v) { return {down16(left16(v, 8), 8), down16(v, 8)}; }
    static HEADRACE_INLINE Codes times(V32 v) {
        return {left16(v, 8), bits_and(v, each16(0xff00))};
    }
    // Group g of a row, in eight lanes, four of them of the first 16 columns.
    HEADRACE_INLINE V32 products(const std::int16_t* q) const {
        return add_pairs(_mm256_madd_epi16(even, load32(q)), odd, load32(q + 16));
    }
};

// Of groups j and j + 4 in the halves of vectors: signed bytes, those of low nibbles and of high
// ones.
struct Nibbles {
    V32 of[4];
    static HEADRACE_INLINE Nibbles plain(V32 low, V32 high) {
        return {{down16(left16(low, 8), 8), down16(left16(high, 8), 8), down16(low, 8),
                 down16(high, 8)}};
    }
    HEADRACE_INLINE V32 products(const std::int16_t* block, int j) const {
        const std::int16_t* q = block + j * 64;
        V32 sum = _mm256_madd_epi16(of[0], load32(q));
        for (int i = 1; i < 4; ++i) sum = add_pairs(sum, of[i], load32(q + i * 16));
        return sum;
    }
};

// 32 bits of memory in every lane: one instruction, which a broadcast of an integer need not
// become.
HEADRACE_INLINE V32 each_from(const void* p) {
    return as_bits(_mm256_broadcast_ss(static_cast<const float*>(p)));
}

// Keeps a sum in its register and its order: GCC would make trees of unrolled integer sums, and
// spill them.
template <class V>
inline void keep(V& v) {
#if defined(HEADRACE_SIMDE)
    (void)v;
#else
    asm("" : "+v"(v));
#endif
}

// Unsigned bytes of codes with h and l of the activations, a lane for each group, or for each row
// of one. kNarrow: of 16 bits each, which eight vectors fill.
struct LaneSums {
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
#if defined(HEADRACE_VNNI)
    static constexpr bool kNarrow = false;
    HEADRACE_INLINE void add(V32 codes, const X& x) {
        h = add_fours(h, codes, x.h);
        l = add_fours(l, codes, x.l);
    }
    HEADRACE_INLINE void hold() {}
    HEADRACE_INLINE V32 whole() const { return add32(left32(h, 8), l); }
#else
    static constexpr bool kNarrow = true;
    HEADRACE_INLINE void add(V32 codes, const X& x) {
        h = add16(h, _mm256_maddubs_epi16(codes, x.h));
        l = add16(l, _mm256_maddubs_epi16(codes, x.l));
    }
    HEADRACE_INLINE void hold() {
        keep(h);
        keep(l);
    }
    HEADRACE_INLINE V32 whole() const {
        return add32(_mm256_madd_epi16(h, each16(256)), _mm256_madd_epi16(l, each16(1)));
    }
#endif
};

// Signed bytes of codes, four columns of eight rows, with the integers of a group (kEvensInput).
struct WordSums {
    V32 sum = no_bits();
    struct X {
        V32 even, odd;
    };
    static HEADRACE_INLINE X columns(const std::int16_t* group, int word) {
        return {each_from(group + 2 * word), each_from(group + 16 + 2 * word)};
    }
    HEADRACE_INLINE void add(V32 codes, const X& x) {
        sum = add_pairs(sum, down16(left16(codes, 8), 8), x.even);
        sum = add_pairs(sum, down16(codes, 8), x.odd);
        keep(sum);
    }
    HEADRACE_INLINE V32 whole() const { return sum; }
};

// sum + (c x + c1 x1) scale: codes of at most five bits, so that sums of eight products
// fit 16.
HEADRACE_INLINE V32 add_scaled_pair(V32 sum, V32 c, V32 x, V32 c1, V32 x1, V32 scale) {
    const V32 twos = add16(_mm256_maddubs_epi16(c, x), _mm256_maddubs_epi16(c1, x1));
    return add_pairs(sum, twos, scale);
}
// Where its scale comes from, byte a for eight columns and b for the next.
HEADRACE_INLINE V32 scale_places(int a, int b) {
    return both16(a, -1, a, -1, a, -1, a, -1, b, -1, b, -1, b, -1, b, -1);
}

#if defined(HEADRACE_TILES)
// Panels of tiles (kernels/tile_panels.inl): a step has four columns.
inline constexpr int kStripVectors = 2;
using PanelCode = std::int8_t;
inline constexpr int kPanelSteps = 8, kStepColumns = 4;  // of a group

template <Input>
struct StepOrder {
    static HEADRACE_INLINE V32 in_steps(V32 codes) { return codes; }
};

// 32 columns of eight rows, four in each lane.
template <int kStep>
inline void put_words(const V32 (&words)[8], PanelCode (*to)[kStep], int row) {
    for (int i = 0; i < 8; ++i) store32(to[i] + row * 4, words[i]);
}

// Eight rows of 32 columns: four bytes of all rows next to each other.
template <int kStep>
inline void put_eight_rows(const V32 (&r)[8], PanelCode (*to)[kStep], int row) {
    V32 a[8], b[8];
    for (int i = 0; i < 4; ++i) {
        a[2 * i] = zip32_low(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = zip32_high(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) {
            b[4 * i + 2 * j] = zip64_low(a[4 * i + j], a[4 * i + 2 + j]);
            b[4 * i + 2 * j + 1] = zip64_high(a[4 * i + j], a[4 * i + 2 + j]);
        }
    for (int i = 0; i < 4; ++i) {
        store32(to[i] + row * 4, put_together(low_half(b[i]), low_half(b[4 + i])));
        store32(to[4 + i] + row * 4, put_together(high_half(b[i]), high_half(b[4 + i])));
    }
}
#else
// Sums of a panel's rows, of which a step has pairs of columns.
#if defined(HEADRACE_SIMD_AVX512)
struct Ints {
    __m512i v;
    static Ints zero() { return {_mm512_setzero_si512()}; }
    static Ints load(const std::int16_t* p) {
        return {_mm512_loadu_si512(reinterpret_cast<const void*>(p))};
    }
    static Ints columns(const std::int16_t* p) {
        int pair;
        std::memcpy(&pair, p, sizeof pair);
        return {_mm512_set1_epi32(pair)};
    }
    Ints add(Ints w, Ints x) const {
#if defined(HEADRACE_VNNI)
        Ints sum{_mm512_dpwssd_epi32(v, w.v, x.v)};
#else
        Ints sum{_mm512_add_epi32(v, _mm512_madd_epi16(w.v, x.v))};
#endif
        keep(sum.v);
        return sum;
    }
    F32 floats() const { return {_mm512_cvtepi32_ps(v)}; }
};
#else
struct Ints {
    V32 v;
    static Ints zero() { return {no_bits()}; }
    static Ints load(const std::int16_t* p) { return {load32(p)}; }
    static Ints columns(const std::int16_t* p) { return {each_from(p)}; }
    Ints add(Ints w, Ints x) const {
        Ints sum{add_pairs(v, w.v, x.v)};
        keep(sum.v);
        return sum;
    }
    F32 floats() const { return {_mm256_cvtepi32_ps(v)}; }
};
#endif

inline constexpr int kStripVectors = 2, kStripTokens = 4;
using PanelCode = std::int16_t;
inline constexpr int kPanelSteps = 16, kStepColumns = 2;  // of a group

// Where the activations of a group (`put_order`) have a step's columns: the first eight steps are
// of the first 16 columns.
template <Input kInput>
struct StepOrder {
    static constexpr bool kEvens = kInput == kEvensInput || kInput == kSixteensInput ||
                                   kInput == kPlanesInput,
                          kFours = kInput == kFoursInput;
    static constexpr int first(int g) {
        return kEvens ? g * 32 : g / 8 * 256 + g % 4 * 64 + g / 4 % 2 * 8;
    }
    static constexpr int place(int pair) {
        const int half = pair / 8, i = pair % 8, apart = kEvens ? 8 : 16;
        if (kFours) return i / 2 * apart + (2 * half + i % 2) * 2;
        return (i / 4 * 2 + half) * apart + i % 4 * 2;
    }
    // 32 columns as the steps of a panel.
    static HEADRACE_INLINE V32 in_steps(V32 codes) {
        if constexpr (kFours)
            return lookup(codes, both16(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        return lookup(codes, both16(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    }
};

// 32 columns of eight rows, four in each lane.
template <int kStep>
inline void put_words(const V32 (&words)[8], PanelCode (*to)[kStep], int row) {
    for (int i = 0; i < 8; ++i) {
        const int step = i / 4 * 8 + i % 4;
        store32(to[step] + row * 2, down16(left16(words[i], 8), 8));
        store32(to[step + 4] + row * 2, down16(words[i], 8));
    }
}

// Eight rows of 32 columns: pairs of bytes of all rows next to each other, widened.
template <int kStep>
inline void put_eight_rows(const V32 (&r)[8], PanelCode (*to)[kStep], int row) {
    V32 a[8], b[8];
    for (int i = 0; i < 4; ++i) {
        a[2 * i] = _mm256_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) {
            b[4 * i + 2 * j] = zip32_low(a[4 * i + j], a[4 * i + 2 + j]);
            b[4 * i + 2 * j + 1] = zip32_high(a[4 * i + j], a[4 * i + 2 + j]);
        }
    for (int i = 0; i < 4; ++i) {
        const V32 out[2] = {zip64_low(b[i], b[4 + i]), zip64_high(b[i], b[4 + i])};
        for (int j = 0; j < 2; ++j) {
            const int pair = 2 * i + j;
            store32(to[pair] + row * 2, _mm256_cvtepi8_epi16(low_half(out[j])));
            store32(to[8 + pair] + row * 2, _mm256_cvtepi8_epi16(high_half(out[j])));
        }
    }
}
#endif

}  // namespace headrace::HEADRACE_ISA
