// Packed kernels on matrices that end where their memory ends: under a sanitizer nothing behind the
// last row may be read. Fast products against exact ones, for odd shapes.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>

#include "linear.hpp"
#include "test/check.hpp"
#include "test/tables.hpp"

using namespace headrace;

namespace {

std::mt19937 bits(11);

struct Kind {
    int format;
    std::vector<int> columns;
};

std::vector<Kind> kinds() {
    std::vector<Kind> all{{with_group(kFP8Block, 128), {1, 40, 128, 200, 300}},
                          {with_group(kFP8Block, 16), {48, 200}},
                          {kFP8Row, {1, 33, 128, 200}},
                          {with_group(kMXFP8, 32), {32, 288}},
                          {with_group(kMXFP4, 32), {32, 96, 256, 288, 768}},
                          {kNVFP4, {16, 48, 64, 256, 320}},
                          {with_group(kInt4F16, 128), {128, 384}},
                          {with_group(kInt4BF16, 32), {32, 256, 480}},
                          {with_group(kInt4F16, 64, true), {64, 320}},
                          {with_group(kInt4BF16, 512, true), {512, 1536}},
                          {with_group(kInt4F16, 16), {16, 48}},
                          {with_group(kInt4F16Ordered, 32, true), {32, 96}},
                          {with_group(kInt4BF16Ordered, 128), {128, 640}},
                          {with_group(kInt4F16Ordered, 16), {16, 48}}};
    for (const int kind : {kQ4_0, kQ5_0, kQ8_0, kIQ4_NL, kGgmlMXFP4, kQ4_1, kQ5_1})
        all.push_back({kind, {32, 96, 256, 544}});
    for (const int kind : {kQ2_K, kQ3_K, kQ4_K, kQ5_K, kQ6_K, kIQ4_XS})
        all.push_back({kind, {256, 768}});
    return all;
}

void check(Pool& pool, int format, int rows, int columns, int tokens) {
    const std::size_t tile = tile_nbytes(format, columns);
    const int tall = tile_rows(format);
    const auto tiles = static_cast<std::size_t>((rows + tall - 1) / tall);
    // Exactly the tiles, on the heap. These bytes are numbers of every format, and no large ones.
    const auto w = std::make_unique<std::byte[]>(tiles * tile);
    fill_tiles(w.get(), tiles, format, columns, 0xb, 0x30, bits);
    std::vector<float> x(static_cast<std::size_t>(columns * tokens));
    std::normal_distribution<float> draw;
    for (float& f : x) f = draw(bits);
    const Matrix matrix({{reinterpret_cast<std::uintptr_t>(w.get()), rows,
                          static_cast<std::int64_t>(tile), format}},
                        columns);
    const auto n = static_cast<std::size_t>(rows * tokens);
    std::vector<float> exact(n, NAN), fast(n, NAN);
    linear(pool, x.data(), tokens, matrix, nullptr, exact.data(), true);
    linear(pool, x.data(), tokens, matrix, nullptr, fast.data(), false);
    double off = 0.0, all = 1e-300;
    for (std::size_t i = 0; i < n; ++i) {
        off += std::pow(static_cast<double>(fast[i]) - static_cast<double>(exact[i]), 2);
        all += std::pow(static_cast<double>(exact[i]), 2);
    }
    // A single product may nearly cancel; a wrong weight is off by far more.
    CHECK(off <= 1e-4 * all, "%s format %x [%d, %d] x %d: %g", pool.kernels().name, format, rows,
          columns, tokens, off / all);
}

// An order of columns that are not there.
void check_damage(Pool& pool) {
    constexpr int kRows = 70, kColumns = 64;
    const int format = with_group(kInt4F16Ordered, 32, true);
    const std::size_t tile = tile_nbytes(format, kColumns);
    std::vector<std::byte> w(2 * tile, std::byte{0x33});
    for (std::size_t i = 0; i < 2; ++i)
        std::fill_n(w.begin() + static_cast<long>(i * tile), 2 * kColumns, std::byte{0xff});
    const std::vector<float> x(5 * kColumns, 1.0f);
    const Matrix matrix({{reinterpret_cast<std::uintptr_t>(w.data()), kRows,
                          static_cast<std::int64_t>(tile), format}},
                        kColumns);
    for (const int tokens : {1, 5}) {
        std::vector<float> out(kRows * 5, NAN);
        linear(pool, x.data(), tokens, matrix, nullptr, out.data(), false);
        for (int i = 0; i < kRows * tokens; ++i)
            CHECK(std::isfinite(out[static_cast<std::size_t>(i)]), "%s", pool.kernels().name);
    }
}

}  // namespace

int main() {
    for (const KernelTable* table : tables_to_test()) {
        Pool pool(2, true, *table, false);
        check_damage(pool);
        for (const Kind& kind : kinds())
            for (const int columns : kind.columns)
                for (const int rows : {1, 2, 9, 37, 1100}) {
                    if (rows > 1000 && !is_laned(kind.format)) continue;  // long streams
                    for (const int tokens : {1, 2, 3, 5})
                        check(pool, kind.format, rows, columns, tokens);
                }
        std::printf("%s: %d failures so far\n", table->name, failures);
    }
    return failures == 0 ? 0 : 1;
}
