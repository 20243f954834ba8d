// Formats of 4-bit codes for `fixed_rows` (kFoursInput, kHalvesInput).
//
// Codes that can be counted from zero stay bytes, and meet the bytes of the activations: eight
// groups of a block have a lane each. Of others, groups j and j + 4 of a block lie in the two
// halves of a vector (`Nibbles`).

namespace headrace::HEADRACE_ISA {

struct Steps {
    V32 low, high;
};
inline Steps looked_up(V32 table, V32 v) {
    return {lookup(table, low_nibbles(v)), lookup(table, high_nibbles(v))};
}

inline Nibbles iq4_steps(V32 v) {
    const Steps s = looked_up(in_both(load16(kIQ4)), v);
    return Nibbles::plain(s.low, s.high);
}

// A float for each group of a block: pair j's are in the two halves.
struct PerGroup {
    F8 of;
    template <int j>
    F8 pair() const {
        return lane_of<j>(of);
    }
};

// The products of one block for T tokens. C is a format's code for what differs: `code(j)` of a
// pair, `scales(x)`.
template <class C, int T>
HEADRACE_INLINE void add_nibbles(const C& c, const FixedRow (&x)[T], int xb, F8 (&sum)[T]) {
    decltype(c.scales(x[0].scale)) s[T];
    for (int t = 0; t < T; ++t) s[t] = c.scales(x[t].scale + xb * 8);
    F8 part[T];
    unrolled<4>([&](auto j) {
        const Nibbles n = c.pair(j);
        for (int t = 0; t < T; ++t) {
            const F8 f = floats(n.products(x[t].q + xb * 256, j));
            const F8 scale = s[t].template pair<j>();
            part[t] = j == 0 ? mul(f, scale) : fma(f, scale, part[t]);
        }
    });
    for (int t = 0; t < T; ++t) sum[t] = add(sum[t], part[t]);
}

// Groups j and j + 4, `apart` bytes from one to the next.
inline V32 two_groups(const std::byte* q, int j, int apart) {
    return load_halves(q + j * apart, q + (j + 4) * apart);
}

// 16 bytes of each of eight groups: a lane of 32 bits is a group.
struct EightGroups {
    V32 of[4];
    explicit EightGroups(const std::byte* q) {
        V32 a[4], b[4];
        for (int j = 0; j < 4; ++j) a[j] = two_groups(q, j, 16);
        for (int j = 0; j < 4; j += 2) {
            b[j] = zip32_low(a[j], a[j + 1]);
            b[j + 1] = zip32_high(a[j], a[j + 1]);
        }
        for (int j = 0; j < 2; ++j) {
            of[2 * j] = zip64_low(b[j], b[j + 2]);
            of[2 * j + 1] = zip64_high(b[j], b[j + 2]);
        }
    }
};

// The products of one block for T tokens, a lane for each group: w (code - zero).
template <int T>
HEADRACE_INLINE void add_lanes(const EightGroups& v, F8 w, F8 zero, const FixedRow (&x)[T], int xb,
                               F8 (&sum)[T]) {
    LaneSums part[T];
    unrolled<4>([&](auto i) {
        for (int n = 0; n < 2; ++n) {
            const V32 c = n == 0 ? low_nibbles(v.of[i]) : high_nibbles(v.of[i]);
            for (int t = 0; t < T; ++t)
                part[t].add(c, LaneSums::lanes(x[t].bytes() + xb * 512 + (i * 2 + n) * 64));
        }
    });
    for (int t = 0; t < T; ++t) {
        const F8 above = mul(floats(part[t].whole()), load_floats(x[t].scale + xb * 8));
        sum[t] = fma(w, fnma(zero, load_floats(x[t].sum + xb * 8), above), sum[t]);
    }
}

template <bool kBF16Scales>
struct FixedInt4 {
    static constexpr Input kInput = kFoursInput;
    static constexpr bool kOffset = false, kTails = true;
    static constexpr int kBlockNbytes = 24 + 128;
    const std::byte *scale, *zero, *q;  // no zero points: all are 8
    int shift;                          // 2^shift groups of 32 share a scale
    FixedInt4(const std::byte* tile, const Tiles& t) : scale(tile) {
        const int groups = t.columns / group_of(t.format);
        zero = has_zeros(t.format) ? tile + 2 * groups : nullptr;
        q = tile + groups * (zero != nullptr ? 3 : 2);
        shift = std::countr_zero(static_cast<unsigned>(group_of(t.format) / 32));
    }
    static bool fits(const Tiles& t) {
        return group_of(t.format) >= 32 &&
               std::has_single_bit(static_cast<unsigned>(group_of(t.format)));
    }
    FixedInt4 tail(std::byte* copy, int b, int groups) const {
        FixedInt4 last = *this;
        last.scale = copy;
        last.q = copy + 24;
        for (int g = 0; g < groups; ++g) {
            const int from = (b * 8 + g) >> shift;
            std::memcpy(copy + 2 * g, scale + 2 * from, 2);
            if (zero != nullptr) copy[16 + g] = zero[from];
        }
        if (zero != nullptr) last.zero = copy + 16;
        last.shift = 0;
        std::memcpy(copy + 24, q + b * 128, static_cast<std::size_t>(groups) * 16);
        return last;
    }
    // Which of the values at a block's first is each group's.
    V16 places() const {
        static constexpr std::int8_t kPlaces[4][8] = {
            {0, 1, 2, 3, 4, 5, 6, 7}, {0, 0, 1, 1, 2, 2, 3, 3}, {0, 0, 0, 0, 1, 1, 1, 1}, {}};
        return load_low8(kPlaces[std::min(shift, 3)]);
    }
    template <int T>
    HEADRACE_INLINE void add(int b, const FixedRow (&x)[T], int xb, F8 (&sum)[T], F8 (&)[T]) const {
        const V16 at = places();
        const V16 pairs = zip8_low(add8(at, at), add8(add8(at, at), small8(1)));
        const int first = (b * 8) >> shift;
        // Bytes behind the scales are zero points or codes of the same row.
        const V16 bits = lookup(load16(scale + first * 2), pairs);
        const F8 w =
            kBF16Scales ? as_floats(left32(words_of_halves(bits), 16)) : floats_of_f16(bits);
        F8 zeros = same(8.0f);
        if (zero != nullptr) {
            const V16 eight = load_low8(zero + first);
            zeros = floats(words_of_bytes(lookup(eight, at)));
        }
        add_lanes(EightGroups(q + b * 128), w, zeros, x, xb, sum);
    }
    static constexpr int kStreamNbytes = 128;
    const std::byte* stream(int b) const { return q + b * kStreamNbytes; }
    float whole() const { return 1.0f; }
};

// ggml's blocks of 32: a scale before each, which are gathered.
template <int kNbytes>
struct FixedBlocks32 {
    static constexpr Input kInput = kHalvesInput;
    static constexpr bool kTails = true;
    static constexpr int kBlockNbytes = 8 * kNbytes;
    const std::byte* blocks;
    FixedBlocks32(const std::byte* tile, const Tiles&) : blocks(tile) {}
    explicit FixedBlocks32(const std::byte* tile) : blocks(tile) {}
    static bool fits(const Tiles&) { return true; }
    void copy_tail(std::byte* copy, int b, int groups) const {
        std::memcpy(copy, blocks + b * kBlockNbytes, static_cast<std::size_t>(groups) * kNbytes);
    }
    const std::byte* block(int b) const { return blocks + b * kBlockNbytes; }
    static constexpr int kStreamNbytes = kBlockNbytes;
    const std::byte* stream(int b) const { return block(b); }
    float whole() const { return 1.0f; }
};

template <Nibbles (*kCodes)(V32), int kNbytes>
struct Block32 {
    const std::byte* q;
    F8 w;
    Nibbles pair(int j) const { return kCodes(two_groups(q, j, kNbytes)); }
    PerGroup scales(const float* x) const { return {mul(w, load_floats(x))}; }
};

struct FixedIQ4_NL : FixedBlocks32<18> {
    static constexpr bool kOffset = false;
    using FixedBlocks32::FixedBlocks32;
    FixedIQ4_NL tail(std::byte* copy, int b, int groups) const {
        return copy_tail(copy, b, groups), FixedIQ4_NL(copy);
    }
    template <int T>
    HEADRACE_INLINE void add(int b, const FixedRow (&x)[T], int xb, F8 (&sum)[T], F8 (&)[T]) const {
        add_nibbles(
            Block32<iq4_steps, 18>{block(b) + 2, floats_of_f16(gathered_halves<18>(block(b)))}, x,
            xb, sum);
    }
};

}  // namespace headrace::HEADRACE_ISA
