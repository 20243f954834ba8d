// RMS norms, rotary embedding and the store into the KV pool.

namespace headrace::HEADRACE_ISA {

// Whole vectors take the plain instruction: a masked one costs many times as much on some CPUs.
inline F32 load_lanes(const float* p, int n) {
    return n == F32::N ? F32::load(p) : F32::load_partial(p, n);
}
inline void store_lanes(F32 v, float* p, int n) {
    if (n == F32::N)
        v.store(p);
    else
        v.store_partial(p, n);
}

inline float sum_of_squares(const float* x, std::int64_t width) {
    F32 a[4] = {F32::zero(), F32::zero(), F32::zero(), F32::zero()};
    std::int64_t i = 0;
    for (; i + 4 * F32::N <= width; i += 4 * F32::N)
        for (int u = 0; u < 4; ++u) {
            const F32 v = F32::load(x + i + u * F32::N);
            a[u] = fma(v, v, a[u]);
        }
    for (; i < width; i += F32::N) {
        const int left = width - i < F32::N ? static_cast<int>(width - i) : F32::N;
        const F32 v = load_lanes(x + i, left);
        a[0] = fma(v, v, a[0]);
    }
    return ((a[0] + a[1]) + (a[2] + a[3])).reduce_add();
}

inline F32 norm_weight(const RmsNorm& c, std::int64_t row, std::int64_t i, int n) {
    if (c.weight == nullptr) return F32::set1(1.0f);
    const F32 w = load_lanes(c.weight + row % c.weight_rows * c.width + i, n);
    return c.plus_one ? w + F32::set1(1.0f) : w;
}

inline void gate_row(const float* x, const float* gate, std::int64_t width, float* y) {
    for (std::int64_t i = 0; i < width; i += F32::N) {
        const int n = width - i < F32::N ? static_cast<int>(width - i) : F32::N;
        store_lanes(load_lanes(x + i, n) * silu(load_lanes(gate + i, n)), y + i, n);
    }
}

inline void rms_norm_rows(const RmsNorm& c, std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
        const float* x = c.row(row);
        const float* gate = c.gate == nullptr ? nullptr : c.gate_row(row);
        float* y = c.y + row * c.y_stride;
        if (gate != nullptr && c.gating == kSiluBefore) {
            gate_row(x, gate, c.width, y);
            x = y;
            gate = nullptr;
        }
        const float mean = sum_of_squares(x, c.width) / static_cast<float>(c.width);
        const F32 r = F32::set1(1.0f / std::sqrt(mean + c.eps));
        for (std::int64_t i = 0; i < c.width; i += F32::N) {
            const int n = c.width - i < F32::N ? static_cast<int>(c.width - i) : F32::N;
            F32 v = load_lanes(x + i, n) * r * norm_weight(c, row, i, n);
            if (gate != nullptr) {
                const F32 g = load_lanes(gate + i, n);
                v = v * (c.gating == kSigmoidBehind ? sigmoid(g) : silu(g));
            }
            store_lanes(v, y + i, n);
        }
    }
}

inline void rotate_halves(float* x, const float* cos, const float* sin, std::int64_t half) {
    for (std::int64_t i = 0; i < half; i += F32::N) {
        const int n = half - i < F32::N ? static_cast<int>(half - i) : F32::N;
        const F32 a = load_lanes(x + i, n);
        const F32 b = load_lanes(x + half + i, n);
        const F32 co = load_lanes(cos + i, n);
        const F32 si = load_lanes(sin + i, n);
        store_lanes(a * co - b * si, x + i, n);
        store_lanes(b * co + a * si, x + half + i, n);
    }
}

inline void rotate_pairs(float* x, const float* cos, const float* sin, std::int64_t half) {
    for (std::int64_t i = 0; i < half; ++i) {
        const float a = x[2 * i];
        const float b = x[2 * i + 1];
        x[2 * i] = a * cos[i] - b * sin[i];
        x[2 * i + 1] = b * cos[i] + a * sin[i];
    }
}

inline void rope_tokens(const Rope& c, std::int64_t first, std::int64_t last) {
    const std::int64_t half = c.rotated / 2;
    for (std::int64_t t = first; t < last; ++t)
        for (std::int64_t h = 0; h < c.heads; ++h) {
            float* x = c.x + t * c.token_stride + h * c.head_dim;
            if (c.interleaved)
                rotate_pairs(x, c.cos + t * half, c.sin + t * half, half);
            else
                rotate_halves(x, c.cos + t * half, c.sin + t * half, half);
        }
}

inline void store_kv_tokens(const StoreKv& c, std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
        const float* x = c.x + t * c.token_stride;
        const std::int64_t at = c.slots[t] * (c.step == 0 ? c.width : c.step);
        if (c.format == kF32) {
            std::memcpy(c.pool + at * 4, x, static_cast<std::size_t>(c.width) * 4);
            continue;
        }
        auto* row = reinterpret_cast<std::uint16_t*>(c.pool) + at;
        for (std::int64_t i = 0; i < c.width; ++i) row[i] = bf16_from_float(x[i]);
    }
}

}  // namespace headrace::HEADRACE_ISA
