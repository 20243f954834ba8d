// Q4_0, Q8_0, Q4_K, MXFP4 and NVFP4: tiles whose 16 rows lie in lanes (`is_laned`).
//
// A group is 32 columns of a tile: the rows' scales, then words of four columns, of every row one;
// Q4_K has eight of them in a block.
// Activations meet all rows of a vector at once, and sums of a group are those of rows: nothing is
// put in order, and nothing summed up across lanes.

namespace headrace::HEADRACE_ISA {

// What formats of a group share: kHead bytes of a scale, kCodes of codes for each row. `eight` is
// 0 or 1: which rows of the tile.
inline const std::byte* first_group(const Tiles& t, int row) {
    return t.tile(row) + lanes_head_nbytes(t.format);
}
inline int groups_of(int columns) { return (columns + 31) / 32; }

template <int kHead, int kCodes>
struct Lanes {
    static constexpr bool kHalves = false, kOffset = false;  // as panels take them
    static constexpr int kColumns = 32, kGroupNbytes = kLaneRows * (kHead + kCodes);

    static const std::byte* group(const Tiles& t, int row, int g) {
        return first_group(t, row) + static_cast<std::size_t>(g) * kGroupNbytes;
    }
    static HEADRACE_INLINE V32 word(const std::byte* group, int i, int eight) {
        return load32(group + kLaneRows * (kHead + i * 4) + eight * 32);
    }
    static HEADRACE_INLINE F8 halves(const std::byte* group, int eight) {
        return floats_of_f16(load16(group + eight * 16));
    }
};

struct LanesQ8_0 : Lanes<2, 32> {
    static constexpr Input kInput = kEvensInput;
    // A core that does little for each byte streams best from four places, unasked: 25% more than
    // from one (Zen 3).
    static constexpr int kStreams = 4;
    static constexpr bool kAsksAhead = false;
    static HEADRACE_INLINE F8 scales(const std::byte* group, int eight, int = 0) {
        return halves(group, eight);
    }
    // Words of signed codes: of all 32 columns.
    static void words(const std::byte* group, int eight, V32 (&to)[8]) {
        for (int i = 0; i < 8; ++i) to[i] = word(group, i, eight);
    }
    static V32 codes(const std::byte* group, int r) {
        std::byte q[32];
        gather_codes<2, 32>(group, r, q);
        return load32(q);
    }
    // The products of kEights times eight rows, from `first` on.
    template <int kEights, int T>
    static HEADRACE_INLINE void add(const std::byte* group, int first, const FixedRow (&x)[T],
                                    int g, F8 (&sum)[2][T]) {
        WordSums part[kEights][T];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i)
#pragma GCC unroll 3
            for (int t = 0; t < T; ++t) {
                const auto columns = WordSums::columns(x[t].q + g * 32, i);
#pragma GCC unroll 2
                for (int e = 0; e < kEights; ++e)
                    part[e][t].add(word(group, i, first + e), columns);
            }
#pragma GCC unroll 2
        for (int e = 0; e < kEights; ++e) {
            const F8 w = scales(group, first + e);
#pragma GCC unroll 3
            for (int t = 0; t < T; ++t)
                sum[first + e][t] =
                    fma(mul(floats(part[e][t].whole()), same(x[t].scale[g])), w, sum[first + e][t]);
        }
    }
};

// How far kernels that ask themselves do.
inline constexpr int kLanesAhead = 1536;

// Codes that are what they say, and E2M1: twice its value and 12 besides, so that none is negative.
struct PlainCodes {
    static constexpr bool kWide = false;
    static V32 of(V32 nibbles) { return nibbles; }
};
struct StepsAbove {
    static constexpr bool kWide = true;  // eight products of two overflow 16 bits, four do not
    static V32 of(V32 nibbles) {
        return lookup(both16(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0), nibbles);
    }
};

// 4-bit codes of a format F: C's for few tokens, counted from `kZero`, and F's signed ones for
// many. kParts: scales of a group's columns, one or two.
template <class F, class C, int kHead, int kParts = 1>
struct LanesOfNibbles : Lanes<kHead, 16> {
    static constexpr Input kInput = kParts == 2 ? kHalfSumsInput : kHalvesInput;
    static constexpr bool kHalves = kParts == 2;
    // One that does more from two, if asked ahead: 20 to 30%.
    static constexpr int kStreams = 2;
    static constexpr bool kAsksAhead = true;
    using Base = Lanes<kHead, 16>;
    using Code = C;
    static constexpr int kHeadNbytes = kLaneRows * kHead;
    static void words(const std::byte* group, int eight, V32 (&to)[8]) {
        for (int i = 0; i < 4; ++i) {
            const V32 v = Base::word(group, i, eight);
            to[i] = F::code(low_nibbles(v));
            to[4 + i] = F::code(high_nibbles(v));
        }
    }
    static HEADRACE_INLINE float sum_of(const FixedRow& x, int g, int part) {
        return kParts == 2 ? x.half_sums()[2 * g + part] : x.sum[g];
    }
    static V32 codes(const std::byte* group, int r) {
        std::byte q[16];
        gather_codes<kHead, 16>(group, r, q);
        return F::code(nibble_halves(load16(q)));
    }
    template <int kEights, int T>
    static HEADRACE_INLINE void add(const std::byte* group, int first, const FixedRow (&x)[T],
                                    int g, F8 (&sum)[2][T]) {
        constexpr bool kTwice = C::kWide && LaneSums::kNarrow && kParts == 1;
        LaneSums sums[kParts][kEights][T];
        V32 half[kEights][T];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            V32 v[kEights];
#pragma GCC unroll 2
            for (int e = 0; e < kEights; ++e) {
                v[e] = Base::word(group, i, first + e);
                keep(v[e]);
            }
#pragma GCC unroll 2
            for (int n = 0; n < 2; ++n)
#pragma GCC unroll 3
                for (int t = 0; t < T; ++t) {
                    const auto columns = LaneSums::columns(x[t].bytes() + g / 8 * 512 + g % 8 * 4 +
                                                           i * 128 + n * 64);
#pragma GCC unroll 2
                    for (int e = 0; e < kEights; ++e) {
                        LaneSums& to = sums[n % kParts][e][t];
                        to.add(C::of(n == 0 ? low_nibbles(v[e]) : high_nibbles(v[e])), columns);
                        to.hold();
                    }
                }
            if constexpr (kTwice)
                if (i == 1)
                    for (int e = 0; e < kEights; ++e)
                        for (int t = 0; t < T; ++t) {
                            half[e][t] = sums[0][e][t].whole();
                            sums[0][e][t] = {};
                        }
        }
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part)
#pragma GCC unroll 2
            for (int e = 0; e < kEights; ++e) {
                const F8 w = F::scales(group, first + e, part);
#pragma GCC unroll 3
                for (int t = 0; t < T; ++t) {
                    V32 whole = sums[part][e][t].whole();
                    if constexpr (kTwice) whole = add32(half[e][t], whole);
                    const F8 above = mul(floats(whole), same(x[t].scale[g]));
                    F8& to = sum[first + e][t];
                    to = fma(w, fnma(same(F::kZero), same(sum_of(x[t], g, part)), above), to);
                }
            }
    }
};

struct LanesQ4_0 : LanesOfNibbles<LanesQ4_0, PlainCodes, 2> {
    static constexpr float kZero = 8.0f;
    static HEADRACE_INLINE F8 scales(const std::byte* group, int eight, int = 0) {
        return halves(group, eight);
    }
    static V32 code(V32 nibbles) { return sub8(nibbles, each8(8)); }
};

// Eight E8M0 as floats; 0 and 255 are not what their bits say.
inline F8 e8m0_eight(V32 e) {
    const V32 next = bits_and(add32(e, each32(1)), each32(255));
    const V32 odd = bits_and(more32(each32(2), next), each32(0x00400000));
    return as_floats(bits_or(left32(e, 23), odd));
}

// Codes are twice their value.
struct LanesMXFP4 : LanesOfNibbles<LanesMXFP4, StepsAbove, 1> {
    static constexpr float kZero = 12.0f;
    static HEADRACE_INLINE F8 scales(const std::byte* group, int eight, int = 0) {
        const V32 e = words_of_bytes(load_low8(group + eight * 8));
        return mul(e8m0_eight(e), same(0.5f));
    }
    static V32 code(V32 nibbles) { return lookup(in_both(e2m1_twice()), nibbles); }
};

// E4M3 in the lower or the upper bytes of words, as float16 2^8 times smaller. A NaN's stay one.
// `same`: a vector of a word.
template <class V, class Same>
HEADRACE_INLINE V e4m3_halves(V words, int part, Same&& same) {
    const V up = down16(part == 0 ? left16(words, 8) : words, 1), number = same(0x3f80);
    const V nan = equal16(bits_and(up, number), number);
    return bits_or(bits_and(up, same(0xbf80)), bits_and(nan, same(0x7f80)));
}

// Codes are twice their value, scales 2^8 times smaller: the tensor's makes up for both.
struct LanesNVFP4 : LanesOfNibbles<LanesNVFP4, StepsAbove, 2, 2> {
    static constexpr float kZero = 12.0f, kTimes = 128.0f;
    static HEADRACE_INLINE F8 scales(const std::byte* group, int eight, int part) {
        return floats_of_f16(
            e4m3_halves(load16(group + eight * 16), part, [](int v) { return small16(v); }));
    }
    static float whole(const std::byte* tile, int row) {
        return load_as<float>(tile + row * 4) * kTimes;
    }
    static HEADRACE_INLINE F8 wholes(const std::byte* tile, int eight) {
        return mul(load_floats(reinterpret_cast<const float*>(tile) + eight * 8), same(kTimes));
    }
    static V32 code(V32 nibbles) { return lookup(in_both(e2m1_twice()), nibbles); }
};

// What a tile's rows are times at the end.
template <class F>
inline constexpr bool kWholeRows = requires { F::whole(nullptr, 0); };

// Q4_K: a block is 36 words of every row. The first is two float16, for scales and for minima,
// three have their six bits (`scale_min`); of the others 8 p to 8 p + 7 are two groups, in their
// nibbles.
struct LanesQ4_K {
    static constexpr Input kInput = kHalvesInput;
    static constexpr bool kHalves = false, kOffset = true;
    static constexpr int kStreams = 2;
    static constexpr bool kAsksAhead = false;  // all at once: `add` does
    static constexpr int kColumns = 256, kGroupNbytes = kLaneRows * 144 / 8;

    static const std::byte* group(const Tiles& t, int row, int g) {
        return t.tile(row) + static_cast<std::size_t>(g) * kGroupNbytes;
    }
    static HEADRACE_INLINE V32 word(const std::byte* block, int i, int eight) {
        return load32(block + i * (kLaneRows * 4) + eight * 32);
    }
    // Eight rows' scales and minima, six bits of a block's groups 0 to 3 and 4 to 7 in four bytes.
    struct Six {
        V32 scales[2], minima[2];
        HEADRACE_INLINE Six(const std::byte* block, int eight) {
            const V32 six = each32(0x3f3f3f3f), four = each32(0x0f0f0f0f), top = each32(0x30303030);
            const V32 s = word(block, 1, eight), m = word(block, 2, eight);
            const V32 rest = word(block, 3, eight);
            scales[0] = bits_and(s, six);
            scales[1] = bits_or(bits_and(rest, four), bits_and(right16(s, 2), top));
            minima[0] = bits_and(m, six);
            minima[1] = bits_or(bits_and(right16(rest, 4), four), bits_and(right16(m, 2), top));
        }
        static HEADRACE_INLINE F8 of(const V32 (&bytes)[2], int g) {
            return floats(bits_and(right32(bytes[g / 4], each32(g % 4 * 8)), each32(255)));
        }
    };
    // What eight rows' scales are times, and their minima.
    struct Whole {
        F8 scale, least;
        HEADRACE_INLINE Whole(const std::byte* block, int eight) {
            const V32 apart = lookup(word(block, 0, eight),
                                     both16(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
            scale = floats_of_f16(zip64_low(low_half(apart), high_half(apart)));
            least = floats_of_f16(zip64_high(low_half(apart), high_half(apart)));
        }
    };
    // Words of group g's codes: of all 32 columns.
    static void words(const std::byte* block, int g, int eight, V32 (&to)[8]) {
        for (int i = 0; i < 8; ++i) {
            const V32 v = word(block, 4 + g / 2 * 8 + i, eight);
            to[i] = g % 2 == 0 ? low_nibbles(v) : high_nibbles(v);
        }
    }
    template <int kEights, int T>
    static HEADRACE_INLINE void add(const std::byte* block, int first, const FixedRow (&x)[T],
                                    int b, F8 (&sum)[2][T]) {
        F8 above[kEights][T], below[kEights][T];
#pragma GCC unroll 2
        for (int e = 0; e < kEights; ++e)
#pragma GCC unroll 3
            for (int t = 0; t < T; ++t) above[e][t] = below[e][t] = no_floats();
        const Six six[2] = {{block, first}, {block, first + kEights - 1}};
        for (int pair = 0; pair < 4; ++pair) {
            const std::byte* codes = block + (4 + pair * 8) * (kLaneRows * 4);
            const std::byte* ahead = block + kLanesAhead + pair * (2 * kGroupNbytes);
            ask_for(ahead, ahead + 2 * kGroupNbytes);
#pragma GCC unroll 2
            for (int n = 0; n < 2; ++n) {
                LaneSums part[kEights][T];
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i) {
                    V32 v[kEights];
#pragma GCC unroll 2
                    for (int e = 0; e < kEights; ++e) {
                        v[e] = word(codes, i, first + e);
                        keep(v[e]);
                        v[e] = n == 0 ? low_nibbles(v[e]) : high_nibbles(v[e]);
                    }
#pragma GCC unroll 3
                    for (int t = 0; t < T; ++t) {
                        const auto columns = LaneSums::columns(
                            x[t].bytes() + b * 512 + (pair * 2 + n) * 4 + i % 4 * 128 + i / 4 * 64);
#pragma GCC unroll 2
                        for (int e = 0; e < kEights; ++e) {
                            part[e][t].add(v[e], columns);
                            part[e][t].hold();
                        }
                    }
                }
                const int g = pair * 2 + n;
#pragma GCC unroll 2
                for (int e = 0; e < kEights; ++e) {
                    const F8 scale = Six::of(six[e].scales, g), least = Six::of(six[e].minima, g);
#pragma GCC unroll 3
                    for (int t = 0; t < T; ++t) {
                        const F8 product =
                            mul(floats(part[e][t].whole()), same(x[t].scale[b * 8 + g]));
                        above[e][t] = fma(scale, product, above[e][t]);
                        below[e][t] = fma(least, same(x[t].sum[b * 8 + g]), below[e][t]);
                    }
                }
            }
        }
#pragma GCC unroll 2
        for (int e = 0; e < kEights; ++e) {
            const Whole whole(block, first + e);
#pragma GCC unroll 3
            for (int t = 0; t < T; ++t) {
                F8& to = sum[first + e][t];
                to = fnma(whole.least, below[e][t], fma(whole.scale, above[e][t], to));
            }
        }
    }
};

}  // namespace headrace::HEADRACE_ISA
