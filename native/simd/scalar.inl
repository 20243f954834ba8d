// Plain C++: four lanes that a compiler may or may not turn into vectors.
namespace headrace::HEADRACE_ISA {

struct F32 {
    static constexpr int N = 4;
    float v[N];

    template <class Fn>
    static F32 each(Fn&& fn) {
        F32 out;
        for (int i = 0; i < N; ++i) out.v[i] = fn(i);
        return out;
    }
    static F32 set1(float s) {
        return each([&](int) { return s; });
    }
    static F32 zero() { return set1(0.0f); }
    static F32 load(const float* p) {
        F32 out;
        std::memcpy(out.v, p, sizeof out.v);
        return out;
    }
    static F32 load_partial(const float* p, int n) {
        return each([&](int i) { return i < n ? p[i] : 0.0f; });
    }
    void store(float* p) const { std::memcpy(p, v, sizeof v); }
    void store_partial(float* p, int n) const {
        for (int i = 0; i < N && i < n; ++i) p[i] = v[i];
    }
    static F32 from_bf16(const std::uint16_t* p) {
        return each([&](int i) { return float_from_bf16(p[i]); });
    }
    static F32 from_f16(const std::uint16_t* p) {
        return each([&](int i) { return float_from_f16(p[i]); });
    }
    void to_bf16(std::uint16_t* p) const {
        for (int i = 0; i < N; ++i) p[i] = bf16_from_float(v[i]);
    }
    float reduce_add() const { return (v[0] + v[2]) + (v[1] + v[3]); }
    float reduce_max() const {
        const float a = v[0] > v[2] ? v[0] : v[2];
        const float b = v[1] > v[3] ? v[1] : v[3];
        return a > b ? a : b;
    }
};

inline F32 operator+(F32 a, F32 b) {
    return F32::each([&](int i) { return a.v[i] + b.v[i]; });
}
inline F32 operator-(F32 a, F32 b) {
    return F32::each([&](int i) { return a.v[i] - b.v[i]; });
}
inline F32 operator*(F32 a, F32 b) {
    return F32::each([&](int i) { return a.v[i] * b.v[i]; });
}
inline F32 operator/(F32 a, F32 b) {
    return F32::each([&](int i) { return a.v[i] / b.v[i]; });
}
// a * b + c. Not fused here: without the instruction it would be a library call per lane.
inline F32 fma(F32 a, F32 b, F32 c) {
    return F32::each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
// max and min return b where either is NaN, as on x86.
inline F32 max(F32 a, F32 b) {
    return F32::each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F32 min(F32 a, F32 b) {
    return F32::each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F32 round(F32 a) {
    return F32::each([&](int i) { return std::nearbyint(a.v[i]); });
}
// 2^n for whole n in [-126, 127].
inline F32 pow2(F32 n) {
    return F32::each([&](int i) {
        const float whole = n.v[i] >= -126.0f ? n.v[i] : -126.0f;  // also a NaN
        return std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<int>(whole) + 127)
                                    << 23);
    });
}
inline F32 select_less(F32 a, F32 b, F32 yes, F32 no) {
    return F32::each([&](int i) { return a.v[i] < b.v[i] ? yes.v[i] : no.v[i]; });
}

}  // namespace headrace::HEADRACE_ISA
