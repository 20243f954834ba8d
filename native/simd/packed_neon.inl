// Vectors for packed weights on Arm: 16 bytes, and pairs of vectors for 32 bytes and eight floats.
namespace headrace::HEADRACE_ISA {

using V16 = uint8x16_t;
struct V32 {
    V16 low, high;
};
struct F8 {
    float32x4_t low, high;
};

HEADRACE_INLINE int8x16_t s8(V16 v) { return vreinterpretq_s8_u8(v); }
HEADRACE_INLINE int16x8_t s16(V16 v) { return vreinterpretq_s16_u8(v); }
HEADRACE_INLINE uint16x8_t u16(V16 v) { return vreinterpretq_u16_u8(v); }
HEADRACE_INLINE int32x4_t s32(V16 v) { return vreinterpretq_s32_u8(v); }
HEADRACE_INLINE uint32x4_t u32(V16 v) { return vreinterpretq_u32_u8(v); }
HEADRACE_INLINE uint64x2_t u64(V16 v) { return vreinterpretq_u64_u8(v); }
HEADRACE_INLINE int64x2_t s64(V16 v) { return vreinterpretq_s64_u8(v); }
HEADRACE_INLINE V16 bits(V16 v) { return v; }
HEADRACE_INLINE V16 bits(int8x16_t v) { return vreinterpretq_u8_s8(v); }
HEADRACE_INLINE V16 bits(int16x8_t v) { return vreinterpretq_u8_s16(v); }
HEADRACE_INLINE V16 bits(uint16x8_t v) { return vreinterpretq_u8_u16(v); }
HEADRACE_INLINE V16 bits(int32x4_t v) { return vreinterpretq_u8_s32(v); }
HEADRACE_INLINE V16 bits(uint32x4_t v) { return vreinterpretq_u8_u32(v); }
HEADRACE_INLINE V16 bits(uint64x2_t v) { return vreinterpretq_u8_u64(v); }
HEADRACE_INLINE V16 bits(float32x4_t v) { return vreinterpretq_u8_f32(v); }

// The same on both halves.
template <class Fn>
HEADRACE_INLINE V32 halves(V32 a, Fn&& fn) {
    return {bits(fn(a.low)), bits(fn(a.high))};
}
template <class Fn>
HEADRACE_INLINE V32 halves(V32 a, V32 b, Fn&& fn) {
    return {bits(fn(a.low, b.low)), bits(fn(a.high, b.high))};
}

HEADRACE_INLINE V16 load16(const void* p) { return vld1q_u8(static_cast<const std::uint8_t*>(p)); }
HEADRACE_INLINE V32 load32(const void* p) {
    const auto* bytes = static_cast<const std::uint8_t*>(p);
    return {vld1q_u8(bytes), vld1q_u8(bytes + 16)};
}
HEADRACE_INLINE V16 load_low8(const void* p) {
    return vcombine_u8(vld1_u8(static_cast<const std::uint8_t*>(p)), vdup_n_u8(0));
}
HEADRACE_INLINE V16 low8(std::uint64_t bytes) {
    return vcombine_u8(vcreate_u8(bytes), vdup_n_u8(0));
}
HEADRACE_INLINE void store32(void* p, V32 v) {
    vst1q_u8(static_cast<std::uint8_t*>(p), v.low);
    vst1q_u8(static_cast<std::uint8_t*>(p) + 16, v.high);
}
HEADRACE_INLINE void store_low8(void* p, V16 v) {
    vst1_u8(static_cast<std::uint8_t*>(p), vget_low_u8(v));
}
HEADRACE_INLINE F8 load_floats(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
HEADRACE_INLINE void store_floats(float* p, F8 v) {
    vst1q_f32(p, v.low);
    vst1q_f32(p + 4, v.high);
}

HEADRACE_INLINE V32 in_both(V16 v) { return {v, v}; }
HEADRACE_INLINE V32 put_together(V16 low, V16 high) { return {low, high}; }
HEADRACE_INLINE V16 low_half(V32 v) { return v.low; }
HEADRACE_INLINE V16 high_half(V32 v) { return v.high; }
HEADRACE_INLINE V32 load_halves(const void* low, const void* high) {
    return {load16(low), load16(high)};
}
template <class... B>
HEADRACE_INLINE V16 bytes16(B... b) {
    const std::uint8_t all[16] = {static_cast<std::uint8_t>(b)...};
    return vld1q_u8(all);
}
template <class... B>
HEADRACE_INLINE V32 both16(B... b) {
    return in_both(bytes16(b...));
}
template <class... W>
HEADRACE_INLINE V16 words4(W... w) {
    const std::int32_t all[4] = {w...};
    return bits(vld1q_s32(all));
}
HEADRACE_INLINE V32 words8(int a, int b, int c, int d, int e, int f, int g, int h) {
    return {words4(a, b, c, d), words4(e, f, g, h)};
}
HEADRACE_INLINE V16 small8(int b) { return vdupq_n_u8(static_cast<std::uint8_t>(b)); }
HEADRACE_INLINE V16 small16(int h) { return bits(vdupq_n_u16(static_cast<std::uint16_t>(h))); }
HEADRACE_INLINE V16 small32(int w) { return bits(vdupq_n_s32(w)); }
HEADRACE_INLINE V32 each8(int b) { return in_both(small8(b)); }
HEADRACE_INLINE V32 each16(int h) { return in_both(small16(h)); }
HEADRACE_INLINE V32 each32(int w) { return in_both(small32(w)); }
HEADRACE_INLINE V32 each64(std::uint64_t d) { return in_both(bits(vdupq_n_u64(d))); }
HEADRACE_INLINE V32 counts64(int a, int b) {  // in both halves
    return in_both(words4(a, 0, b, 0));
}
HEADRACE_INLINE F8 same(float f) { return {vdupq_n_f32(f), vdupq_n_f32(f)}; }
HEADRACE_INLINE V32 no_bits() { return each8(0); }
HEADRACE_INLINE F8 no_floats() { return same(0.0f); }

HEADRACE_INLINE V16 bits_and(V16 a, V16 b) { return vandq_u8(a, b); }
HEADRACE_INLINE V32 bits_and(V32 a, V32 b) {
    return halves(a, b, [](V16 x, V16 y) { return vandq_u8(x, y); });
}
HEADRACE_INLINE V16 bits_or(V16 a, V16 b) { return vorrq_u8(a, b); }
HEADRACE_INLINE V32 bits_or(V32 a, V32 b) {
    return halves(a, b, [](V16 x, V16 y) { return vorrq_u8(x, y); });
}
// A compiler makes these one instruction where the count is known.
HEADRACE_INLINE V16 left16(V16 v, int n) { return bits(u16(v) << n); }
HEADRACE_INLINE V16 right16(V16 v, int n) { return bits(u16(v) >> n); }
HEADRACE_INLINE V16 down16(V16 v, int n) { return bits(s16(v) >> n); }  // of signed lanes
HEADRACE_INLINE V32 left16(V32 v, int n) { return {left16(v.low, n), left16(v.high, n)}; }
HEADRACE_INLINE V32 right16(V32 v, int n) { return {right16(v.low, n), right16(v.high, n)}; }
HEADRACE_INLINE V32 down16(V32 v, int n) { return {down16(v.low, n), down16(v.high, n)}; }
HEADRACE_INLINE V32 right16_by(V32 v, int n) { return right16(v, n); }
HEADRACE_INLINE V32 left32(V32 v, int n) { return {bits(u32(v.low) << n), bits(u32(v.high) << n)}; }
HEADRACE_INLINE V16 right32(V16 v, V16 n) { return bits(vshlq_u32(u32(v), vnegq_s32(s32(n)))); }
HEADRACE_INLINE V32 right32(V32 v, V32 n) {
    return {right32(v.low, n.low), right32(v.high, n.high)};
}
HEADRACE_INLINE V32 left64(V32 v, V32 n) {
    return halves(v, n, [](V16 a, V16 by) { return vshlq_u64(u64(a), s64(by)); });
}
HEADRACE_INLINE V32 right64(V32 v, V32 n) {
    return halves(v, n, [](V16 a, V16 by) { return vshlq_u64(u64(a), vnegq_s64(s64(by))); });
}
HEADRACE_INLINE V16 low_nibbles(V16 v) { return vandq_u8(v, vdupq_n_u8(15)); }
HEADRACE_INLINE V16 high_nibbles(V16 v) { return vshrq_n_u8(v, 4); }
HEADRACE_INLINE V32 low_nibbles(V32 v) { return {low_nibbles(v.low), low_nibbles(v.high)}; }
HEADRACE_INLINE V32 high_nibbles(V32 v) { return {high_nibbles(v.low), high_nibbles(v.high)}; }

HEADRACE_INLINE V16 add8(V16 a, V16 b) { return vaddq_u8(a, b); }
HEADRACE_INLINE V16 sub8(V16 a, V16 b) { return vsubq_u8(a, b); }
HEADRACE_INLINE V32 sub8(V32 a, V32 b) {
    return halves(a, b, [](V16 x, V16 y) { return vsubq_u8(x, y); });
}
HEADRACE_INLINE V32 sub16(V32 a, V32 b) {
    return halves(a, b, [](V16 x, V16 y) { return vsubq_u16(u16(x), u16(y)); });
}
HEADRACE_INLINE V32 add32(V32 a, V32 b) {
    return halves(a, b, [](V16 x, V16 y) { return vaddq_u32(u32(x), u32(y)); });
}
HEADRACE_INLINE V32 sub32(V32 a, V32 b) {
    return halves(a, b, [](V16 x, V16 y) { return vsubq_u32(u32(x), u32(y)); });
}
HEADRACE_INLINE V32 most32(V32 a, V32 b) {
    return halves(a, b, [](V16 x, V16 y) { return vmaxq_s32(s32(x), s32(y)); });
}
HEADRACE_INLINE V32 most_signed8(V32 a, V32 b) {
    return halves(a, b, [](V16 x, V16 y) { return vmaxq_s8(s8(x), s8(y)); });
}
HEADRACE_INLINE V32 most8(V32 a, V32 b) {
    return halves(a, b, [](V16 x, V16 y) { return vmaxq_u8(x, y); });
}
HEADRACE_INLINE V16 least16(V16 a, V16 b) { return bits(vminq_u16(u16(a), u16(b))); }
HEADRACE_INLINE V32 equal8(V32 a, V32 b) {
    return halves(a, b, [](V16 x, V16 y) { return vceqq_u8(x, y); });
}
HEADRACE_INLINE V16 equal16(V16 a, V16 b) { return bits(vceqq_u16(u16(a), u16(b))); }
HEADRACE_INLINE V32 equal16(V32 a, V32 b) {
    return {equal16(a.low, b.low), equal16(a.high, b.high)};
}
HEADRACE_INLINE V32 more32(V32 a, V32 b) {
    return halves(a, b, [](V16 x, V16 y) { return vcgtq_s32(s32(x), s32(y)); });
}
HEADRACE_INLINE bool any_bit(V32 v) { return vmaxvq_u8(vorrq_u8(v.low, v.high)) != 0; }

// A byte of the table for each index: below 16, or negative for 0.
HEADRACE_INLINE V16 lookup(V16 table, V16 at) { return vqtbl1q_u8(table, at); }
HEADRACE_INLINE V32 lookup(V32 table, V32 at) {
    return halves(table, at, [](V16 x, V16 y) { return vqtbl1q_u8(x, y); });
}
HEADRACE_INLINE V16 zip8_low(V16 a, V16 b) { return vzip1q_u8(a, b); }
HEADRACE_INLINE V16 zip8_high(V16 a, V16 b) { return vzip2q_u8(a, b); }
HEADRACE_INLINE V16 zip32_low(V16 a, V16 b) { return bits(vzip1q_u32(u32(a), u32(b))); }
HEADRACE_INLINE V16 zip32_high(V16 a, V16 b) { return bits(vzip2q_u32(u32(a), u32(b))); }
HEADRACE_INLINE V16 zip64_low(V16 a, V16 b) { return bits(vzip1q_u64(u64(a), u64(b))); }
HEADRACE_INLINE V16 zip64_high(V16 a, V16 b) { return bits(vzip2q_u64(u64(a), u64(b))); }
HEADRACE_INLINE V32 zip32_low(V32 a, V32 b) {
    return {zip32_low(a.low, b.low), zip32_low(a.high, b.high)};
}
HEADRACE_INLINE V32 zip32_high(V32 a, V32 b) {
    return {zip32_high(a.low, b.low), zip32_high(a.high, b.high)};
}
HEADRACE_INLINE V32 zip64_low(V32 a, V32 b) {
    return {zip64_low(a.low, b.low), zip64_low(a.high, b.high)};
}
HEADRACE_INLINE V32 zip64_high(V32 a, V32 b) {
    return {zip64_high(a.low, b.low), zip64_high(a.high, b.high)};
}
// 32 bits of each as 16, saturated, all in order; 16 bits as 8, of a's half before b's.
HEADRACE_INLINE V32 narrow32(V32 a, V32 b) {
    return {bits(vcombine_s16(vqmovn_s32(s32(a.low)), vqmovn_s32(s32(a.high)))),
            bits(vcombine_s16(vqmovn_s32(s32(b.low)), vqmovn_s32(s32(b.high))))};
}
HEADRACE_INLINE V32 narrow16(V32 a, V32 b) {
    return halves(a, b,
                  [](V16 x, V16 y) { return vcombine_s8(vqmovn_s16(s16(x)), vqmovn_s16(s16(y))); });
}

HEADRACE_INLINE F8 as_floats(V32 v) {
    return {vreinterpretq_f32_u8(v.low), vreinterpretq_f32_u8(v.high)};
}
HEADRACE_INLINE V32 as_bits(F8 v) { return {bits(v.low), bits(v.high)}; }
HEADRACE_INLINE F8 floats(V32 v) { return {vcvtq_f32_s32(s32(v.low)), vcvtq_f32_s32(s32(v.high))}; }
HEADRACE_INLINE V32 rounded(F8 v) {
    return {bits(vcvtnq_s32_f32(v.low)), bits(vcvtnq_s32_f32(v.high))};
}
HEADRACE_INLINE V32 words_of_halves(V16 v) {
    return {bits(vmovl_u16(vget_low_u16(u16(v)))), bits(vmovl_high_u16(u16(v)))};
}
HEADRACE_INLINE V32 words_of_bytes(V16 v) {
    return words_of_halves(bits(vmovl_u8(vget_low_u8(v))));
}
HEADRACE_INLINE V32 words_of_signed(V16 v) {
    const int16x8_t h = vmovl_s8(vget_low_s8(s8(v)));
    return {bits(vmovl_s16(vget_low_s16(h))), bits(vmovl_high_s16(h))};
}
HEADRACE_INLINE F8 floats_of_f16(V16 v) {
    const float16x8_t h = vreinterpretq_f16_u8(v);
    return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}
HEADRACE_INLINE float float_of_f16(std::uint16_t h) {
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0);
}
// The first 16 bits of eight blocks.
template <int kApart>
HEADRACE_INLINE V16 gathered_halves(const std::byte* p) {
    const auto at = [&](int g) { return reinterpret_cast<const std::uint16_t*>(p + g * kApart); };
    uint16x8_t v = vdupq_n_u16(0);
    v = vld1q_lane_u16(at(0), v, 0);
    v = vld1q_lane_u16(at(1), v, 1);
    v = vld1q_lane_u16(at(2), v, 2);
    v = vld1q_lane_u16(at(3), v, 3);
    v = vld1q_lane_u16(at(4), v, 4);
    v = vld1q_lane_u16(at(5), v, 5);
    v = vld1q_lane_u16(at(6), v, 6);
    v = vld1q_lane_u16(at(7), v, 7);
    return bits(v);
}
HEADRACE_INLINE F8 gathered(const float* x, V16 at) {
    std::uint16_t places[8];
    vst1q_u16(places, u16(at));
    float of[8];
    for (int i = 0; i < 8; ++i) of[i] = x[places[i]];
    return load_floats(of);
}

HEADRACE_INLINE F8 add(F8 a, F8 b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
HEADRACE_INLINE F8 sub(F8 a, F8 b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
HEADRACE_INLINE F8 mul(F8 a, F8 b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
HEADRACE_INLINE F8 fma(F8 a, F8 b, F8 c) {
    return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}
HEADRACE_INLINE F8 fnma(F8 a, F8 b, F8 c) {  // c - a b
    return {vfmsq_f32(c.low, a.low, b.low), vfmsq_f32(c.high, a.high, b.high)};
}
HEADRACE_INLINE F8 low_twice(F8 v) { return {v.low, v.low}; }
HEADRACE_INLINE F8 high_twice(F8 v) { return {v.high, v.high}; }
template <int kLane>  // of each half
HEADRACE_INLINE F8 lane_of(F8 v) {
    return {vdupq_laneq_f32(v.low, kLane), vdupq_laneq_f32(v.high, kLane)};
}
HEADRACE_INLINE float sum_of_lanes(F8 v) {
    const float32x4_t four = vaddq_f32(v.low, v.high);
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
// Lane i: the sum of the lanes of v[i].
HEADRACE_INLINE F8 sums_of_lanes(const F8 (&v)[8]) {
    const auto four = [&](int i) {  // of v[i] to v[i + 3]
        const auto halves = [&](int k) { return vaddq_f32(v[i + k].low, v[i + k].high); };
        return vpaddq_f32(vpaddq_f32(halves(0), halves(1)), vpaddq_f32(halves(2), halves(3)));
    };
    return {four(0), four(4)};
}
// to[i]: lane i of every vector.
HEADRACE_INLINE void turn_eight(const F8 (&v)[8], F8 (&to)[8]) {
    const auto four = [](float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d, auto&& put) {
        const auto pair = [](float32x4_t x, float32x4_t y) {
            return vreinterpretq_f32_f64(
                vzip1q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
        };
        const auto rest = [](float32x4_t x, float32x4_t y) {
            return vreinterpretq_f32_f64(
                vzip2q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
        };
        const float32x4_t ab = vtrn1q_f32(a, b), cd = vtrn1q_f32(c, d);
        const float32x4_t odd_ab = vtrn2q_f32(a, b), odd_cd = vtrn2q_f32(c, d);
        put(0, pair(ab, cd));
        put(1, pair(odd_ab, odd_cd));
        put(2, rest(ab, cd));
        put(3, rest(odd_ab, odd_cd));
    };
    four(v[0].low, v[1].low, v[2].low, v[3].low, [&](int i, float32x4_t f) { to[i].low = f; });
    four(v[4].low, v[5].low, v[6].low, v[7].low, [&](int i, float32x4_t f) { to[i].high = f; });
    four(v[0].high, v[1].high, v[2].high, v[3].high,
         [&](int i, float32x4_t f) { to[4 + i].low = f; });
    four(v[4].high, v[5].high, v[6].high, v[7].high,
         [&](int i, float32x4_t f) { to[4 + i].high = f; });
}
HEADRACE_INLINE int sum_of_words(V32 v) { return vaddvq_s32(vaddq_s32(s32(v.low), s32(v.high))); }
HEADRACE_INLINE int most_of_words(V32 v) { return vmaxvq_s32(vmaxq_s32(s32(v.low), s32(v.high))); }

}  // namespace headrace::HEADRACE_ISA
