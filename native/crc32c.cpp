#include "crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace headrace {
namespace {

// table[k][b]: byte b followed by k zero bytes.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
    Tables t{};
    for (uint32_t b = 0; b < 256; ++b) {
        uint32_t crc = b;
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
        t[0][b] = crc;
    }
    for (size_t k = 1; k < 8; ++k)
        for (size_t b = 0; b < 256; ++b) t[k][b] = (t[k - 1][b] >> 8) ^ t[0][t[k - 1][b] & 0xFF];
    return t;
}

constexpr Tables kTables = make_tables();

uint64_t word_at(const unsigned char* p) {
    uint64_t word = 0;
    std::memcpy(&word, p, sizeof word);
    return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t by_instruction(const unsigned char* p, int64_t n,
                                                          uint32_t crc) {
    uint64_t wide = crc;
    for (; n >= 8; p += 8, n -= 8) wide = _mm_crc32_u64(wide, word_at(p));
    crc = static_cast<uint32_t>(wide);
    for (; n > 0; ++p, --n) crc = _mm_crc32_u8(crc, *p);
    return crc;
}

bool has_instruction() {
    static const bool has = __builtin_cpu_supports("sse4.2") != 0;
    return has;
}
#elif defined(__aarch64__)
__attribute__((target("+crc"))) uint32_t by_instruction(const unsigned char* p, int64_t n,
                                                        uint32_t crc) {
    for (; n >= 8; p += 8, n -= 8) crc = __crc32cd(crc, word_at(p));
    for (; n > 0; ++p, --n) crc = __crc32cb(crc, *p);
    return crc;
}

bool has_instruction() {
    constexpr unsigned long kCrc32 = 1ul << 7;  // HWCAP_CRC32
    static const bool has = (getauxval(AT_HWCAP) & kCrc32) != 0;
    return has;
}
#else
uint32_t by_instruction(const unsigned char*, int64_t, uint32_t crc) { return crc; }
bool has_instruction() { return false; }
#endif

}  // namespace

uint32_t crc32c_by_table(const void* data, int64_t nbytes, uint32_t before) {
    const auto* p = static_cast<const unsigned char*>(data);
    uint32_t crc = ~before;
    for (; nbytes >= 8; p += 8, nbytes -= 8) {
        uint32_t next = 0;
        for (size_t i = 0; i < 8; ++i) {
            const uint32_t byte = p[i] ^ (i < 4 ? (crc >> (8 * i)) & 0xFF : 0);
            next ^= kTables[7 - i][byte];
        }
        crc = next;
    }
    for (; nbytes > 0; ++p, --nbytes) crc = (crc >> 8) ^ kTables[0][(crc ^ *p) & 0xFF];
    return ~crc;
}

uint32_t crc32c(const void* data, int64_t nbytes, uint32_t before) {
    if (!has_instruction()) return crc32c_by_table(data, nbytes, before);
    return ~by_instruction(static_cast<const unsigned char*>(data), nbytes, ~before);
}

}  // namespace headrace
