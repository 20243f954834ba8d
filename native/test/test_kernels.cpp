// linear and experts of every kernel table against sums in double, and a token's bits alone
// against its bits in company.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>

#include "expert.hpp"
#include "linear.hpp"
#include "test/check.hpp"
#include "test/tables.hpp"

using namespace headrace;

namespace {

std::mt19937 random_bits(7);

std::vector<float> normal(std::size_t n, float scale) {
    std::normal_distribution<float> draw(0.0f, scale);
    std::vector<float> out(n);
    for (float& f : out) f = draw(random_bits);
    return out;
}

float rounded_bf16(float f) {
    const auto u = std::bit_cast<std::uint32_t>(f);
    return std::bit_cast<float>((u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u);
}

// Weights in a format, and the values that they have.
struct Weights {
    std::vector<std::byte> bytes;
    std::vector<float> values;

    Weights(int format, std::size_t n, float scale) : values(normal(n, scale)) {
        bytes.resize(n * format_nbytes(format));
        for (std::size_t i = 0; i < n; ++i) put(format, i);
    }
    void put(int format, std::size_t i) {
        float& f = values[i];
        if (format == kF16) {
            // Halves of the form m * 2^-8, |m| < 1024, subnormal ones among them at m < 2^-6.
            const int m = static_cast<int>(std::lround(f * 256)) % 1024;
            f = static_cast<float>(m) / 256.0f;
        } else if (format == kBF16) {
            f = rounded_bf16(f);
        }
        const std::uint32_t u = std::bit_cast<std::uint32_t>(f);
        if (format == kF32) {
            std::memcpy(&bytes[i * 4], &u, 4);
            return;
        }
        const std::uint16_t h = format == kBF16 ? static_cast<std::uint16_t>(u >> 16) : half(f);
        std::memcpy(&bytes[i * 2], &h, 2);
    }
    static std::uint16_t half(float f) {
        const std::uint16_t sign = std::signbit(f) ? 0x8000 : 0;
        if (f == 0.0f) return sign;
        int exponent = 0;
        const float m = std::frexp(std::fabs(f), &exponent);  // f = m 2^e, m in [0.5, 1)
        return static_cast<std::uint16_t>(sign | (exponent + 14) << 10 |
                                          (static_cast<int>(m * 2048.0f) - 1024));
    }
};

double error(const std::vector<double>& truth, const std::vector<float>& got) {
    double off = 0.0, all = 1e-30;
    for (std::size_t i = 0; i < truth.size(); ++i) {
        if (!(std::fabs(got[i]) < 1e30f)) return 1e30;
        off += (truth[i] - got[i]) * (truth[i] - got[i]);
        all += truth[i] * truth[i];
    }
    return off / all;
}

bool rounds(const KernelTable& t, int format, bool exact) {
    return (exact ? t.exact : t.fast)[format].input == kBf16Input;
}

std::vector<float> nans(std::size_t n) {
    return std::vector<float>(n, std::numeric_limits<float>::quiet_NaN());
}

// Weights outlive this: a rescuing pool may read them after a call.
struct Quiesced {
    Pool& pool;
    ~Quiesced() { pool.quiesce(); }
};

void check_linear(Pool& pool, int format, bool exact, int rows, int columns, int tokens) {
    const auto n = static_cast<std::size_t>(rows), k = static_cast<std::size_t>(columns);
    const Weights w(format, n * k, 1.0f);
    const std::vector<float> x = normal(k * static_cast<std::size_t>(tokens), 1.0f);
    const std::vector<float> bias = normal(n, 1.0f);
    const int first = rows / 3;
    const std::size_t stride = k * format_nbytes(format);
    const auto base = reinterpret_cast<std::uintptr_t>(w.bytes.data());
    const auto step = static_cast<std::int64_t>(stride);
    std::vector<Matrix::Given> parts;
    if (first > 0) parts.push_back({base, first, step, format});
    parts.push_back({base + static_cast<std::size_t>(first) * stride, rows - first, step, format});
    const Matrix matrix(parts, columns);
    std::vector<float> y = nans(n * static_cast<std::size_t>(tokens)), alone = nans(n);
    const Quiesced last{pool};
    linear(pool, x.data(), tokens, matrix, bias.data(), y.data(), exact);
    const bool rounding = rounds(pool.kernels(), format, exact);
    std::vector<double> truth;
    for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t)
        for (std::size_t r = 0; r < n; ++r) {
            double sum = bias[r];
            for (std::size_t i = 0; i < k; ++i) {
                const float v = x[t * k + i];
                sum += static_cast<double>(w.values[r * k + i]) * (rounding ? rounded_bf16(v) : v);
            }
            truth.push_back(sum);
        }
    const double e = error(truth, y);
    CHECK(e < 1e-11, "%s format %d exact %d [%d, %d] x %d: %g", pool.kernels().name, format, exact,
          rows, columns, tokens, e);
    for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
        linear(pool, x.data() + t * k, 1, matrix, bias.data(), alone.data(), exact);
        CHECK(std::memcmp(alone.data(), y.data() + t * n, n * sizeof(float)) == 0,
              "%s format %d exact %d [%d, %d]: token %zu of %d differs alone", pool.kernels().name,
              format, exact, rows, columns, t, tokens);
    }
}

double silu(double g) { return g / (1.0 + std::exp(-g)); }

struct Bank {
    int experts, hidden, width;
    Weights gate, up, down;
    ExpertLayer layer;

    Bank(int format, int e, int h, int f)
        : experts(e),
          hidden(h),
          width(f),
          gate(format, size(), 0.3f),
          up(format, size(), 0.3f),
          down(format, size(), 0.3f) {
        layer.gate_format = layer.up_format = layer.down_format = format;
        layer.hidden = h;
        layer.width = f;
        const std::size_t element = format_nbytes(format),
                          one = size() / static_cast<std::size_t>(e);
        layer.gate_stride = layer.up_stride = static_cast<std::size_t>(h) * element;
        layer.down_stride = static_cast<std::size_t>(f) * element;
        for (std::size_t i = 0; i < static_cast<std::size_t>(e); ++i) {
            layer.gate.push_back(gate.bytes.data() + i * one * element);
            layer.up.push_back(up.bytes.data() + i * one * element);
            layer.down.push_back(down.bytes.data() + i * one * element);
        }
        layer.check();
    }
    std::size_t size() const {
        return static_cast<std::size_t>(experts) * static_cast<std::size_t>(hidden) *
               static_cast<std::size_t>(width);
    }
    double dot(const Weights& w, std::size_t row, std::size_t n, const double* x) const {
        double sum = 0.0;
        for (std::size_t i = 0; i < n; ++i)
            sum += static_cast<double>(w.values[row * n + i]) * x[i];
        return sum;
    }
    void add(std::size_t e, double weight, const double* x, double* y) const {
        const auto h = static_cast<std::size_t>(hidden), f = static_cast<std::size_t>(width);
        std::vector<double> inner(f);
        for (std::size_t i = 0; i < f; ++i)
            inner[i] = silu(dot(gate, e * f + i, h, x)) * dot(up, e * f + i, h, x);
        for (std::size_t i = 0; i < h; ++i) y[i] += weight * dot(down, e * h + i, f, inner.data());
    }
};

void check_experts(Pool& pool, int format, bool exact, int hidden, int width, int tokens) {
    constexpr int kExperts = 6, kTop = 3;
    const Bank bank(format, kExperts, hidden, width);
    const auto h = static_cast<std::size_t>(hidden), n = static_cast<std::size_t>(tokens);
    const std::vector<float> x = normal(h * n, 1.0f), weights = normal(n * kTop, 1.0f);
    std::vector<std::int32_t> ids(n * kTop);
    for (std::size_t i = 0; i < ids.size(); ++i)  // expert 0 by all, 5 by none, some skipped
        ids[i] = i % kTop == 0 ? 0 : static_cast<std::int32_t>(random_bits() % 5) - 1;
    std::vector<float> y = nans(h * n), alone = nans(h);
    const Quiesced last{pool};
    experts(pool, x.data(), tokens, ids.data(), weights.data(), kTop, bank.layer, y.data(), exact);
    std::vector<double> truth(h * n, 0.0);
    for (std::size_t t = 0; t < n; ++t) {
        const std::vector<double> in(x.begin() + static_cast<long>(t * h),
                                     x.begin() + static_cast<long>((t + 1) * h));
        for (std::size_t k = 0; k < kTop; ++k)
            if (ids[t * kTop + k] >= 0)
                bank.add(static_cast<std::size_t>(ids[t * kTop + k]), weights[t * kTop + k],
                         in.data(), &truth[t * h]);
    }
    const double e = error(truth, y),
                 allowed = rounds(pool.kernels(), format, exact) ? 1e-4 : 1e-11;
    CHECK(e < allowed, "%s experts format %d exact %d hidden %d width %d x %d: %g",
          pool.kernels().name, format, exact, hidden, width, tokens, e);
    for (std::size_t t = 0; t < n; ++t) {
        experts(pool, x.data() + t * h, 1, &ids[t * kTop], &weights[t * kTop], kTop, bank.layer,
                alone.data(), exact);
        CHECK(std::memcmp(alone.data(), &y[t * h], h * sizeof(float)) == 0,
              "%s experts format %d exact %d: token %zu of %d differs alone", pool.kernels().name,
              format, exact, t, tokens);
    }
    // The parts of every other expert in each of two calls.
    std::vector<float> parts = nans(n * kTop * h), summed = nans(h * n);
    for (const int odd : {1, 0}) {
        std::vector<std::int32_t> some = ids;
        for (std::int32_t& id : some)
            if (id % 2 != odd) id = -1;
        experts_parts(pool, x.data(), tokens, some.data(), kTop, bank.layer, parts.data(), exact);
    }
    combine(pool, parts.data(), tokens, kTop, hidden, ids.data(), weights.data(), summed.data());
    CHECK(std::memcmp(summed.data(), y.data(), h * n * sizeof(float)) == 0,
          "%s experts format %d exact %d: the parts of %d tokens sum to other bits",
          pool.kernels().name, format, exact, tokens);
}

}  // namespace

int main() {
    for (const KernelTable* table : tables_to_test()) {
        for (const bool rescue : {false, true}) {
            Pool pool(2, true, *table, rescue);
            for (int format = 0; format < kFloats; ++format)
                for (const bool exact : {true, false}) {
                    for (const int columns : {1, 7, 63, 100})
                        for (const int tokens : {1, 3, 5})
                            check_linear(pool, format, exact, 37, columns, tokens);
                    check_linear(pool, format, exact, 70, 1100, 2);
                    check_linear(pool, format, exact, 33, 130, 51);
                    check_linear(pool, format, exact, 1, 64, 17);
                    check_experts(pool, format, exact, 100, 63, 1);
                    check_experts(pool, format, exact, 36, 70, 37);
                }
        }
        std::printf("%s: %d failures so far\n", table->name, failures);
    }
    return failures == 0 ? 0 : 1;
}
