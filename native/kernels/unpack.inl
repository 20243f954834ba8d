// One row of a packed format as float32, a function a format, and the products that go through it.
//
// Unpacking is exact up to the format's own products of scales; everything after it is the float32
// product, so these kernels keep its bits for any company.

namespace headrace::HEADRACE_ISA {

template <class T>
inline T load_as(const std::byte* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

inline float half_at(const std::byte* p) { return float_from_f16(load_as<std::uint16_t>(p)); }
inline int byte_at(const std::byte* p, int i) { return static_cast<int>(p[i]); }

// 2^(b - 127); 255 is no number.
inline float float_from_e8m0(std::byte b) {
    const auto e = static_cast<std::uint32_t>(b);
    if (e == 0) return 0x1p-127f;
    return std::bit_cast<float>(e == 255 ? 0x7fc00000u : e << 23);
}

constexpr float float_from_e4m3(int code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    if ((code & 127) == 127) return std::bit_cast<float>(0x7fc00000u);
    float value = exponent == 0 ? static_cast<float>(mantissa) : static_cast<float>(8 + mantissa);
    value *= 0x1p-9f;
    for (int i = 1; i < exponent; ++i) value *= 2.0f;
    return code >= 128 ? -value : value;
}

// Made by the compiler: code that ran when the library is loaded would be of any instruction set.
struct E4M3Table {
    float of[256];
};
inline constexpr E4M3Table kE4M3 = [] {
    E4M3Table table{};
    for (int i = 0; i < 256; ++i) table.of[i] = float_from_e4m3(i);
    return table;
}();

inline float e4m3(std::byte b) { return kE4M3.of[static_cast<int>(b)]; }

inline constexpr float kE2M1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

inline void e4m3_times(const std::byte* q, int n, float scale, float* to) {
    int i = 0;
#if defined(HEADRACE_PACKED)
    // A code is the upper part of a float16, 2^8 times smaller; its NaNs are those of float16.
    const V16 number = small16(0x3f80), keep = small16(0xbf80);
    for (; i + 8 <= n; i += 8) {
        const V16 up = zip8_low(small8(0), load_low8(q + i));
        V16 h = bits_and(down16(up, 1), keep);
        h = bits_or(h, bits_and(equal16(bits_and(h, number), number), small16(0x7f80)));
        store_floats(to + i, mul(mul(floats_of_f16(h), same(256.0f)), same(scale)));
    }
#endif
    for (; i < n; ++i) to[i] = e4m3(q[i]) * scale;
}

// n columns of E2M1, the even one of a byte in its low nibble.
inline void e2m1_times(const std::byte* q, int n, float scale, float* to) {
    for (int i = 0; i < n / 2; ++i) {
        const int b = byte_at(q, i);
        to[2 * i] = kE2M1[b & 15] * scale;
        to[2 * i + 1] = kE2M1[b >> 4] * scale;
    }
}

inline void unpack_fp8_block(const Tiles& t, int row, float* to) {
    const std::byte* tile = t.tile(row);
    const int group = group_of(t.format), groups = (t.columns + group - 1) / group;
    const int within = row % tile_rows(t.format);
    const std::byte* q = tile + static_cast<std::size_t>(groups) * sizeof(float) +
                         static_cast<std::size_t>(within) * static_cast<std::size_t>(t.columns);
    for (int g = 0; g < groups; ++g) {
        const int from = g * group, n = std::min(group, t.columns - from);
        e4m3_times(q + from, n, load_as<float>(tile + g * 4), to + from);
    }
}

inline void unpack_fp8_row(const Tiles& t, int row, float* to) {
    const std::byte* tile = t.tile(row);
    e4m3_times(tile + sizeof(float), t.columns, load_as<float>(tile), to);
}

inline void unpack_mxfp8(const Tiles& t, int row, float* to) {
    const std::byte* tile = t.tile(row);
    const int group = group_of(t.format), groups = t.columns / group;
    for (int g = 0; g < groups; ++g)
        e4m3_times(tile + groups + g * group, group, float_from_e8m0(tile[g]), to + g * group);
}

inline void unpack_mxfp4(const Tiles& t, int row, float* to) {
    const std::byte* tile = t.tile(row);
    const int group = group_of(t.format), groups = t.columns / group;
    for (int g = 0; g < groups; ++g)
        e2m1_times(tile + groups + g * group / 2, group, float_from_e8m0(tile[g]), to + g * group);
}

template <bool kBF16Scales>
inline void unpack_int4(const Tiles& t, int row, float* to) {
    const std::byte* tile = t.tile(row);
    const int group = group_of(t.format), groups = t.columns / group;
    const bool zeros = has_zeros(t.format);
    const std::byte* q = tile + groups * (zeros ? 3 : 2);
    for (int g = 0; g < groups; ++g) {
        const std::byte* at = tile + 2 * g;
        const float scale = kBF16Scales ? float_from_bf16(load_as<std::uint16_t>(at)) : half_at(at);
        const int zero = zeros ? byte_at(tile, 2 * groups + g) : 8;
        for (int i = 0; i < group / 2; ++i) {
            const int b = byte_at(q, (g * group) / 2 + i);
            to[g * group + 2 * i] = static_cast<float>((b & 15) - zero) * scale;
            to[g * group + 2 * i + 1] = static_cast<float>((b >> 4) - zero) * scale;
        }
    }
}

// Many rows through one buffer of float32, whatever they were.
template <void (*kUnpack)(const Tiles&, int, float*)>
void unpacked_run(const Dot& d) {
    const std::size_t stride = padded_columns(d.columns);
    auto* rows = reinterpret_cast<float*>(d.scratch);
    const Tiles tiles{d.w, d.w_stride, d.columns, d.format};
    if (d.tokens > kTileTokens) {
        float* panels = rows + stride;
        int r = 0;
        for (; r < d.rows; ++r) {
            kUnpack(tiles, r, rows);
            put_in_panel<kTileRows, FloatRows>(rows, d.columns,
                                               row_of_panels(panels, r, d.columns));
        }
        for (; r % kTileRows != 0; ++r)
            zero_in_panel(d.columns, row_of_panels(panels, r, d.columns));
        return panels_run(d, panels, panels + floats_of_rows(d.rows, d.columns));
    }
    Dot part = d;
    part.w = d.scratch;
    part.w_stride = stride * sizeof(float);
    for (int row = 0; row < d.rows; row += kStreamRows) {
        part.rows = std::min(kStreamRows, d.rows - row);
        for (int r = 0; r < part.rows; ++r)
            kUnpack(tiles, row + r, rows + static_cast<std::size_t>(r) * stride);
        part.out = d.out + row;
        stream_any<Widened<FloatRows>, kTileTokens>(part);
    }
}

inline std::size_t unpacked_scratch_nbytes(int rows, int columns, int tokens) {
    const std::size_t row = padded_columns(columns) * sizeof(float);
    if (tokens <= kTileTokens) return kStreamRows * row;
    return row + panels_scratch_nbytes(rows, columns, tokens);
}

template <void (*kUnpack)(const Tiles&, int, float*)>
inline void put_unpacked(KernelTable& t, int kind) {
    t.unpack[kind] = kUnpack;
    t.exact[kind] = {kFloatInput, kTileTokens, unpacked_run<kUnpack>, unpacked_scratch_nbytes,
                     dot_tile_rows};
}

}  // namespace headrace::HEADRACE_ISA
