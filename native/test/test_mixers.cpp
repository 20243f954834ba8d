// The mixer kernels under the sanitizers: every call, odd shapes, more threads than cores.
// What they compute is checked against float64 by the Python tests; here one thread and four must
// agree to the bit, and every byte written must be the caller's.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "../entry.hpp"
#include "../gates.hpp"
#include "../linear.hpp"
#include "../mixers.hpp"

namespace {

using namespace headrace;

std::vector<float> noise(std::size_t n, float scale = 1.0f) {
    static std::uint32_t state = 7;
    std::vector<float> out(n);
    for (float& f : out) {
        state = state * 1664525u + 1013904223u;
        f = (static_cast<float>(state >> 8) / 8388608.0f - 1.0f) * scale;
    }
    return out;
}

void check(bool ok, const std::string& what) {
    if (ok) return;
    std::fprintf(stderr, "failed: %s\n", what.c_str());
    std::exit(1);
}

// Runs `call` with each pool on its own copy of `data`, which must come out equal and without NaN.
template <class F>
void same_bits(const std::vector<float>& data, const std::string& what, std::vector<Pool*> pools,
               F&& call) {
    std::vector<std::vector<float>> results;
    for (Pool* pool : pools) {
        results.push_back(data);
        call(*pool, results.back().data());
    }
    for (const auto& r : results)
        check(std::memcmp(r.data(), results[0].data(), r.size() * sizeof(float)) == 0, what);
    for (const float f : results[0]) check(!std::isnan(f), what + " left a NaN");
}

const float kNaN = std::numeric_limits<float>::quiet_NaN();
using Pools = std::vector<Pool*>;

void norms(const Pools& pools) {
    for (const int width : {1, 63, 512}) {
        const std::int64_t rows = 400;
        const auto x = noise(static_cast<std::size_t>(rows * width));
        const auto w = noise(static_cast<std::size_t>(width));
        const auto gate = noise(x.size());
        same_bits(std::vector<float>(x.size(), kNaN), "rms_norm", pools, [&](Pool& p, float* y) {
            rms_norm(p,
                     {x.data(), gate.data(), rows, width, width, w.data(), 1e-6f, false, y, width});
        });
        const std::int64_t rotated = width / 2 * 2;
        const auto turn = noise(static_cast<std::size_t>(rows * rotated / 2 + 1));
        for (const bool interleaved : {false, true})
            same_bits(x, "rope", pools, [&](Pool& p, float* y) {
                rope(p, {y, rows, 1, width, width, turn.data(), turn.data(), rotated, interleaved});
            });
    }
}

void gates(const Pools& pools) {
    const std::int64_t tokens = 300, heads = 3, width = 70, apart = 2 * width + 1;
    const auto x = noise(static_cast<std::size_t>(tokens * heads * apart), 20.0f);
    const auto dense = static_cast<std::size_t>(tokens * heads * width);
    const std::vector<float> empty(dense, kNaN);
    same_bits(empty, "gate", pools, [&](Pool& p, float* y) {
        gate(p, {x.data(), x.data(), tokens, heads, width, heads * apart, apart, y});
    });
    const std::vector<double> rate(static_cast<std::size_t>(heads * width), -0.7);
    same_bits(empty, "decay", pools, [&](Pool& p, float* y) {
        decay(p, {x.data(), tokens, heads * width, heads * apart, rate.data(), x.data(), y});
    });
    same_bits(
        std::vector<float>(x.begin(), x.begin() + static_cast<long>(dense)), "clamp", pools,
        [&](Pool& p, float* y) { clamp(p, {y, tokens, heads * width - 3, heads * width, 2}); });
    const std::vector<float> some(x.begin(), x.begin() + static_cast<long>(dense));
    for (const float cap : {0.0f, 3.0f})
        same_bits(some, "scale", pools,
                  [&](Pool& p, float* y) { scale(p, {y, tokens, heads * width, 0.3f, cap}); });
    same_bits(some, "scale_rows", pools, [&](Pool& p, float* y) {
        scale_rows(p, {y, tokens, heads, width - 1, heads * width, width, x.data(), heads, 1});
    });
    same_bits(empty, "layer_norm", pools, [&](Pool& p, float* y) {
        layer_norm(p, {x.data(), tokens, heads * width, x.data(), x.data(), 1e-3f, y});
    });
}

void entries(const Pools& pools) {
    const std::int64_t rows = 40, width = 1001, tokens = 200;
    const auto table = noise(static_cast<std::size_t>(rows * width));
    std::vector<std::int64_t> ids;
    for (std::int64_t t = 0; t < tokens; ++t) ids.push_back(t * 7 % rows);
    for (const int format : {0, 1, 2}) {
        const auto nbytes = static_cast<std::int64_t>(format_nbytes(format)) * width;
        same_bits(
            std::vector<float>(static_cast<std::size_t>(tokens * width), kNaN), "lookup", pools,
            [&](Pool& p, float* y) {
                // Zeros: random bits would hold NaNs in the 16-bit formats.
                static const std::vector<std::byte> zeros(static_cast<std::size_t>(rows) * 4004);
                lookup(p, {format == 0 ? reinterpret_cast<const std::byte*>(table.data())
                                       : zeros.data(),
                           format, rows, width, nbytes, ids.data(), tokens, y});
            });
    }
    same_bits(std::vector<float>(static_cast<std::size_t>(tokens * 64), kNaN), "angles", pools,
              [&](Pool& p, float* y) {
                  angles(p, {ids.data(), tokens, table.data(), 32, 1.5f, y, y + tokens * 32});
              });
    for (const std::int64_t n : {std::int64_t{1}, width, rows * width}) {
        std::vector<std::vector<std::int64_t>> found;
        for (Pool* pool : pools) {
            found.emplace_back(static_cast<std::size_t>(rows * width / n), -2);
            best(*pool, {table.data(), rows * width / n, n, found.back().data()});
            check(found.back() == found.front(), "best");
            for (const std::int64_t at : found.back()) check(at >= 0 && at < n, "best in its row");
        }
    }
}

void keys(const Pools& pools) {
    const std::int64_t tokens = 500, width = 70;
    const auto x = noise(static_cast<std::size_t>(tokens * width));
    std::vector<std::int64_t> slots;
    for (std::int64_t t = 0; t < tokens; ++t) slots.push_back(tokens - 1 - t);
    for (const int format : {0, 1}) {
        const std::size_t floats = x.size() / (format == 0 ? 1 : 2);
        same_bits(std::vector<float>(floats, 1.0f), "store_kv", pools, [&](Pool& p, float* y) {
            store_kv(p, {x.data(), tokens, width, width, slots.data(),
                         reinterpret_cast<std::byte*>(y), format});
        });
    }
}

// `latent`: values are the first channels of the keys.
void attends(const Pools& pools, int heads, int kv_heads, int dim, int value_dim, int window,
             bool latent = false) {
    const std::vector<std::int32_t> offsets = {0, 1, 41, 41, 44}, contexts = {1500, 0, 9, 250};
    const std::int64_t block = 16, max_blocks = 94;
    std::vector<std::int32_t> blocks(4 * static_cast<std::size_t>(max_blocks));
    for (std::size_t i = 0; i < blocks.size(); ++i)
        blocks[i] = static_cast<std::int32_t>(i * 7 % blocks.size());
    const auto rows = blocks.size() * static_cast<std::size_t>(block * kv_heads);
    const auto k = noise(rows * static_cast<std::size_t>(dim));
    const auto v = noise(rows * static_cast<std::size_t>(value_dim));
    const auto q = noise(44 * static_cast<std::size_t>(heads * dim));
    const auto sinks = noise(static_cast<std::size_t>(heads));
    const std::size_t out = 44 * static_cast<std::size_t>(heads * value_dim);
    same_bits(std::vector<float>(out, kNaN), "attention", pools, [&](Pool& p, float* y) {
        attention(p, {q.data(),
                      heads * dim,
                      reinterpret_cast<const std::byte*>(k.data()),
                      reinterpret_cast<const std::byte*>((latent ? k : v).data()),
                      kF32,
                      y,
                      4,
                      offsets.data(),
                      contexts.data(),
                      blocks.data(),
                      max_blocks,
                      block,
                      heads,
                      kv_heads,
                      dim,
                      value_dim,
                      0.3f,
                      window,
                      window % 2 == 1,
                      window > 0 ? sinks.data() : nullptr,
                      latent ? dim : 0});
    });
}

void per_heads(const Pools& pools) {
    const int heads = 3, inputs = 20, outputs = 33, keep = 5;
    const auto w = noise(static_cast<std::size_t>(heads * inputs * outputs));
    for (const bool across : {false, true}) {
        const int rows = across ? inputs : outputs, columns = across ? outputs : inputs;
        std::vector<Matrix::Given> given;
        for (int h = 0; h < heads; ++h)
            given.push_back({reinterpret_cast<std::uintptr_t>(w.data() + h * rows * columns), rows,
                             columns * 4, kF32});
        const Matrix matrix(given, columns);
        for (const int tokens : {1, 3, 300}) {
            const auto x = noise(static_cast<std::size_t>(tokens * heads * (inputs + keep)));
            const std::vector<float> out(
                static_cast<std::size_t>(tokens * heads * (outputs + keep)), kNaN);
            same_bits(out, "per_head", pools, [&](Pool& p, float* y) {
                per_head(p,
                         {x.data(), tokens, heads * (inputs + keep), inputs + keep, y, keep, across,
                          true},
                         matrix);
            });
        }
    }
}

void states(const Pools& pools) {
    const std::vector<std::int32_t> offsets = {0, 1, 60, 60, 63}, slots = {2, 0, 1, 3};
    const std::int64_t tokens = 63;
    for (const int kernel : {1, 3, 4}) {
        const std::int64_t channels = 700;
        const auto x = noise(static_cast<std::size_t>(tokens * channels));
        const auto w = noise(static_cast<std::size_t>(channels * kernel));
        const auto start = noise(static_cast<std::size_t>(4 * channels * (kernel - 1)));
        same_bits(std::vector<float>(x.size(), kNaN), "conv", pools, [&](Pool& p, float* y) {
            auto state = start;
            conv(p, {x.data(), tokens, channels, channels, kernel, w.data(), nullptr, 4,
                     offsets.data(), slots.data(), state.data(), true, y});
        });
    }
    for (const int dim : {5, 40, 64}) {
        const int width = dim + 3;
        const auto qk = noise(static_cast<std::size_t>(tokens * 2 * dim));
        const auto v = noise(static_cast<std::size_t>(tokens * 4 * width));
        const auto decay = std::vector<float>(static_cast<std::size_t>(tokens * 4), -0.1f);
        const auto state = noise(static_cast<std::size_t>(4 * 4 * dim * width));
        std::vector<float> out(state);
        out.resize(state.size() + v.size(), kNaN);
        same_bits(out, "delta", pools, [&](Pool& p, float* y) {
            delta(p, {qk.data(), qk.data(), v.data(), 2 * dim, 2 * dim, 4 * width, decay.data(),
                      decay.data(), y + state.size(), 4, offsets.data(), slots.data(), y, 2, 4, dim,
                      width, true, 0.2f});
        });
        same_bits(out, "ssm", pools, [&](Pool& p, float* y) {
            ssm(p, {v.data(), qk.data(), qk.data(), 4 * width, 2 * dim, 2 * dim, decay.data(),
                    v.data(), qk.data(), y + state.size(), 4, offsets.data(), slots.data(), y, 2, 4,
                    dim, width});
        });
    }
}

void routes(const Pools& pools) {
    for (const int experts : {4, 60, 128}) {
        const std::int64_t tokens = 200;
        const auto logits = noise(static_cast<std::size_t>(tokens * experts), 4.0f);
        const auto bias = noise(static_cast<std::size_t>(experts));
        for (const int score : {0, 1, 2})
            same_bits(std::vector<float>(tokens * 4, kNaN), "route", pools, [&](Pool& p, float* y) {
                std::vector<std::int32_t> ids(tokens * 4, -1);
                route(p, {logits.data(), tokens, experts, 4, score, bias.data(), 4, 2, true, 0.0f,
                          1.0f, experts == 60 ? bias.data() : nullptr, ids.data(), y});
                for (const std::int32_t id : ids) check(id >= 0 && id < experts, "route ids");
            });
    }
}

}  // namespace

int main(int argc, char** argv) {
    const std::string isa = argc > 1 ? argv[1] : "";
    Pool one(1, false, isa);
    Pool four(4, false, isa);
    const Pools pools = {&one, &four, &four};
    norms(pools);
    gates(pools);
    entries(pools);
    keys(pools);
    per_heads(pools);
    attends(pools, 3, 1, 24, 24, 0);
    attends(pools, 8, 2, 63, 40, 100);
    attends(pools, 4, 4, 128, 64, 301);
    attends(pools, 100, 1, 40, 33, 0, true);
    attends(pools, 20, 1, 24, 16, 0, true);
    states(pools);
    routes(pools);
    std::printf("ok %s\n", one.kernels().name);
}
