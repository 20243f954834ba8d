// ggml's quantised blocks as float32, as GGUF files hold them.
//
// A block has 32 columns, or 256 in sub-blocks of 16 or 32 whose scales are quantised themselves.

namespace headrace::HEADRACE_ISA {

// fn(block, first column's place) for every block of a row.
template <int kColumns, int kNbytes, class Fn>
inline void each_block(const Tiles& t, int row, float* to, Fn&& fn) {
    const std::byte* block = t.tile(row);
    for (int k = 0; k < t.columns; k += kColumns, block += kNbytes) fn(block, to + k);
}

// A row's codes of a group whose rows lie in lanes, each with kHead bytes before all codes.
template <int kHead, int kCodes>
inline void gather_codes(const std::byte* group, int row, std::byte* to) {
    const std::byte* from = group + kLaneRows * kHead + row * 4;
    for (int i = 0; i < kCodes; i += 4) std::memcpy(to + i, from + i * kLaneRows, 4);
}

// As `each_block` where 16 rows lie in lanes: each block of a row is put together first.
template <int kColumns, int kHead, int kCodes, class Fn>
inline void each_laned_block(const Tiles& t, int row, float* to, Fn&& fn) {
    const std::byte* group = t.tile(row);
    const int r = row % kLaneRows;
    std::byte block[kHead + kCodes];
    for (int k = 0; k < t.columns; k += kColumns, group += kLaneRows * (kHead + kCodes)) {
        std::memcpy(block, group + r * kHead, kHead);
        gather_codes<kHead, kCodes>(group, r, block + kHead);
        fn(block, to + k);
    }
}

inline void unpack_q4_0(const Tiles& t, int row, float* to) {
    each_laned_block<32, 2, 16>(t, row, to, [](const std::byte* b, float* y) {
        const float d = half_at(b);
        for (int i = 0; i < 16; ++i) {
            const int q = byte_at(b, 2 + i);
            y[i] = static_cast<float>((q & 15) - 8) * d;
            y[i + 16] = static_cast<float>((q >> 4) - 8) * d;
        }
    });
}

inline void unpack_q5_0(const Tiles& t, int row, float* to) {
    each_block<32, 22>(t, row, to, [](const std::byte* b, float* y) {
        const float d = half_at(b);
        const auto high = load_as<std::uint32_t>(b + 2);
        for (int i = 0; i < 16; ++i) {
            const int q = byte_at(b, 6 + i);
            const int low_bit = static_cast<int>(high >> i & 1u) << 4;
            const int high_bit = static_cast<int>(high >> (i + 16) & 1u) << 4;
            y[i] = static_cast<float>((q & 15) + low_bit - 16) * d;
            y[i + 16] = static_cast<float>((q >> 4) + high_bit - 16) * d;
        }
    });
}

inline void unpack_q4_1(const Tiles& t, int row, float* to) {
    each_block<32, 20>(t, row, to, [](const std::byte* b, float* y) {
        const float d = half_at(b), least = half_at(b + 2);
        for (int i = 0; i < 16; ++i) {
            const int q = byte_at(b, 4 + i);
            y[i] = static_cast<float>(q & 15) * d + least;
            y[i + 16] = static_cast<float>(q >> 4) * d + least;
        }
    });
}

inline void unpack_q5_1(const Tiles& t, int row, float* to) {
    each_block<32, 24>(t, row, to, [](const std::byte* b, float* y) {
        const float d = half_at(b), least = half_at(b + 2);
        const auto high = load_as<std::uint32_t>(b + 4);
        for (int i = 0; i < 16; ++i) {
            const int q = byte_at(b, 8 + i);
            const int low_bit = static_cast<int>(high >> i & 1u) << 4;
            const int high_bit = static_cast<int>(high >> (i + 16) & 1u) << 4;
            y[i] = static_cast<float>((q & 15) | low_bit) * d + least;
            y[i + 16] = static_cast<float>((q >> 4) | high_bit) * d + least;
        }
    });
}

inline void unpack_q8_0(const Tiles& t, int row, float* to) {
    each_laned_block<32, 2, 32>(t, row, to, [](const std::byte* b, float* y) {
        const float d = half_at(b);
        for (int i = 0; i < 32; ++i)
            y[i] = static_cast<float>(static_cast<std::int8_t>(b[2 + i])) * d;
    });
}

// Two bits a column: 16 columns share a 4-bit scale and a 4-bit minimum.
inline void unpack_q2_k(const Tiles& t, int row, float* to) {
    each_block<256, 84>(t, row, to, [](const std::byte* b, float* y) {
        const float d = half_at(b + 80), dmin = half_at(b + 82);
        for (int sub = 0; sub < 16; ++sub) {
            const int half = sub / 8, shift = sub % 8 / 2 * 2;
            const std::byte* q = b + 16 + half * 32 + sub % 2 * 16;
            const int packed = byte_at(b, sub);
            const float scale = d * static_cast<float>(packed & 15);
            const float least = dmin * static_cast<float>(packed >> 4);
            for (int i = 0; i < 16; ++i)
                y[sub * 16 + i] = scale * static_cast<float>(byte_at(q, i) >> shift & 3) - least;
        }
    });
}

// Three bits a column, the third in a mask of its own; 16 columns share a signed 6-bit scale.
inline void unpack_q3_k(const Tiles& t, int row, float* to) {
    each_block<256, 110>(t, row, to, [](const std::byte* b, float* y) {
        const float d = half_at(b + 108);
        const std::byte* scales = b + 96;
        for (int sub = 0; sub < 16; ++sub) {
            const int low = sub < 8 ? byte_at(scales, sub) & 15 : byte_at(scales, sub - 8) >> 4;
            const int high = byte_at(scales, 8 + sub % 4) >> (sub / 4 * 2) & 3;
            const float scale = d * static_cast<float>((low | high << 4) - 32);
            const int half = sub / 8, pair = sub % 8 / 2, at = sub % 2 * 16;
            for (int i = 0; i < 16; ++i) {
                const int q = byte_at(b, 32 + half * 32 + at + i) >> (2 * pair) & 3;
                const bool third = (byte_at(b, at + i) >> (half * 4 + pair) & 1) != 0;
                y[sub * 16 + i] = scale * static_cast<float>(third ? q : q - 4);
            }
        }
    });
}

struct ScaleMin {
    int scale, least;
};

// Scale and minimum of sub-block j of Q4_K and Q5_K: 6 bits each, 8 of both in 12 bytes.
inline ScaleMin scale_min(const std::byte* s, int j) {
    if (j < 4) return {byte_at(s, j) & 63, byte_at(s, j + 4) & 63};
    return {(byte_at(s, j + 4) & 15) | byte_at(s, j - 4) >> 6 << 4,
            byte_at(s, j + 4) >> 4 | byte_at(s, j) >> 6 << 4};
}

inline void unpack_q4_k(const Tiles& t, int row, float* to) {
    each_laned_block<256, 0, 144>(t, row, to, [](const std::byte* b, float* y) {
        const float d = half_at(b), dmin = half_at(b + 2);
        for (int sub = 0; sub < 8; ++sub) {
            const ScaleMin s = scale_min(b + 4, sub);
            const float scale = d * static_cast<float>(s.scale);
            const float least = dmin * static_cast<float>(s.least);
            const std::byte* q = b + 16 + sub / 2 * 32;
            const int shift = sub % 2 * 4;
            for (int i = 0; i < 32; ++i)
                y[sub * 32 + i] = scale * static_cast<float>(byte_at(q, i) >> shift & 15) - least;
        }
    });
}

inline void unpack_q5_k(const Tiles& t, int row, float* to) {
    each_block<256, 176>(t, row, to, [](const std::byte* b, float* y) {
        const float d = half_at(b), dmin = half_at(b + 2);
        for (int sub = 0; sub < 8; ++sub) {
            const ScaleMin s = scale_min(b + 4, sub);
            const float scale = d * static_cast<float>(s.scale);
            const float least = dmin * static_cast<float>(s.least);
            const std::byte *high = b + 16, *q = b + 48 + sub / 2 * 32;
            const int shift = sub % 2 * 4;
            for (int i = 0; i < 32; ++i) {
                const int fifth = byte_at(high, i) >> sub & 1;
                const int code = (byte_at(q, i) >> shift & 15) | fifth << 4;
                y[sub * 32 + i] = scale * static_cast<float>(code) - least;
            }
        }
    });
}

inline void unpack_q6_k(const Tiles& t, int row, float* to) {
    each_block<256, 210>(t, row, to, [](const std::byte* b, float* y) {
        const float d = half_at(b + 208);
        for (int sub = 0; sub < 16; ++sub) {
            const int half = sub / 8, quarter = sub % 8 / 2, at = sub % 2 * 16;
            const std::byte* low = b + half * 64 + quarter % 2 * 32 + at;
            const std::byte* high = b + 128 + half * 32 + at;
            const float scale =
                d * static_cast<float>(static_cast<std::int8_t>(b[192 + half * 8 + sub % 8]));
            for (int i = 0; i < 16; ++i) {
                const int nibble = byte_at(low, i) >> (quarter / 2 * 4) & 15;
                const int code = nibble | (byte_at(high, i) >> (quarter * 2) & 3) << 4;
                y[sub * 16 + i] = scale * static_cast<float>(code - 32);
            }
        }
    });
}

// The sixteen steps of the IQ4 types.
inline constexpr std::int8_t kIQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};

inline void iq4_times(const std::byte* q, float scale, float* y) {
    for (int i = 0; i < 16; ++i) {
        y[i] = static_cast<float>(kIQ4[byte_at(q, i) & 15]) * scale;
        y[i + 16] = static_cast<float>(kIQ4[byte_at(q, i) >> 4]) * scale;
    }
}

inline void unpack_iq4_nl(const Tiles& t, int row, float* to) {
    each_block<32, 18>(t, row, to,
                       [](const std::byte* b, float* y) { iq4_times(b + 2, half_at(b), y); });
}

inline void unpack_iq4_xs(const Tiles& t, int row, float* to) {
    each_block<256, 136>(t, row, to, [](const std::byte* b, float* y) {
        const float d = half_at(b);
        const int high = load_as<std::uint16_t>(b + 2);
        for (int sub = 0; sub < 8; ++sub) {
            const int low = byte_at(b, 4 + sub / 2) >> (sub % 2 * 4) & 15;
            const int scale = (low | (high >> (2 * sub) & 3) << 4) - 32;
            iq4_times(b + 8 + sub * 16, d * static_cast<float>(scale), y + sub * 32);
        }
    });
}

inline void unpack_nvfp4(const Tiles& t, int row, float* to) {
    const int r = row % kLaneRows;
    const float whole = load_as<float>(t.tile(row) + r * 4);
    const std::byte* group = t.tile(row) + lanes_head_nbytes(t.format);
    for (int k = 0; k < t.columns; k += 32, group += kLaneRows * 18) {
        std::byte codes[16];
        gather_codes<2, 16>(group, r, codes);
        for (int half = 0; half < 2 && k + half * 16 < t.columns; ++half) {
            const float scale = e4m3(group[2 * r + half]) * whole;
            for (int i = 0; i < 16; ++i)
                to[k + half * 16 + i] = kE2M1[byte_at(codes, i) >> half * 4 & 15] * scale;
        }
    }
}

inline void unpack_ggml_mxfp4(const Tiles& t, int row, float* to) {
    each_laned_block<32, 1, 16>(t, row, to, [](const std::byte* b, float* y) {
        const float scale = float_from_e8m0(b[0]);
        for (int i = 0; i < 16; ++i) {
            const int q = byte_at(b, 1 + i);
            y[i] = kE2M1[q & 15] * scale;
            y[i + 16] = kE2M1[q >> 4] * scale;
        }
    });
}

}  // namespace headrace::HEADRACE_ISA
