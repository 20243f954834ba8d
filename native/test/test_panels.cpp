// Packed weights on every kernel table: rows as the plain decoders have them, products against
// sums in double, the bits of tokens in any company of more than a stream's, and the same bits from
// sets that differ in their integer products alone.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "test/check.hpp"
#include "test/tables.hpp"

using namespace headrace;

namespace {

constexpr int kColumns = 768, kRows = 37, kTokens = 133;  // more than a block of any kernel

std::vector<int> formats() {
    std::vector<int> all{with_group(kFP8Block, 128),       kFP8Row,
                         with_group(kMXFP8, 32),           with_group(kMXFP4, 32),
                         with_group(kMXFP4, 64),           kNVFP4,
                         with_group(kInt4F16, 64),         with_group(kInt4BF16, 32, true),
                         with_group(kInt4F16, 16),         with_group(kInt4F16Ordered, 128, true),
                         with_group(kInt4BF16Ordered, 32), with_group(kInt4F16Ordered, 16)};
    for (int kind = kQ4_0; kind < kInt4F16Ordered; ++kind) all.push_back(kind);
    return all;
}

// Bytes whose floats, half floats and powers of two are all of moderate size.
std::vector<std::byte> random_tiles(int format) {
    std::mt19937 bits(5);
    const auto tall = static_cast<std::size_t>(tile_rows(format)),
               count = (kRows + tall - 1) / tall;
    std::vector<std::byte> bytes(count * tile_nbytes(format, kColumns) + 64);
    fill_tiles(bytes.data(), count, format, kColumns, 0x9f, 0x20, bits);
    return bytes;
}

struct Activations {
    std::vector<std::byte> bytes;
    std::vector<const std::byte*> rows;

    Activations(const KernelTable& t, Input input, const std::vector<float>& x) {
        const std::size_t nbytes = input_nbytes(input, kColumns);
        bytes.resize(nbytes * kTokens);
        for (std::size_t i = 0; i < kTokens; ++i) {
            std::byte* row = bytes.data() + i * nbytes;
            t.put[input](row, kColumns, 0, x.data() + i * kColumns, kColumns);
            rows.push_back(row);
        }
    }
};

std::vector<float> product(const DotKernel& kernel, const std::vector<std::byte>& tiles, int format,
                           const Activations& x, int first, int tokens) {
    const std::size_t nbytes = kernel.scratch_nbytes(kRows, kColumns, tokens);
    auto* scratch = static_cast<std::byte*>(std::aligned_alloc(64, (nbytes + 127) / 64 * 64));
    std::memset(scratch, 255, nbytes);
    std::vector<float> out(static_cast<std::size_t>(tokens * kRows), NAN);
    Dot dot{tiles.data(),
            tile_nbytes(format, kColumns),
            kRows,
            kColumns,
            x.rows.data() + first,
            tokens,
            out.data(),
            kRows,
            scratch,
            format};
    kernel.run(dot);
    if (kernel.packing != nullptr) {
        const std::size_t size = kernel.packing->nbytes(kColumns, tokens);
        auto* packed = static_cast<std::byte*>(std::aligned_alloc(64, size));
        std::memset(packed, 255, size);
        kernel.packing->put(dot, packed);
        std::vector<float> again(out.size(), NAN);
        dot.packed = packed;
        dot.out = again.data();
        kernel.run(dot);
        CHECK(std::memcmp(again.data(), out.data(), out.size() * sizeof(float)) == 0,
              "format %x, %d tokens: other bits with activations that were packed before", format,
              tokens);
        std::free(packed);
    }
    std::free(scratch);
    return out;
}

bool on_tiles(const KernelTable& t) { return std::strcmp(t.name, "amx") == 0; }

// Formats whose products with many tokens take twelve bits of an activation, but of a group that
// is one value's (kernels/nibble_tiles.inl).
bool takes_twelve_bits(const KernelTable& t, int kind) {
    const bool four = kind == kQ4_0 || kind == kQ4_K || (kind >= kInt4F16 && kind <= kInt4BF16) ||
                      (kind >= kInt4F16Ordered && kind <= kInt4BF16Ordered);
    return four && on_tiles(t);
}

float rounded_to_bf16(float x) {
    const auto u = std::bit_cast<std::uint32_t>(x);
    return std::bit_cast<float>((u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u);
}

void check_products(const KernelTable& t, int format, const std::vector<std::byte>& tiles,
                    const std::vector<float>& w, const std::vector<float>& x, bool twelve_bits) {
    const int kind = kind_of(format);
    double size = 0, of_bf16 = 0;
    std::vector<double> truth;
    for (int i = 0; i < kTokens; ++i)
        for (int r = 0; r < kRows; ++r) {
            double sum = 0, rounded = 0;
            for (int k = 0; k < kColumns; ++k) {
                const auto weight =
                    static_cast<double>(w[static_cast<std::size_t>(r * kColumns + k)]);
                const float at = x[static_cast<std::size_t>(i * kColumns + k)];
                sum += weight * static_cast<double>(at);
                rounded += weight * static_cast<double>(rounded_to_bf16(at));
            }
            truth.push_back(sum);
            size += sum * sum;
            of_bf16 += std::pow(sum - rounded, 2);
        }
    for (const DotKernel* kernel : {&t.exact[kind], &t.fast[kind]}) {
        const Activations made(t, kernel->input, x);
        const auto all = product(*kernel, tiles, format, made, 0, kTokens);
        double error = 0;
        for (std::size_t i = 0; i < all.size(); ++i)
            error += std::pow(static_cast<double>(all[i]) - truth[i], 2);
        const bool fewer = twelve_bits && kernel == &t.fast[kind];
        CHECK(error < (fewer ? of_bf16 / 8 : 1e-8 * size), "%s format %x: %g of %g, bfloat16 %g",
              t.name, format, error, size, of_bf16);
        const auto some = product(*kernel, tiles, format, made, 3, 5);
        CHECK(std::memcmp(some.data(), all.data() + 3 * kRows, some.size() * sizeof(float)) == 0,
              "%s format %x: bits in company", t.name, format);
    }
}

void check_format(const KernelTable& t, int format) {
    const int kind = kind_of(format);
    const std::size_t stride = tile_nbytes(format, kColumns);
    const auto tiles = random_tiles(format);
    std::vector<float> w(kRows * kColumns), row(kColumns), x(kTokens * kColumns);
    const Tiles of{tiles.data(), stride, kColumns, format};
    for (int r = 0; r < kRows; ++r) {
        float* truth = w.data() + r * kColumns;
        scalar::table().unpack[kind](of, r, truth);
        t.unpack[kind](of, r, row.data());
        for (int k = 0; k < kColumns; ++k)
            CHECK(row[static_cast<std::size_t>(k)] == truth[k], "%s format %x row %d column %d",
                  t.name, format, r, k);
    }
    std::mt19937 bits(6);
    std::normal_distribution<float> draw;
    for (float& f : x) f = draw(bits);
    std::fill_n(x.begin(), kColumns, 1.0f);  // the largest integers, where sums might overflow
    check_products(t, format, tiles, w, x, takes_twelve_bits(t, kind));
    for (std::size_t i = 0; i < x.size(); i += 32) x[i + bits() % 32] = 40.0f + draw(bits);
    check_products(t, format, tiles, w, x, is_ordered(format) && takes_twelve_bits(t, kind));
    // Some groups of some tokens: their bits must not depend on the others'.
    for (float& f : x) f = draw(bits);
    for (std::size_t i = 0; i < x.size(); i += 32 * 37) x[i] = 40.0f + draw(bits);
    check_products(t, format, tiles, w, x, takes_twelve_bits(t, kind));
}

// Formats whose products with many tokens are floats on tiles (kernels/float_tiles.inl), or of
// fewer bits.
bool differs_for_many(const KernelTable& t, int kind) {
    const bool floats =
        kind == kFP8Block || kind == kFP8Row || kind == kNVFP4 || kind == kGgmlMXFP4;
    return (floats && on_tiles(t)) || takes_twelve_bits(t, kind);
}

// Floats are made by tables there (kernels/e4m3_vbmi.inl), and summed up in another order.
bool differs_for_few(const KernelTable& t, int kind) {
    return (kind == kFP8Block || kind == kFP8Row) && on_tiles(t);
}

// Tiles of any bits, and activations whose integers are as large as they get.
void check_same_bits(const KernelTable& one, const KernelTable& other, int format) {
    const int kind = kind_of(format);
    std::mt19937 bits(7);
    auto tiles = random_tiles(format);
    const std::size_t nbytes = tile_nbytes(format, kColumns);
    fill_tiles(tiles.data(), (tiles.size() - 64) / nbytes, format, kColumns, 0xff, 0, bits);
    std::vector<float> x(kTokens * kColumns);
    std::normal_distribution<float> draw;
    for (float& f : x) f = draw(bits);
    for (std::size_t i = 0; i < kColumns; ++i) {
        x[i] = 1.0f;
        x[kColumns + i] = bits() % 2 == 0 ? -1.0f : 1.0f;
        x[2 * kColumns + i] = bits() % 2 == 0 ? -127.0f : 127.999f;  // bytes of -128 and 127
    }
    for (const int tokens : {1, 2, 3, kTokens}) {
        if (tokens > 3 ? differs_for_many(other, kind) : differs_for_few(other, kind)) continue;
        for (int first = 0; first + tokens <= std::min(kTokens, 11 * tokens); first += tokens) {
            const auto with = [&](const KernelTable& t) {
                const DotKernel& kernel = t.fast[kind];
                return product(kernel, tiles, format, Activations(t, kernel.input, x), first,
                               tokens);
            };
            const auto a = with(one), b = with(other);
            for (std::size_t i = 0; i < a.size(); ++i)
                CHECK(std::bit_cast<int>(a[i]) == std::bit_cast<int>(b[i]) ||
                          (std::isnan(a[i]) && std::isnan(b[i])),
                      "%s and %s format %x, %d tokens from %d: %g and %g", one.name, other.name,
                      format, tokens, first, a[i], b[i]);
        }
    }
}

}  // namespace

int main() {
    for (const KernelTable* table : tables_to_test()) {
        for (const int format : formats()) check_format(*table, format);
        std::printf("%s: %d failures so far\n", table->name, failures);
    }
    for (const auto& [one, other] : tables_of_same_bits())
        for (const int format : formats()) check_same_bits(*one, *other, format);
    return failures == 0 ? 0 : 1;
}
