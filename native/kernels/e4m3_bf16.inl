// E4M3 by tables (VBMI): the upper two bytes of a code as float32, which are it as bfloat16.

namespace headrace::HEADRACE_ISA {

// By a code's seven bits without the sign.
struct E4M3Bytes {
    alignas(64) std::uint8_t high[128], low[128];
};
inline constexpr E4M3Bytes kE4M3Bytes = [] {
    E4M3Bytes table{};
    for (int code = 0; code < 128; ++code) {
        const int e = code >> 3, m = code & 7;
        // The highest bit that a subnormal has makes its exponent.
        const int top = m >= 4 ? 2 : m >= 2 ? 1 : 0;
        int bits = (e + 120) << 7 | m << 4;
        if (e == 0) bits = m == 0 ? 0 : (118 + top) << 7 | (m << (7 - top) & 127);
        if (code == 127) bits = 0x7fc0;
        table.high[code] = static_cast<std::uint8_t>(bits >> 8);
        table.low[code] = static_cast<std::uint8_t>(bits);
    }
    return table;
}();

HEADRACE_INLINE __m512i bytes_at(const void* p) {
    __m512i v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// The first n of 64 bytes, the others zeros.
HEADRACE_INLINE __m512i bytes_at(const void* p, int n) {
    if (n >= 64) return bytes_at(p);
    std::byte some[64] = {};
    std::memcpy(some, p, static_cast<std::size_t>(std::max(n, 0)));
    return bytes_at(some);
}

// In registers.
struct E4M3Tables {
    __m512i high[2], low[2];
    HEADRACE_INLINE E4M3Tables() {
        for (int i = 0; i < 2; ++i) {
            high[i] = bytes_at(kE4M3Bytes.high + i * 64);
            low[i] = bytes_at(kE4M3Bytes.low + i * 64);
        }
    }
};

// A row of kUnpackedInput: of each 64 columns those of 16 floats, and as they were.
struct UnpackedRow {
    const float *unpacked, *x;

    UnpackedRow() = default;
    UnpackedRow(const std::byte* row, int columns) {
        unpacked = reinterpret_cast<const float*>(row);
        x = unpacked + (columns + 127) / 128 * 128;
    }
};

// The bytes of 64 codes.
struct E4M3Halves {
    __m512i high, low;
    HEADRACE_INLINE E4M3Halves(__m512i codes, const E4M3Tables& table) {
        const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
        const __m512i at = _mm512_andnot_si512(sign, codes);
        high = _mm512_or_si512(_mm512_permutex2var_epi8(table.high[0], at, table.high[1]),
                               _mm512_and_si512(sign, codes));
        low = _mm512_permutex2var_epi8(table.low[0], at, table.low[1]);
    }
};

}  // namespace headrace::HEADRACE_ISA
