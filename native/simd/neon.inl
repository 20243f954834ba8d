#include <arm_neon.h>

namespace headrace::HEADRACE_ISA {

struct F32 {
    static constexpr int N = 4;
    float32x4_t v;

    static F32 set1(float s) { return {vdupq_n_f32(s)}; }
    static F32 zero() { return set1(0.0f); }
    static F32 load(const float* p) { return {vld1q_f32(p)}; }
    static F32 load_partial(const float* p, int n) {
        float lanes[N] = {};
        for (int i = 0; i < N && i < n; ++i) lanes[i] = p[i];
        return load(lanes);
    }
    void store(float* p) const { vst1q_f32(p, v); }
    void store_partial(float* p, int n) const {
        float lanes[N];
        store(lanes);
        for (int i = 0; i < N && i < n; ++i) p[i] = lanes[i];
    }
    static F32 from_bf16(const std::uint16_t* p) {
        return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16))};
    }
    static F32 from_f16(const std::uint16_t* p) {
        return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))};
    }
    void to_bf16(std::uint16_t* p) const {
        float lanes[N];
        store(lanes);
        for (int i = 0; i < N; ++i) p[i] = bf16_from_float(lanes[i]);
    }
    float reduce_add() const {
        const float32x2_t s = vadd_f32(vget_low_f32(v), vget_high_f32(v));
        return vget_lane_f32(s, 0) + vget_lane_f32(s, 1);
    }
    float reduce_max() const {
        float lanes[N];
        store(lanes);
        const float a = lanes[0] > lanes[2] ? lanes[0] : lanes[2];
        const float b = lanes[1] > lanes[3] ? lanes[1] : lanes[3];
        return a > b ? a : b;
    }
};

inline F32 operator+(F32 a, F32 b) { return {vaddq_f32(a.v, b.v)}; }
inline F32 operator-(F32 a, F32 b) { return {vsubq_f32(a.v, b.v)}; }
inline F32 operator*(F32 a, F32 b) { return {vmulq_f32(a.v, b.v)}; }
inline F32 operator/(F32 a, F32 b) { return {vdivq_f32(a.v, b.v)}; }
inline F32 fma(F32 a, F32 b, F32 c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
// By comparison, so that a NaN in `a` gives b and a NaN in `b` stays, as in the other sets.
inline F32 max(F32 a, F32 b) { return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)}; }
inline F32 min(F32 a, F32 b) { return {vbslq_f32(vcltq_f32(a.v, b.v), a.v, b.v)}; }
inline F32 round(F32 a) { return {vrndnq_f32(a.v)}; }
inline F32 pow2(F32 n) {
    const int32x4_t e = vaddq_s32(vcvtq_s32_f32(n.v), vdupq_n_s32(127));
    return {vreinterpretq_f32_s32(vshlq_n_s32(e, 23))};
}
inline F32 select_less(F32 a, F32 b, F32 yes, F32 no) {
    return {vbslq_f32(vcltq_f32(a.v, b.v), yes.v, no.v)};
}

}  // namespace headrace::HEADRACE_ISA
