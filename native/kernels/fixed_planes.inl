// Q5_K for `fixed_rows`: codes are bytes, and so are the halves of the activations.
//
// All 256 columns of a block have one scale of the activations, of which q = 256 h + l with signed
// bytes h and l: a block is sums of integers, with its scales of 6 bits, and one float product.

namespace headrace::HEADRACE_ISA {

// A vector of codes has two groups: eight columns of the first, as many of the second, and again
// the columns 16 further; the activations' h of these come before their l. `place` is where group g
// of a block has its columns 8 i to 8 i + 7.
struct PlanesRow : FixedRow {
    const float* scales;  // one for each block

    PlanesRow() = default;
    PlanesRow(const std::byte* row, int columns) : FixedRow(row, columns) {
        scales = reinterpret_cast<const float*>(more + fixed_blocks(columns) * 512);
    }
    static constexpr int vector(int half, int nibble, int odd) {
        return ((half * 2 + nibble) * 2 + odd) * 64;
    }
    static constexpr int place(int g, int i) {
        return vector(g / 4, g % 2, i % 2) + i / 2 * 16 + g / 2 % 2 * 8;
    }
};

// 256 floats as two bytes each, in units of `scale`.
inline void put_planes_block(std::int8_t* to, const float* from, float inverse) {
    const F8 unit = same(inverse);
    for (int g = 0; g < 8; ++g) {
        V32 n[4];
        for (int i = 0; i < 4; ++i) n[i] = rounded(mul(load_floats(from + g * 32 + i * 8), unit));
        for (int i = 0; i < 4; i += 2) {
            const V32 bytes = in_bytes(narrow32(n[i], n[i + 1]));
            for (int k = 0; k < 2; ++k) {
                const V16 eight = k == 0 ? low_half(bytes) : high_half(bytes);
                std::int8_t* at = to + PlanesRow::place(g, i + k);
                store_low8(at, eight);
                store_low8(at + 32, zip64_high(eight, eight));
            }
        }
    }
}

inline void put_planes(std::byte* row, int columns, int first, const float* x, int n) {
    put_fixed<kEvensInput>(row, columns, first, x, n);
    const PlanesRow at(row, columns);
    for (int k = 0; k < n; k += 256) {
        float block[256] = {};
        std::memcpy(block, x + k, static_cast<std::size_t>(std::min(n - k, 256)) * sizeof(float));
        float largest = 0.0f;
        bool sound = true;
        for (const float f : block) {
            largest = std::max(largest, std::abs(f));
            sound = sound && std::abs(f) <= 3e38f;
        }
        const int b = (first + k) / 256;
        const_cast<float*>(at.scales)[b] =
            sound ? largest / kMostFixed : std::bit_cast<float>(0x7fc00000u);
        if (!sound) std::memset(block, 0, sizeof block);
        put_planes_block(const_cast<std::int8_t*>(at.bytes()) + b * 512, block,
                         sound && largest > 1e-30f ? kMostFixed / largest : 0.0f);
    }
}

struct PlanesQ5_K {
    static constexpr Input kInput = kPlanesInput;
    static constexpr bool kOffset = true, kTails = false;
    const std::byte* blocks;
    PlanesQ5_K(const std::byte* tile, const Tiles&) : blocks(tile) {}
    static bool fits(const Tiles&) { return true; }

    // Eight scales, eight minima: as `scale_min`, all at once.
    struct Six {
        std::uint64_t scales, minima;
        explicit Six(const std::byte* b) {
            const auto s = load_as<std::uint32_t>(b + 4), m = load_as<std::uint32_t>(b + 8);
            const auto rest = load_as<std::uint32_t>(b + 12);
            const std::uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, top = 0x30303030;
            scales = (s & six) | std::uint64_t{(rest & four) | (s >> 2 & top)} << 32;
            minima = (m & six) | std::uint64_t{(rest >> 4 & four) | (m >> 2 & top)} << 32;
        }
    };
    // The scale of a vector's two groups, for each eight columns.
    template <int kHalf, int kNibble>
    static V32 spread(V32 scales) {
        constexpr int a = kHalf * 4 + kNibble;
        return lookup(scales, scale_places(a, a + 2));
    }
    // The fifth bit of a vector's codes, of `bits` twice what 8 columns have.
    template <int kHalf, int kNibble>
    static V32 with_fifth(V32 codes, V32 bits) {
        const V32 at = kHalf == 0 ? left64(bits, counts64(4 - kNibble, 2 - kNibble))
                                  : right64(bits, counts64(kNibble, 2 + kNibble));
        return bits_or(codes, bits_and(at, each8(16)));
    }

    template <int T>
    HEADRACE_INLINE void add(int block, const PlanesRow (&x)[T], int xb, F8 (&sum)[T],
                             F8 (&less)[T]) const {
        const std::byte* b = stream(block);
        const Six six(b);
        const V32 scales = each64(six.scales);
        const V32 all = load32(b + 16);
        const V32 bits[2] = {zip64_low(all, all), zip64_high(all, all)};
        V32 high_sum[T] = {}, low_sum[T] = {};
        unrolled<2>([&](auto half) {
            const std::byte* q = b + 48 + half * 64;
            const V32 first = load32(q), second = load32(q + 32);
            const V32 v[2] = {zip64_low(first, second), zip64_high(first, second)};
            unrolled<2>([&](auto nibble) {
                V32 c[2];
                for (int odd = 0; odd < 2; ++odd)
                    c[odd] = with_fifth<half, nibble>(
                        nibble == 0 ? low_nibbles(v[odd]) : high_nibbles(v[odd]), bits[odd]);
                const V32 s = spread<half, nibble>(scales);
                for (int t = 0; t < T; ++t) {
                    const std::int8_t* p =
                        x[t].bytes() + xb * 512 + PlanesRow::vector(half, nibble, 0);
                    high_sum[t] =
                        add_scaled_pair(high_sum[t], c[0], load32(p), c[1], load32(p + 64), s);
                    low_sum[t] =
                        add_scaled_pair(low_sum[t], c[0], load32(p + 32), c[1], load32(p + 96), s);
                }
            });
        });
        const F8 minima = floats(words_of_bytes(low8(six.minima)));
        const float d = half_fast(b), least = half_fast(b + 2);
        for (int t = 0; t < T; ++t) {
            const F8 product = floats(add32(left32(high_sum[t], 8), low_sum[t]));
            sum[t] = fma(product, same(d * x[t].scales[xb]), sum[t]);
            less[t] = fma(mul(minima, load_floats(x[t].sum + xb * 8)), same(least), less[t]);
        }
    }
    static constexpr int kStreamNbytes = 176;
    const std::byte* stream(int b) const { return blocks + b * kStreamNbytes; }
    float whole() const { return 1.0f; }
};

template <>
struct Habits<PlanesQ5_K> {
    using Row = PlanesRow;
    static constexpr int kRows = 1;
};

}  // namespace headrace::HEADRACE_ISA
