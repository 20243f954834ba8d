// Few tokens with E4M3 weights: widened in registers, with the activations as they are.
//
// A row's sum walks its groups in order, whatever shares the call, in strides of 128 columns.

namespace headrace::HEADRACE_ISA {

// A row of kWideInput: of each 32 columns the even ones, then the odd ones, and the row as it was.
struct WideRow {
    const float *wide, *x;

    WideRow() = default;
    WideRow(const std::byte* row, int columns) {
        wide = reinterpret_cast<const float*>(row);
        x = wide + (columns + 31) / 32 * 32;
    }
};

inline void put_wide(std::byte* row, int columns, int first, const float* x, int n) {
    const WideRow at(row, columns);
    std::memcpy(const_cast<float*>(at.x) + first, x, static_cast<std::size_t>(n) * sizeof(float));
    for (int k = 0; k < n; k += 32) {
        float v[32] = {};
        std::memcpy(v, x + k, static_cast<std::size_t>(std::min(32, n - k)) * sizeof(float));
        float* to = const_cast<float*>(at.wide) + first + k;
        for (int i = 0; i < 32; ++i) to[i % 2 * 16 + i / 2] = v[i];
    }
}

// As many floats as a register of the set takes.
#if defined(HEADRACE_SIMD_AVX512)
using WideFloats = F32;
HEADRACE_INLINE F32 wide_same(float f) { return F32::set1(f); }
HEADRACE_INLINE F32 load_wide(const float* p) { return F32::load(p); }
HEADRACE_INLINE F32 mul(F32 a, F32 b) { return a * b; }
HEADRACE_INLINE F32 add(F32 a, F32 b) { return a + b; }
HEADRACE_INLINE float sum_of_lanes(F32 v) { return v.reduce_add(); }
HEADRACE_INLINE void floats_of_halves(V32 v, F32 (&to)[1]) { to[0] = {_mm512_cvtph_ps(v)}; }
#else
using WideFloats = F8;
HEADRACE_INLINE F8 wide_same(float f) { return same(f); }
HEADRACE_INLINE F8 load_wide(const float* p) { return load_floats(p); }
HEADRACE_INLINE void floats_of_halves(V32 v, F8 (&to)[2]) {
    to[0] = floats_of_f16(low_half(v));
    to[1] = floats_of_f16(high_half(v));
}
#endif
inline constexpr int kWideLanes = sizeof(WideFloats) / sizeof(float), kWideParts = 16 / kWideLanes;

// 32 E4M3 times 2^-8 as float32, by way of float16, which they are the upper parts of: float32
// whose bits they are would be subnormal where they are, and an Intel core takes 150 cycles for
// such.
struct Wide {
    WideFloats even[kWideParts], odd[kWideParts];

    explicit HEADRACE_INLINE Wide(V32 codes) {
        const V32 bits = each16(0xbf80);
        floats_of_halves(bits_and(down16(left16(codes, 8), 1), bits), even);
        floats_of_halves(bits_and(down16(codes, 1), bits), odd);
    }
};

// The codes 127 and 255 are no numbers, but finite here: a row remembers whether it met one.
struct E4M3Nans {
    V32 most_signed = no_bits(), most = no_bits();

    HEADRACE_INLINE void meet(V32 codes) {
        most_signed = most_signed8(most_signed, codes);
        most = most8(most, codes);
    }
    bool any() const {
        const V32 positive = equal8(most_signed, each8(127));
        const V32 negative = equal8(most, each8(-1));
        return any_bit(bits_or(positive, negative));
    }
};

template <int T>
HEADRACE_INLINE void e4m3_step(V32 codes, const WideRow (&x)[T], int k, WideFloats (&sum)[T][2],
                               E4M3Nans& nans) {
    nans.meet(codes);
    const Wide w(codes);
    for (int i = 0; i < kWideParts; ++i)
        for (int t = 0; t < T; ++t) {
            const float* at = x[t].wide + k + i * kWideLanes;
            sum[t][0] = fma(w.even[i], load_wide(at), sum[t][0]);
            sum[t][1] = fma(w.odd[i], load_wide(at + 16), sum[t][1]);
        }
}

// Columns [from, from + n) of one row with T tokens.
template <int T>
HEADRACE_INLINE void e4m3_products(const std::byte* q, const WideRow (&x)[T], int from, int n,
                                   WideFloats (&part)[T], E4M3Nans& nans) {
    WideFloats sum[T][2];
    for (int t = 0; t < T; ++t) sum[t][0] = sum[t][1] = wide_same(0.0f);
    int k = from;
    for (; k + 32 <= from + n; k += 32) e4m3_step<T>(load32(q + k), x, k, sum, nans);
    if (k < from + n) {
        std::byte rest[32] = {};
        std::memcpy(rest, q + k, static_cast<std::size_t>(from + n - k));
        e4m3_step<T>(load32(rest), x, k, sum, nans);
    }
    for (int t = 0; t < T; ++t) part[t] = add(sum[t][0], sum[t][1]);
}

// E8M0 times 2^8, where that is a number.
struct WideScales {
    float of[256];
};
inline constexpr WideScales kWideE8M0 = [] {
    WideScales table{};
    table.of[0] = 0x1p-119f;
    for (int i = 1; i < 255; ++i) table.of[i] = i < 247 ? 2.0f * table.of[i - 1] : 0x1p127f;
    table.of[255] = std::bit_cast<float>(0x7fc00000u);
    return table;
}();

template <bool kMX>
HEADRACE_INLINE WideFloats wide_scale(const std::byte* scales, int g) {
    if constexpr (kMX) return wide_same(kWideE8M0.of[byte_at(scales, g)]);
    return wide_same(load_as<float>(scales + 4 * g) * 256.0f);
}

// The whole strides of a row, of groups of 32 or of whole strides; where they end.
template <bool kMX, bool kShort, int T>
HEADRACE_INLINE int e4m3_strides(const std::byte* scales, const std::byte* q, int group,
                                 int columns, const WideRow (&x)[T], WideFloats (&sum)[T],
                                 E4M3Nans& nans) {
    int from = 0;
    for (; from + 128 <= columns; from += 128) {
        ask_ahead<128>(q + from);
        WideFloats part[T], two[T][2];
        for (int t = 0; t < T; ++t) two[t][0] = two[t][1] = wide_same(0.0f);
        unrolled<4>([&](auto i) {
            const int k = from + i * 32;
            e4m3_step<T>(load32(q + k), x, k, two, nans);
            if (!kShort && i < 3) return;
            const WideFloats scale = wide_scale<kMX>(scales, k / group);
            for (int t = 0; t < T; ++t) {
                const WideFloats both = add(two[t][0], two[t][1]);
                part[t] = !kShort || i == 0 ? mul(both, scale) : fma(both, scale, part[t]);
                two[t][0] = two[t][1] = wide_same(0.0f);
            }
        });
        for (int t = 0; t < T; ++t) sum[t] = add(sum[t], part[t]);
    }
    return from;
}

// One row: its codes, and where its scales are. kMX: E8M0, else float32.
template <bool kMX, int T>
inline void e4m3_row(const Dot& d, const std::byte* scales, const std::byte* q, int group, int row,
                     const WideRow (&x)[T]) {
    WideFloats sum[T], part[T];
    for (int t = 0; t < T; ++t) sum[t] = wide_same(0.0f);
    E4M3Nans nans;
    int from = 0;
    if (kMX && group == 32)
        from = e4m3_strides<kMX, true>(scales, q, 32, d.columns, x, sum, nans);
    else if (group % 128 == 0 || group == d.columns)
        from = e4m3_strides<kMX, false>(scales, q, group, d.columns, x, sum, nans);
    for (int g = from / group; from < d.columns; ++g) {
        const WideFloats scale = wide_scale<kMX>(scales, g);
        const int end = std::min(from + group, d.columns);
        for (; from < end; from += 128) {
            e4m3_products<T>(q, x, from, std::min(128, end - from), part, nans);
            for (int t = 0; t < T; ++t) sum[t] = fma(part[t], scale, sum[t]);
        }
        from = end;
    }
    const bool nan = nans.any();
    for (int t = 0; t < T; ++t)
        d.out[static_cast<std::size_t>(t) * d.out_stride + static_cast<std::size_t>(row)] =
            nan ? std::bit_cast<float>(0x7fc00000u) : sum_of_lanes(sum[t]);
}

template <bool kMX, int T>
inline void e4m3_stream(const Dot& d) {
    const Tiles tiles{d.w, d.w_stride, d.columns, d.format};
    const int group = kind_of(d.format) == kFP8Row ? d.columns : group_of(d.format);
    const int groups = (d.columns + group - 1) / group, tall = tile_rows(d.format);
    WideRow x[T];
    for (int t = 0; t < T; ++t) x[t] = WideRow(d.x[t], d.columns);
    for (int row = 0; row < d.rows; ++row) {
        const std::byte* tile = tiles.tile(row);
        const std::byte* q =
            tile + groups * (kMX ? 1 : 4) + static_cast<std::ptrdiff_t>(row % tall) * d.columns;
        e4m3_row<kMX, T>(d, tile, q, group, row, x);
    }
}

// Many tokens, and groups that are no whole vectors: as float32.
template <bool kMX, void (*kUnpack)(const Tiles&, int, float*)>
void e4m3_run(const Dot& d) {
    if (d.tokens <= 3 && (kind_of(d.format) == kFP8Row || group_of(d.format) % 32 == 0)) {
        if (d.tokens == 1) return e4m3_stream<kMX, 1>(d);
        if (d.tokens == 2) return e4m3_stream<kMX, 2>(d);
        return e4m3_stream<kMX, 3>(d);
    }
    plain_run<WideRow, kUnpack>(d);
}

inline void put_e4m3_kernels(KernelTable& t) {
    t.put[kWideInput] = put_wide;
    const auto put = [&](int kind, void (*run)(const Dot&)) {
        t.fast[kind] = {kWideInput, kTileTokens, run, fixed_scratch_nbytes, dot_tile_rows};
    };
    put(kFP8Block, e4m3_run<false, unpack_fp8_block>);
    put(kFP8Row, e4m3_run<false, unpack_fp8_row>);
    put(kMXFP8, e4m3_run<true, unpack_mxfp8>);
}

}  // namespace headrace::HEADRACE_ISA
