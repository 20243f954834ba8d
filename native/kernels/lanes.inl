// Q4_0, Q8_0 and MXFP4: tiles whose 16 rows lie in lanes (`is_laned`).
//
// A group is 32 columns of a tile: the rows' scales, then words of four columns, of every row one.
// Activations meet all rows of a vector at once, and sums of a group are those of rows: nothing is
// put in order, and nothing summed up across lanes.

namespace headrace::HEADRACE_ISA {

// What formats of a group share: kHead bytes of a scale, kCodes of codes for each row. `eight` is
// 0 or 1: which rows of the tile.
template <int kHead, int kCodes>
struct Lanes {
    static constexpr bool kHalves = false, kOffset = false;  // as panels take them
    static constexpr int kGroupNbytes = kLaneRows * (kHead + kCodes);

    static const std::byte* group(const Tiles& t, int row, int g) {
        return t.tile(row) + static_cast<std::size_t>(g) * kGroupNbytes;
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
    static HEADRACE_INLINE F8 scales(const std::byte* group, int eight) {
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
// many.
template <class F, class C, int kHead>
struct LanesOfNibbles : Lanes<kHead, 16> {
    static constexpr Input kInput = kHalvesInput;
    // One that does more from two, if asked ahead: 20 to 30%.
    static constexpr int kStreams = 2;
    static constexpr bool kAsksAhead = true;
    using Base = Lanes<kHead, 16>;
    static void words(const std::byte* group, int eight, V32 (&to)[8]) {
        for (int i = 0; i < 4; ++i) {
            const V32 v = Base::word(group, i, eight);
            to[i] = F::code(low_nibbles(v));
            to[4 + i] = F::code(high_nibbles(v));
        }
    }
    static V32 codes(const std::byte* group, int r) {
        std::byte q[16];
        gather_codes<kHead, 16>(group, r, q);
        return F::code(nibble_halves(load16(q)));
    }
    template <int kEights, int T>
    static HEADRACE_INLINE void add(const std::byte* group, int first, const FixedRow (&x)[T],
                                    int g, F8 (&sum)[2][T]) {
        constexpr bool kTwice = C::kWide && LaneSums::kNarrow;
        LaneSums part[kEights][T];
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
                        part[e][t].add(C::of(n == 0 ? low_nibbles(v[e]) : high_nibbles(v[e])),
                                       columns);
                        part[e][t].hold();
                    }
                }
            if constexpr (kTwice)
                if (i == 1)
                    for (int e = 0; e < kEights; ++e)
                        for (int t = 0; t < T; ++t) {
                            half[e][t] = part[e][t].whole();
                            part[e][t] = {};
                        }
        }
#pragma GCC unroll 2
        for (int e = 0; e < kEights; ++e) {
            const F8 w = F::scales(group, first + e);
#pragma GCC unroll 3
            for (int t = 0; t < T; ++t) {
                V32 whole = part[e][t].whole();
                if constexpr (kTwice) whole = add32(half[e][t], whole);
                const F8 above = mul(floats(whole), same(x[t].scale[g]));
                sum[first + e][t] =
                    fma(w, fnma(same(F::kZero), same(x[t].sum[g]), above), sum[first + e][t]);
            }
        }
    }
};

struct LanesQ4_0 : LanesOfNibbles<LanesQ4_0, PlainCodes, 2> {
    static constexpr float kZero = 8.0f;
    static HEADRACE_INLINE F8 scales(const std::byte* group, int eight) {
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
    static HEADRACE_INLINE F8 scales(const std::byte* group, int eight) {
        const V32 e = words_of_bytes(load_low8(group + eight * 8));
        return mul(e8m0_eight(e), same(0.5f));
    }
    static V32 code(V32 nibbles) { return lookup(in_both(e2m1_twice()), nibbles); }
};

inline constexpr int kLanesAhead = 1536;

// S tiles, `apart` tiles from each other, with T tokens.
template <class F, int S, int T>
inline void lanes_tiles(const Dot& d, const Tiles& tiles, const FixedRow (&x)[T], int tile,
                        int apart) {
    const std::byte* from[S];
    F8 sum[S][2][T];
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s) {
        from[s] = tiles.tile((tile + s * apart) * kLaneRows);
#pragma GCC unroll 3
        for (int t = 0; t < T; ++t) sum[s][0][t] = sum[s][1][t] = no_floats();
    }
    const int groups = tiles.columns / 32;
    for (int g = 0; g < groups; ++g)
#pragma GCC unroll 4
        for (int s = 0; s < S; ++s) {
            if constexpr (F::kAsksAhead)
                ask_for(from[s] + kLanesAhead, from[s] + kLanesAhead + F::kGroupNbytes);
            if constexpr (T == 1) {
                F::template add<2>(from[s], 0, x, g, sum[s]);
            } else {
                F::template add<1>(from[s], 0, x, g, sum[s]);
                F::template add<1>(from[s], 1, x, g, sum[s]);
            }
            from[s] += F::kGroupNbytes;
        }
    for (int s = 0; s < S; ++s)
        for (int t = 0; t < T; ++t) {
            const int row = (tile + s * apart) * kLaneRows;
            float sums[kLaneRows];
            store_floats(sums, sum[s][0][t]);
            store_floats(sums + 8, sum[s][1][t]);
            std::memcpy(
                d.out + static_cast<std::size_t>(t) * d.out_stride + row, sums,
                static_cast<std::size_t>(std::min(kLaneRows, d.rows - row)) * sizeof(float));
        }
}

// Tiles from `tile` on: S streams as long as there are as many, then half of them. Nobody has asked
// for where they begin.
template <class F, int S, int T>
inline void lanes_streams(const Dot& d, const Tiles& tiles, const FixedRow (&x)[T], int tile,
                          int count) {
    const int apart = count / S;
    for (int s = 0; s < S && apart > 0; ++s) {
        const std::byte* begin = tiles.tile((tile + s * apart) * kLaneRows);
        ask_for(begin, begin + kLanesAhead);
    }
    for (int i = 0; i < apart; ++i) lanes_tiles<F, S, T>(d, tiles, x, tile + i, apart);
    if constexpr (S > 1)
        lanes_streams<F, S / 2, T>(d, tiles, x, tile + apart * S, count - apart * S);
}

template <class F, int T>
inline void lanes_run_of(const Dot& d) {
    FixedRow x[T];
    for (int t = 0; t < T; ++t) x[t] = {d.x[t], d.columns};
    lanes_streams<F, T == 1 ? F::kStreams : 1, T>(d, {d.w, d.w_stride, d.columns, d.format}, x, 0,
                                                  (d.rows + kLaneRows - 1) / kLaneRows);
}

// As `unpack_codes`.
template <class F>
inline void unpack_lanes(const Tiles& t, int row, float* to) {
    const int r = row % kLaneRows;
    for (int g = 0; g < t.columns / 32; ++g, to += 32) {
        const std::byte* group = F::group(t, row, g);
        float scales[8];
        store_floats(scales, F::scales(group, r / 8));
        const V32 codes = F::codes(group, r);
        const F8 s = same(scales[r % 8]);
        for (const V16 q : {low_half(codes), high_half(codes)}) {
            store_floats(to, mul(floats_of_eight(q), s));
            store_floats(to + 8, mul(floats_of_eight(zip64_high(q, q)), s));
            to += 16;
        }
        to -= 32;
    }
}

inline void put_codes(KernelTable& t) {
    put_unpacked<unpack_codes<CodesNVFP4, unpack_nvfp4>>(t, kNVFP4);
    put_unpacked<unpack_codes<CodesInt4<false>, unpack_int4<false>>>(t, kInt4F16);
    put_unpacked<unpack_codes<CodesInt4<true>, unpack_int4<true>>>(t, kInt4BF16);
    put_unpacked<unpack_lanes<LanesQ4_0>>(t, kQ4_0);
    put_unpacked<unpack_codes<CodesQ5_0, unpack_q5_0>>(t, kQ5_0);
    put_unpacked<unpack_lanes<LanesQ8_0>>(t, kQ8_0);
    put_unpacked<unpack_codes<CodesQ2_K, unpack_q2_k>>(t, kQ2_K);
    put_unpacked<unpack_codes<CodesQ3_K, unpack_q3_k>>(t, kQ3_K);
    put_unpacked<unpack_codes<CodesK<144, false>, unpack_q4_k>>(t, kQ4_K);
    put_unpacked<unpack_codes<CodesK<176, true>, unpack_q5_k>>(t, kQ5_K);
    put_unpacked<unpack_codes<CodesQ6_K, unpack_q6_k>>(t, kQ6_K);
    put_unpacked<unpack_codes<CodesIQ4_NL, unpack_iq4_nl>>(t, kIQ4_NL);
    put_unpacked<unpack_codes<CodesIQ4_XS, unpack_iq4_xs>>(t, kIQ4_XS);
    put_unpacked<unpack_lanes<LanesMXFP4>>(t, kGgmlMXFP4);
}

}  // namespace headrace::HEADRACE_ISA
