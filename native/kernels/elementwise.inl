// Activations, scaled sums and a plain read, over F32.

namespace headrace::HEADRACE_ISA {

// Calls fn(load, store) for every vector of n floats; the last one may be partial.
template <class Fn>
inline void each_vector(std::size_t n, Fn&& fn) {
    std::size_t i = 0;
    for (; i + F32::N <= n; i += F32::N) fn(i, F32::N);
    if (i < n) fn(i, static_cast<int>(n - i));
}

inline F32 load_some(const float* p, int n) {
    return n == F32::N ? F32::load(p) : F32::load_partial(p, n);
}

inline void store_some(F32 v, float* p, int n) {
    if (n == F32::N) {
        v.store(p);
    } else {
        v.store_partial(p, n);
    }
}

// gpt-oss: the gate is clamped from above, the linear part from both sides and shifted by one.
inline F32 clamped_swiglu(F32 g, F32 u, float alpha, float limit) {
    if (limit > 0.0f) {
        g = min(F32::set1(limit), g);
        u = max(F32::set1(-limit), min(F32::set1(limit), u));
    }
    return g * sigmoid(F32::set1(alpha) * g) * (u + F32::set1(1.0f));
}

// The tanh form of gelu: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
inline F32 gelu_tanh(F32 x) {
    const F32 inner = F32::set1(0.79788456080286536f) * fma(F32::set1(0.044715f) * x * x, x, x);
    return F32::set1(0.5f) * x * (F32::set1(1.0f) + tanh(inner));
}

inline void activate(int activation, float alpha, float limit, float* gate, const float* up,
                     std::size_t n) {
    if (activation == 3) {
        each_vector(n, [&](std::size_t i, int lanes) {
            const F32 g = max(F32::zero(), load_some(gate + i, lanes));
            store_some(g * g, gate + i, lanes);
        });
        return;
    }
    each_vector(n, [&](std::size_t i, int lanes) {
        const F32 g = load_some(gate + i, lanes);
        const F32 u = load_some(up + i, lanes);
        F32 h;
        if (activation == 1) {
            h = clamped_swiglu(g, u, alpha, limit);
        } else if (activation == 2) {
            h = gelu_tanh(g) * u;
        } else {
            h = silu(g) * u;
        }
        store_some(h, gate + i, lanes);
    });
}

inline void add_scaled(float* y, const float* x, float scale, std::size_t n) {
    const F32 s = F32::set1(scale);
    each_vector(n, [&](std::size_t i, int lanes) {
        store_some(fma(load_some(x + i, lanes), s, load_some(y + i, lanes)), y + i, lanes);
    });
}

inline void add(float* y, const float* x, std::size_t n) {
    each_vector(n, [&](std::size_t i, int lanes) {
        store_some(load_some(x + i, lanes) + load_some(y + i, lanes), y + i, lanes);
    });
}

inline void multiply(const float* x, const float* by, float* y, std::size_t n) {
    each_vector(n, [&](std::size_t i, int lanes) {
        store_some(load_some(x + i, lanes) * load_some(by + i, lanes), y + i, lanes);
    });
}

inline void put_bf16(std::byte* row, int, int first, const float* x, int n) {
    auto* y = reinterpret_cast<std::uint16_t*>(row) + first;
    int i = 0;
    for (; i + F32::N <= n; i += F32::N) F32::load(x + i).to_bf16(y + i);
    for (; i < n; ++i) y[i] = bf16_from_float(x[i]);
}

inline void put_floats(std::byte* row, int, int first, const float* x, int n) {
    std::memcpy(reinterpret_cast<float*>(row) + first, x,
                static_cast<std::size_t>(n) * sizeof(float));
}

// Four streams, as the dot kernels have, so that what is measured is what they could reach.
inline float read_all(const std::byte* from, std::size_t nbytes) {
    const auto* p = reinterpret_cast<const float*>(from);
    const std::size_t part = nbytes / sizeof(float) / 4;
    F32 sum[8];
    for (F32& s : sum) s = F32::zero();
    for (std::size_t i = 0; i + 2 * F32::N <= part; i += 2 * F32::N)
        for (std::size_t j = 0; j < 4; ++j) {
            sum[2 * j] = sum[2 * j] + F32::load(p + j * part + i);
            sum[2 * j + 1] = sum[2 * j + 1] + F32::load(p + j * part + i + F32::N);
        }
    for (int j = 1; j < 8; ++j) sum[0] = sum[0] + sum[j];
    return sum[0].reduce_add();
}

}  // namespace headrace::HEADRACE_ISA
