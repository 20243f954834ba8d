// Packed rows as integers: 32 columns at a time, in order, with the floats they stand for.
//
// A reader C of a row has `codes(g)`, eight bits a column; `scale(g, half)` of its 16 columns; and
// where kOffset `less(g)`, what is taken off each column after that. kHalves: the halves differ.

namespace headrace::HEADRACE_ISA {

inline V16 e2m1_twice() { return bytes16(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12); }
inline V16 iq4_table() { return load16(kIQ4); }

// Low nibbles are the even columns.
inline V32 nibble_pairs(V16 v) {
    const V16 low = low_nibbles(v), high = high_nibbles(v);
    return put_together(zip8_low(low, high), zip8_high(low, high));
}
// Low nibbles are the first 16 columns.
inline V32 nibble_halves(V16 v) { return put_together(low_nibbles(v), high_nibbles(v)); }

inline V32 stepped(V16 table, V32 codes) { return lookup(in_both(table), codes); }

inline F8 floats_of_eight(V16 bytes) { return floats(words_of_signed(bytes)); }

// Types whose 16 columns have a minimum of their own.
template <class C>
inline constexpr bool half_offsets = C::kHalves && C::kOffset;

// The scales of eight groups of a row, from a multiple of eight on; a reader that has them at once
// says so.
template <class C>
inline void scales_of_eight(const C& c, int g, int groups, float (&scale)[2][8],
                            float (&less)[2][8]) {
    if constexpr (requires { c.eight(g, scale, less); })
        return c.eight(g, scale, less);
    else
        for (int i = 0; i < groups; ++i) {
            scale[0][i] = c.scale(g + i, 0);
            if constexpr (C::kHalves) scale[1][i] = c.scale(g + i, 1);
            if constexpr (requires { c.less(g); }) less[0][i] = c.less(g + i);
        }
}

template <bool kBF16Scales>
struct CodesInt4 {
    static constexpr bool kHalves = false, kOffset = true;
    const std::byte *scales, *zeros, *q;
    int per;  // groups of 32 that share a scale
    CodesInt4(const std::byte* tile, const Tiles& t) : scales(tile) {
        const int groups = t.columns / group_of(t.format);
        zeros = has_zeros(t.format) ? tile + 2 * groups : nullptr;
        q = tile + groups * (zeros != nullptr ? 3 : 2);
        per = group_of(t.format) / 32;
    }
    static bool fits(const Tiles& t) { return group_of(t.format) % 32 == 0; }
    const std::byte* at(int g) const { return q + g * 16; }
    V32 codes(int g) const { return nibble_pairs(load16(at(g))); }
    float scale(int g, int) const {
        const std::byte* p = scales + g / per * 2;
        return kBF16Scales ? float_from_bf16(load_as<std::uint16_t>(p)) : half_fast(p);
    }
    float zero(int g) const {
        return static_cast<float>(zeros != nullptr ? byte_at(zeros, g / per) : 8);
    }
    float less(int g) const { return scale(g, 0) * zero(g); }
};

template <int kNbytes>
struct CodesBlocks32 {
    static constexpr bool kHalves = false, kOffset = false;
    const std::byte* blocks;
    CodesBlocks32(const std::byte* tile, const Tiles&) : blocks(tile) {}
    static bool fits(const Tiles&) { return true; }
    const std::byte* at(int g) const { return blocks + g * kNbytes; }
    float scale(int g, int) const { return half_fast(at(g)); }
};

// 32 columns of Q5_0: a fifth bit that is not set is 16 less.
inline V32 q5_0_codes(const std::byte* b) {
    const V32 bits = lookup(each32(load_as<std::int32_t>(b + 2)),
                            put_together(bytes16(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                                         bytes16(2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3)));
    const V32 one = each64(0x8040201008040201u);
    const V32 unset = equal8(bits_and(bits, one), no_bits());
    return bits_or(nibble_halves(load16(b + 6)), bits_and(unset, each8(0xf0)));
}

struct CodesQ5_0 : CodesBlocks32<22> {
    using CodesBlocks32::CodesBlocks32;
    V32 codes(int g) const { return q5_0_codes(at(g)); }
};

struct CodesIQ4_NL : CodesBlocks32<18> {
    using CodesBlocks32::CodesBlocks32;
    V32 codes(int g) const { return stepped(iq4_table(), nibble_halves(load16(at(g) + 2))); }
};

// ggml's blocks of 256 columns.
template <int kNbytes>
struct CodesBlocks256 {
    const std::byte* blocks;
    CodesBlocks256(const std::byte* tile, const Tiles&) : blocks(tile) {}
    static bool fits(const Tiles&) { return true; }
    const std::byte* block(int g) const { return blocks + g / 8 * kNbytes; }
    const std::byte* at(int g) const { return blocks + g * (kNbytes / 8); }
};

inline V32 bits_of(V32 v, int shift, int mask) {
    return bits_and(right16_by(v, shift), each8(mask));
}

inline F8 floats_of_bytes(std::uint32_t first, std::uint32_t second) {
    const std::uint64_t bytes = first | static_cast<std::uint64_t>(second) << 32;
    return floats(words_of_bytes(low8(bytes)));
}

// Sixteen bytes, one for each 16 columns of a block, times d: of the first halves, of the second.
inline void put_sixteen(V16 s, float d, float (&to)[2][8]) {
    const V16 in_halves = bytes16(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    s = lookup(s, in_halves);
    const F8 factor = same(d);
    store_floats(to[0], mul(factor, floats_of_eight(s)));
    store_floats(to[1], mul(factor, floats_of_eight(zip64_high(s, s))));
}

// The 6-bit scales of a block of Q3_K less 32: four bits of each in eight bytes, two in four more.
inline V16 q3_k_scales(const std::byte* b) {
    const V16 low = load_low8(b + 96);
    const V16 fours = low_nibbles(zip64_low(low, right16(low, 4)));
    const V16 twos = right32(small32(load_as<std::int32_t>(b + 104)), words4(0, 2, 4, 6));
    const V16 high = left16(bits_and(twos, small8(3)), 4);
    return sub8(bits_or(fours, high), small8(32));
}

// The scales of a block of IQ4_XS: four bits of each, two more, less 32.
inline F8 iq4_xs_scales(const std::byte* b) {
    const V32 low =
        right32(each32(load_as<std::int32_t>(b + 4)), words8(0, 4, 8, 12, 16, 20, 24, 28));
    const V32 high =
        right32(each32(load_as<std::uint16_t>(b + 2)), words8(0, 2, 4, 6, 8, 10, 12, 14));
    const V32 six = bits_or(bits_and(low, each32(15)), left32(bits_and(high, each32(3)), 4));
    const F8 s = floats(sub32(six, each32(32)));
    return mul(same(half_fast(b)), s);
}

// Q4_K and Q5_K.
template <int kNbytes, bool kFifth>
struct CodesK : CodesBlocks256<kNbytes> {
    static constexpr bool kHalves = false, kOffset = true;
    using CodesBlocks256<kNbytes>::CodesBlocks256;
    V32 codes(int g) const {
        const std::byte* b = this->block(g);
        const V32 v = bits_of(load32(b + (kFifth ? 48 : 16) + g % 8 / 2 * 32), g % 2 * 4, 15);
        if constexpr (!kFifth) return v;
        return bits_or(v, left16(bits_of(load32(b + 16), g % 8, 1), 4));
    }
    // As `scale_min`, of the eight groups of a block: six bits each.
    void eight(int g, float (&scale)[2][8], float (&less)[2][8]) const {
        const std::byte* b = this->block(g);
        const auto s = load_as<std::uint32_t>(b + 4), m = load_as<std::uint32_t>(b + 8);
        const auto rest = load_as<std::uint32_t>(b + 12);
        const std::uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, top = 0x30303030;
        const F8 scales = floats_of_bytes(s & six, (rest & four) | (s >> 2 & top));
        const F8 minima = floats_of_bytes(m & six, (rest >> 4 & four) | (m >> 2 & top));
        store_floats(scale[0], mul(same(half_fast(b)), scales));
        store_floats(less[0], mul(same(half_fast(b + 2)), minima));
    }
};

struct CodesQ6_K : CodesBlocks256<210> {
    static constexpr bool kHalves = true, kOffset = false;
    using CodesBlocks256::CodesBlocks256;
    V32 codes(int g) const {
        const std::byte* b = block(g);
        const int half = g % 8 / 4, quarter = g % 4;
        const V32 low = bits_of(load32(b + half * 64 + quarter % 2 * 32), quarter / 2 * 4, 15);
        const V32 high = bits_of(load32(b + 128 + half * 32), quarter * 2, 3);
        return sub8(bits_or(low, left16(high, 4)), each8(32));
    }
    void eight(int g, float (&scale)[2][8], float (&)[2][8]) const {
        put_sixteen(load16(block(g) + 192), half_fast(block(g) + 208), scale);
    }
};

struct CodesQ3_K : CodesBlocks256<110> {
    static constexpr bool kHalves = true, kOffset = false;
    using CodesBlocks256::CodesBlocks256;
    V32 codes(int g) const {
        const std::byte* b = block(g);
        const V32 low = bits_of(load32(b + 32 + g % 8 / 4 * 32), g % 4 * 2, 3);
        const V32 third = bits_of(load32(b), g % 8, 1);
        return sub8(bits_or(low, left16(third, 2)), each8(4));
    }
    void eight(int g, float (&scale)[2][8], float (&)[2][8]) const {
        put_sixteen(q3_k_scales(block(g)), half_fast(block(g) + 108), scale);
    }
};

struct CodesIQ4_XS : CodesBlocks256<136> {
    static constexpr bool kHalves = false, kOffset = false;
    using CodesBlocks256::CodesBlocks256;
    V32 codes(int g) const {
        return stepped(iq4_table(), nibble_halves(load16(block(g) + 8 + g % 8 * 16)));
    }
    void eight(int g, float (&scale)[2][8], float (&)[2][8]) const {
        store_floats(scale[0], iq4_xs_scales(block(g)));
    }
};

// Two bits a column; 16 columns share a 4-bit scale and a 4-bit minimum.
struct CodesQ2_K : CodesBlocks256<84> {
    static constexpr bool kHalves = true, kOffset = true;
    using CodesBlocks256::CodesBlocks256;
    V32 codes(int g) const { return bits_of(load32(block(g) + 16 + g % 8 / 4 * 32), g % 4 * 2, 3); }
    void eight(int g, float (&scale)[2][8], float (&less)[2][8]) const {
        const V16 packed = load16(block(g));
        put_sixteen(low_nibbles(packed), half_fast(block(g) + 80), scale);
        put_sixteen(high_nibbles(packed), half_fast(block(g) + 82), less);
    }
};

// Bytes as floats, in the order of operations of the formats' own decoders.
template <class C>
inline void unpack_groups(const C& c, int groups, float* to) {
    float scale[2][8], less[2][8];
    for (int g = 0; g < groups; ++g, to += 32) {
        if (g % 8 == 0) scales_of_eight(c, g, std::min(8, groups - g), scale, less);
        const V32 codes = c.codes(g);
        const V16 q[2] = {low_half(codes), high_half(codes)};
        for (int half = 0; half < 2; ++half) {
            const F8 s = same(scale[C::kHalves ? half : 0][g % 8]);
            const V16 q16[2] = {q[half], zip64_high(q[half], q[half])};
            for (int i = 0; i < 2; ++i) {
                F8 v = floats_of_eight(q16[i]);
                if constexpr (requires { c.zero(g); })
                    v = mul(sub(v, same(c.zero(g))), s);
                else if constexpr (C::kOffset)
                    v = sub(mul(v, s), same(less[half_offsets<C> ? half : 0][g % 8]));
                else
                    v = mul(v, s);
                store_floats(to + half * 16 + i * 8, v);
            }
        }
    }
}

template <class C, void (*kPlain)(const Tiles&, int, float*)>
inline void unpack_codes(const Tiles& t, int row, float* to) {
    if (!C::fits(t)) return kPlain(t, row, to);
    unpack_groups(C(t.tile(row), t), t.columns / 32, to);
}

}  // namespace headrace::HEADRACE_ISA
