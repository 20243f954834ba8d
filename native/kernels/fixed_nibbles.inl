// Formats of 4-bit codes for `fixed_rows` (kFoursInput, kHalvesInput).
//
// Codes that can be counted from zero stay bytes, and meet the bytes of the activations: eight
// groups of a block have a lane each. Of others, groups j and j + 4 of a block lie in the two
// halves of a vector and come apart into 16-bit lanes; the integers of the activations have that
// order.

namespace headrace::HEADRACE_ISA {

struct Nibbles {
    __m256i of[4];
};

struct Steps {
    __m256i low, high;
};
inline Steps looked_up(__m256i table, __m256i v) {
    const __m256i low = _mm256_set1_epi8(15);
    return {_mm256_shuffle_epi8(table, _mm256_and_si256(v, low)),
            _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(v, 4), low))};
}

// E2M1 times 512: a step in the upper byte of its lane.
inline Nibbles e2m1_steps(__m256i v) {
    const __m256i table = _mm256_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12,
                                           0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m256i upper = _mm256_set1_epi16(static_cast<short>(0xff00));
    const Steps s = looked_up(table, v);
    return {{_mm256_slli_epi16(s.low, 8), _mm256_slli_epi16(s.high, 8),
             _mm256_and_si256(s.low, upper), _mm256_and_si256(s.high, upper)}};
}

inline Nibbles iq4_steps(__m256i v) {
    const Steps s = looked_up(_mm256_broadcastsi128_si256(load16(kIQ4)), v);
    return {{_mm256_srai_epi16(_mm256_slli_epi16(s.low, 8), 8),
             _mm256_srai_epi16(_mm256_slli_epi16(s.high, 8), 8), _mm256_srai_epi16(s.low, 8),
             _mm256_srai_epi16(s.high, 8)}};
}

// A float for each group of a block: pair j's are in the two halves.
struct PerGroup {
    __m256 of;
    template <int j>
    __m256 pair() const {
        return _mm256_permute_ps(of, j * 0x55);
    }
};

// The products of one block for T tokens. C is a format's code for what differs: `code(j)` of a
// pair, `scales(x)`.
template <class C, int T>
HEADRACE_INLINE void add_nibbles(const C& c, const FixedRow (&x)[T], int xb, __m256 (&sum)[T]) {
    decltype(c.scales(x[0].scale)) s[T];
    for (int t = 0; t < T; ++t) s[t] = c.scales(x[t].scale + xb * 8);
    __m256 part[T];
    unrolled<4>([&](auto j) {
        const Nibbles n = c.pair(j);
        for (int t = 0; t < T; ++t) {
            const std::int16_t* q = x[t].q + xb * 256 + j * 64;
            const __m256i p =
                _mm256_add_epi32(_mm256_add_epi32(_mm256_madd_epi16(n.of[0], load_q(q)),
                                                  _mm256_madd_epi16(n.of[1], load_q(q + 16))),
                                 _mm256_add_epi32(_mm256_madd_epi16(n.of[2], load_q(q + 32)),
                                                  _mm256_madd_epi16(n.of[3], load_q(q + 48))));
            const __m256 f = _mm256_cvtepi32_ps(p), scale = s[t].template pair<j>();
            part[t] = j == 0 ? _mm256_mul_ps(f, scale) : _mm256_fmadd_ps(f, scale, part[t]);
        }
    });
    for (int t = 0; t < T; ++t) sum[t] = _mm256_add_ps(sum[t], part[t]);
}

// Groups j and j + 4, `apart` bytes from one to the next.
inline __m256i two_groups(const std::byte* q, int j, int apart) {
    // A load to both halves and a blend cost a third of an insertion on Zen 3.
    return _mm256_blend_epi32(_mm256_castsi128_si256(load16(q + j * apart)),
                              _mm256_broadcastsi128_si256(load16(q + (j + 4) * apart)), 0xf0);
}

// 16 bytes of each of eight groups, `apart` from one to the next: a lane of 32 bits is a group.
struct EightGroups {
    __m256i of[4];
    EightGroups(const std::byte* q, int apart) {
        __m256i a[4], b[4];
        for (int j = 0; j < 4; ++j) a[j] = two_groups(q, j, apart);
        for (int j = 0; j < 4; j += 2) {
            b[j] = _mm256_unpacklo_epi32(a[j], a[j + 1]);
            b[j + 1] = _mm256_unpackhi_epi32(a[j], a[j + 1]);
        }
        for (int j = 0; j < 2; ++j) {
            of[2 * j] = _mm256_unpacklo_epi64(b[j], b[j + 2]);
            of[2 * j + 1] = _mm256_unpackhi_epi64(b[j], b[j + 2]);
        }
    }
};

// Codes that are what they say, and E2M1: twice its value and 12 besides, so that none is negative.
struct PlainCodes {
    static constexpr bool kWide = false;
    static __m256i of(__m256i nibbles) { return nibbles; }
};
struct StepsAbove {
    static constexpr bool kWide = true;  // eight products of two overflow 16 bits, four do not
    static __m256i of(__m256i nibbles) {
        return _mm256_shuffle_epi8(
            _mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0, 12, 13, 14,
                             15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0),
            nibbles);
    }
};

// The products of one block for T tokens, a lane for each group, whose scales are w.
template <class C, int T>
HEADRACE_INLINE void add_lanes(const EightGroups& v, __m256 w, const FixedRow (&x)[T], int xb,
                               __m256 (&sum)[T]) {
    __m256i part[T][2], total[T];
    const auto whole = [&](int t) {
        return _mm256_add_epi32(_mm256_madd_epi16(part[t][0], _mm256_set1_epi16(256)),
                                _mm256_madd_epi16(part[t][1], _mm256_set1_epi16(1)));
    };
    unrolled<4>([&](auto i) {
        for (int n = 0; n < 2; ++n) {
            const __m256i c = C::of(_mm256_and_si256(
                n == 0 ? v.of[i] : _mm256_srli_epi16(v.of[i], 4), _mm256_set1_epi8(15)));
            const bool begins = n == 0 && (i == 0 || (C::kWide && i == 2));
            for (int t = 0; t < T; ++t)
                for (int k = 0; k < 2; ++k) {
                    const __m256i p = _mm256_maddubs_epi16(
                        c, load32(x[t].bytes() + xb * 512 + (i * 2 + n) * 64 + k * 32));
                    part[t][k] = begins ? p : _mm256_add_epi16(part[t][k], p);
                }
        }
        if constexpr (C::kWide && i == 1)
            for (int t = 0; t < T; ++t) total[t] = whole(t);
    });
    for (int t = 0; t < T; ++t) {
        total[t] = C::kWide ? _mm256_add_epi32(total[t], whole(t)) : whole(t);
        const __m256 scale = _mm256_mul_ps(w, _mm256_loadu_ps(x[t].scale + xb * 8));
        sum[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total[t]), scale, sum[t]);
    }
}

// What all codes of a block are too large by.
template <int T>
HEADRACE_INLINE void take_off(__m256 offset, const FixedRow (&x)[T], int xb, __m256 (&less)[T]) {
    for (int t = 0; t < T; ++t)
        less[t] = _mm256_fmadd_ps(offset, _mm256_loadu_ps(x[t].sum + xb * 8), less[t]);
}

// E2M1 with a scale for each group: in halves, as the offset is.
template <int T>
HEADRACE_INLINE void add_steps(const EightGroups& v, __m256 w, const FixedRow (&x)[T], int xb,
                               __m256 (&sum)[T], __m256 (&less)[T]) {
    w = _mm256_mul_ps(w, _mm256_set1_ps(0.5f));
    add_lanes<StepsAbove>(v, w, x, xb, sum);
    take_off(_mm256_mul_ps(w, _mm256_set1_ps(12.0f)), x, xb, less);
}

// Eight E8M0 as floats; 0 and 255 are not what their bits say.
inline __m256 e8m0_eight(std::uint64_t bytes) {
    const __m256i e = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<std::int64_t>(bytes)));
    const __m256i next =
        _mm256_and_si256(_mm256_add_epi32(e, _mm256_set1_epi32(1)), _mm256_set1_epi32(255));
    const __m256i odd = _mm256_and_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(2), next),
                                         _mm256_set1_epi32(0x00400000));
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(e, 23), odd));
}

struct FixedMXFP4 {
    static constexpr Input kInput = kFoursInput;
    static constexpr bool kOffset = true, kTails = true;
    static constexpr int kBlockNbytes = 8 + 128;
    const std::byte *scale, *q;
    FixedMXFP4(const std::byte* s, const std::byte* codes) : scale(s), q(codes) {}
    FixedMXFP4(const std::byte* tile, const Tiles& t)
        : scale(tile), q(tile + t.columns / group_of(t.format)) {}
    static bool fits(const Tiles& t) { return group_of(t.format) == 32; }
    FixedMXFP4 tail(std::byte* copy, int b, int groups) const {
        const auto n = static_cast<std::size_t>(groups);
        std::memcpy(copy, scale + b * 8, n);
        std::memcpy(copy + 8, q + b * 128, n * 16);
        return {copy, copy + 8};
    }
    template <int T>
    HEADRACE_INLINE void add(int b, const FixedRow (&x)[T], int xb, __m256 (&sum)[T],
                             __m256 (&less)[T]) const {
        add_steps(EightGroups(q + b * 128, 16), e8m0_eight(load_as<std::uint64_t>(scale + b * 8)),
                  x, xb, sum, less);
    }
    static constexpr int kStreamNbytes = 128;
    const std::byte* stream(int b) const { return q + b * kStreamNbytes; }
    float whole() const { return 1.0f; }
};

// Sixteen E4M3 times 2^-8: as float16 bits. A NaN's stay one.
inline __m256i e4m3_halves(__m128i codes) {
    const __m256i up = _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8);
    const __m256i bits = _mm256_set1_epi16(0x3f80);
    const __m256i h =
        _mm256_and_si256(_mm256_srai_epi16(up, 1), _mm256_set1_epi16(static_cast<short>(0xbf80)));
    const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(h, bits), bits);
    return _mm256_or_si256(h, _mm256_and_si256(nan, _mm256_set1_epi16(0x7f80)));
}

// A float for every 16 columns: those of groups 0, 1, 4 and 5, and of 2, 3, 6 and 7.
struct PerHalfGroup {
    __m256 first, second;
    template <int j>
    __m256 pair() const {
        const __m256 of = j < 2 ? first : second;
        return j % 2 == 0 ? _mm256_unpacklo_ps(of, of) : _mm256_unpackhi_ps(of, of);
    }
};

struct FixedNVFP4 {
    static constexpr Input kInput = kFoursInput;
    static constexpr bool kOffset = false, kTails = true;
    static constexpr int kBlockNbytes = 16 + 128;
    const std::byte *scale, *q;
    float tensor;
    FixedNVFP4(const std::byte* s, const std::byte* codes, float t)
        : scale(s), q(codes), tensor(t) {}
    FixedNVFP4(const std::byte* w, const Tiles& t)
        : scale(w + sizeof(float)), q(scale + t.columns / 16), tensor(load_as<float>(w)) {}
    static bool fits(const Tiles& t) { return group_of(t.format) == 16 && t.columns % 32 == 0; }
    FixedNVFP4 tail(std::byte* copy, int b, int groups) const {
        const auto n = static_cast<std::size_t>(groups);
        std::memcpy(copy, scale + b * 16, n * 2);
        std::memcpy(copy + 16, q + b * 128, n * 16);
        return {copy, copy + 16, tensor};
    }
    struct Block {
        const std::byte* q;
        __m256 first, second;
        Nibbles pair(int j) const { return e2m1_steps(two_groups(q, j, 16)); }
        PerHalfGroup scales(const float* from) const {
            const __m256 x = _mm256_loadu_ps(from);
            return {_mm256_mul_ps(first, _mm256_unpacklo_ps(x, x)),
                    _mm256_mul_ps(second, _mm256_unpackhi_ps(x, x))};
        }
    };
    template <int T>
    HEADRACE_INLINE void add(int b, const FixedRow (&x)[T], int xb, __m256 (&sum)[T],
                             __m256 (&)[T]) const {
        const __m128i apart = _mm_setr_epi8(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15);
        const __m256i s = e4m3_halves(_mm_shuffle_epi8(load16(scale + b * 16), apart));
        add_nibbles(Block{q + b * 128, _mm256_cvtph_ps(low_half(s)), _mm256_cvtph_ps(high_half(s))},
                    x, xb, sum);
    }
    static constexpr int kStreamNbytes = 128;
    const std::byte* stream(int b) const { return q + b * kStreamNbytes; }
    float whole() const { return 0.5f * tensor; }  // 2^-9 of a code times 2^8 of a scale
};

template <bool kBF16Scales>
struct FixedInt4 {
    static constexpr Input kInput = kFoursInput;
    static constexpr bool kOffset = true, kTails = true;
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
    __m128i places() const {
        static constexpr std::int8_t kPlaces[4][8] = {
            {0, 1, 2, 3, 4, 5, 6, 7}, {0, 0, 1, 1, 2, 2, 3, 3}, {0, 0, 0, 0, 1, 1, 1, 1}, {}};
        return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kPlaces[std::min(shift, 3)]));
    }
    template <int T>
    HEADRACE_INLINE void add(int b, const FixedRow (&x)[T], int xb, __m256 (&sum)[T],
                             __m256 (&less)[T]) const {
        const __m128i at = places();
        const __m128i pairs = _mm_unpacklo_epi8(
            _mm_add_epi8(at, at), _mm_add_epi8(_mm_add_epi8(at, at), _mm_set1_epi8(1)));
        const int first = (b * 8) >> shift;
        // Bytes behind the scales are zero points or codes of the same row.
        const __m128i bits = _mm_shuffle_epi8(load16(scale + first * 2), pairs);
        const __m256 w =
            kBF16Scales ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))
                        : _mm256_cvtph_ps(bits);
        __m256 zeros = _mm256_set1_ps(8.0f);
        if (zero != nullptr) {
            const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(zero + first));
            zeros = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_shuffle_epi8(eight, at)));
        }
        add_lanes<PlainCodes>(EightGroups(q + b * 128, 16), w, x, xb, sum);
        take_off(_mm256_mul_ps(w, zeros), x, xb, less);
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

// The first 16 bits of eight blocks: a load that begins 2 g bytes early has block g's in lane g.
template <int kApart>
inline __m256 gathered_halves(const std::byte* p) {
    const auto at = [&](int g) { return load16(p + g * (kApart - 2)); };
    const __m128i a = _mm_blend_epi16(at(0), at(1), 0x02), b = _mm_blend_epi16(at(2), at(3), 0x08);
    const __m128i c = _mm_blend_epi16(at(4), at(5), 0x20), d = _mm_blend_epi16(at(6), at(7), 0x80);
    return _mm256_cvtph_ps(
        _mm_blend_epi16(_mm_blend_epi16(a, b, 0x0c), _mm_blend_epi16(c, d, 0xc0), 0xf0));
}

template <Nibbles (*kCodes)(__m256i), int kNbytes>
struct Block32 {
    const std::byte* q;
    __m256 w;
    Nibbles pair(int j) const { return kCodes(two_groups(q, j, kNbytes)); }
    PerGroup scales(const float* x) const { return {_mm256_mul_ps(w, _mm256_loadu_ps(x))}; }
};

struct FixedQ4_0 : FixedBlocks32<18> {
    static constexpr bool kOffset = true;
    using FixedBlocks32::FixedBlocks32;
    FixedQ4_0 tail(std::byte* copy, int b, int groups) const {
        return copy_tail(copy, b, groups), FixedQ4_0(copy);
    }
    template <int T>
    HEADRACE_INLINE void add(int b, const FixedRow (&x)[T], int xb, __m256 (&sum)[T],
                             __m256 (&less)[T]) const {
        const __m256 w = gathered_halves<18>(block(b));
        add_lanes<PlainCodes>(EightGroups(block(b) + 2, 18), w, x, xb, sum);
        take_off(_mm256_mul_ps(w, _mm256_set1_ps(8.0f)), x, xb, less);
    }
};

struct FixedIQ4_NL : FixedBlocks32<18> {
    static constexpr bool kOffset = false;
    using FixedBlocks32::FixedBlocks32;
    FixedIQ4_NL tail(std::byte* copy, int b, int groups) const {
        return copy_tail(copy, b, groups), FixedIQ4_NL(copy);
    }
    template <int T>
    HEADRACE_INLINE void add(int b, const FixedRow (&x)[T], int xb, __m256 (&sum)[T],
                             __m256 (&)[T]) const {
        add_nibbles(Block32<iq4_steps, 18>{block(b) + 2, gathered_halves<18>(block(b))}, x, xb,
                    sum);
    }
};

struct FixedGgmlMXFP4 : FixedBlocks32<17> {
    static constexpr bool kOffset = true;
    using FixedBlocks32::FixedBlocks32;
    FixedGgmlMXFP4 tail(std::byte* copy, int b, int groups) const {
        return copy_tail(copy, b, groups), FixedGgmlMXFP4(copy);
    }
    template <int T>
    HEADRACE_INLINE void add(int b, const FixedRow (&x)[T], int xb, __m256 (&sum)[T],
                             __m256 (&less)[T]) const {
        std::uint64_t scales = 0;
        for (int g = 0; g < 8; ++g) scales |= static_cast<std::uint64_t>(block(b)[g * 17]) << 8 * g;
        add_steps(EightGroups(block(b) + 1, 17), e8m0_eight(scales), x, xb, sum, less);
    }
};

}  // namespace headrace::HEADRACE_ISA
