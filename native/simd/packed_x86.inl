// Vectors for packed weights on x86: 16 and 32 bytes, eight floats. Two halves of 16 bytes that no
// operation mixes, unless its name says so.
namespace headrace::HEADRACE_ISA {

using V16 = __m128i;
using V32 = __m256i;
using F8 = __m256;

HEADRACE_INLINE V16 load16(const void* p) { return _mm_loadu_si128(static_cast<const V16*>(p)); }
HEADRACE_INLINE V32 load32(const void* p) { return _mm256_loadu_si256(static_cast<const V32*>(p)); }
HEADRACE_INLINE V16 load_low8(const void* p) { return _mm_loadl_epi64(static_cast<const V16*>(p)); }
HEADRACE_INLINE V16 low8(std::uint64_t bytes) {
    return _mm_cvtsi64_si128(static_cast<std::int64_t>(bytes));
}
HEADRACE_INLINE void store32(void* p, V32 v) { _mm256_storeu_si256(static_cast<V32*>(p), v); }
HEADRACE_INLINE void store_low8(void* p, V16 v) { _mm_storel_epi64(static_cast<V16*>(p), v); }
HEADRACE_INLINE F8 load_floats(const float* p) { return _mm256_loadu_ps(p); }
HEADRACE_INLINE void store_floats(float* p, F8 v) { _mm256_storeu_ps(p, v); }

template <class... B>
HEADRACE_INLINE V16 bytes16(B... b) {
    return _mm_setr_epi8(static_cast<char>(b)...);
}
template <class... B>
HEADRACE_INLINE V32 both16(B... b) {
    return _mm256_setr_epi8(static_cast<char>(b)..., static_cast<char>(b)...);
}
HEADRACE_INLINE V32 words8(int a, int b, int c, int d, int e, int f, int g, int h) {
    return _mm256_setr_epi32(a, b, c, d, e, f, g, h);
}
HEADRACE_INLINE V16 words4(int a, int b, int c, int d) { return _mm_setr_epi32(a, b, c, d); }
HEADRACE_INLINE V32 each8(int b) { return _mm256_set1_epi8(static_cast<char>(b)); }
HEADRACE_INLINE V32 each16(int h) { return _mm256_set1_epi16(static_cast<short>(h)); }
HEADRACE_INLINE V32 each32(int w) { return _mm256_set1_epi32(w); }
HEADRACE_INLINE V32 each64(std::uint64_t d) {
    return _mm256_set1_epi64x(static_cast<long long>(d));
}
HEADRACE_INLINE V16 small8(int b) { return _mm_set1_epi8(static_cast<char>(b)); }
HEADRACE_INLINE V16 small16(int h) { return _mm_set1_epi16(static_cast<short>(h)); }
HEADRACE_INLINE V16 small32(int w) { return _mm_set1_epi32(w); }
HEADRACE_INLINE F8 same(float f) { return _mm256_set1_ps(f); }
HEADRACE_INLINE V32 no_bits() { return _mm256_setzero_si256(); }
HEADRACE_INLINE F8 no_floats() { return _mm256_setzero_ps(); }

HEADRACE_INLINE V16 low_half(V32 v) { return _mm256_castsi256_si128(v); }
HEADRACE_INLINE V16 high_half(V32 v) { return _mm256_extracti128_si256(v, 1); }
HEADRACE_INLINE V32 in_both(V16 v) { return _mm256_broadcastsi128_si256(v); }
HEADRACE_INLINE V32 counts64(int a, int b) {  // in both halves
    return _mm256_setr_epi64x(a, b, a, b);
}
HEADRACE_INLINE V32 put_together(V16 low, V16 high) { return _mm256_set_m128i(high, low); }
// A load to both halves and a blend cost a third of an insertion on Zen 3.
HEADRACE_INLINE V32 load_halves(const void* low, const void* high) {
    return _mm256_blend_epi32(_mm256_castsi128_si256(load16(low)), in_both(load16(high)), 0xf0);
}

HEADRACE_INLINE V16 bits_and(V16 a, V16 b) { return _mm_and_si128(a, b); }
HEADRACE_INLINE V32 bits_and(V32 a, V32 b) { return _mm256_and_si256(a, b); }
HEADRACE_INLINE V16 bits_or(V16 a, V16 b) { return _mm_or_si128(a, b); }
HEADRACE_INLINE V32 bits_or(V32 a, V32 b) { return _mm256_or_si256(a, b); }
HEADRACE_INLINE V16 left16(V16 v, int n) { return _mm_slli_epi16(v, n); }
HEADRACE_INLINE V16 right16(V16 v, int n) { return _mm_srli_epi16(v, n); }
HEADRACE_INLINE V32 left16(V32 v, int n) { return _mm256_slli_epi16(v, n); }
HEADRACE_INLINE V32 right16(V32 v, int n) { return _mm256_srli_epi16(v, n); }
HEADRACE_INLINE V16 down16(V16 v, int n) { return _mm_srai_epi16(v, n); }  // of signed lanes
HEADRACE_INLINE V32 down16(V32 v, int n) { return _mm256_srai_epi16(v, n); }
HEADRACE_INLINE V32 left32(V32 v, int n) { return _mm256_slli_epi32(v, n); }
HEADRACE_INLINE V16 right32(V16 v, V16 n) { return _mm_srlv_epi32(v, n); }
HEADRACE_INLINE V32 right32(V32 v, V32 n) { return _mm256_srlv_epi32(v, n); }
HEADRACE_INLINE V32 right64(V32 v, V32 n) { return _mm256_srlv_epi64(v, n); }
HEADRACE_INLINE V32 left64(V32 v, V32 n) { return _mm256_sllv_epi64(v, n); }
// For a shift that only a run knows.
HEADRACE_INLINE V32 right16_by(V32 v, int n) { return _mm256_srl_epi16(v, _mm_cvtsi32_si128(n)); }
HEADRACE_INLINE V16 low_nibbles(V16 v) { return bits_and(v, small8(15)); }
HEADRACE_INLINE V32 low_nibbles(V32 v) { return bits_and(v, each8(15)); }
HEADRACE_INLINE V16 high_nibbles(V16 v) { return low_nibbles(right16(v, 4)); }
HEADRACE_INLINE V32 high_nibbles(V32 v) { return low_nibbles(right16(v, 4)); }

HEADRACE_INLINE V16 add8(V16 a, V16 b) { return _mm_add_epi8(a, b); }
HEADRACE_INLINE V16 sub8(V16 a, V16 b) { return _mm_sub_epi8(a, b); }
HEADRACE_INLINE V32 sub8(V32 a, V32 b) { return _mm256_sub_epi8(a, b); }
HEADRACE_INLINE V32 add16(V32 a, V32 b) { return _mm256_add_epi16(a, b); }
HEADRACE_INLINE V32 sub16(V32 a, V32 b) { return _mm256_sub_epi16(a, b); }
HEADRACE_INLINE V32 add32(V32 a, V32 b) { return _mm256_add_epi32(a, b); }
HEADRACE_INLINE V32 sub32(V32 a, V32 b) { return _mm256_sub_epi32(a, b); }
HEADRACE_INLINE V32 most32(V32 a, V32 b) { return _mm256_max_epi32(a, b); }
HEADRACE_INLINE V32 most_signed8(V32 a, V32 b) { return _mm256_max_epi8(a, b); }
HEADRACE_INLINE V32 most8(V32 a, V32 b) { return _mm256_max_epu8(a, b); }
HEADRACE_INLINE V16 least16(V16 a, V16 b) { return _mm_min_epu16(a, b); }
HEADRACE_INLINE V32 equal8(V32 a, V32 b) { return _mm256_cmpeq_epi8(a, b); }
HEADRACE_INLINE V16 equal16(V16 a, V16 b) { return _mm_cmpeq_epi16(a, b); }
HEADRACE_INLINE V32 equal16(V32 a, V32 b) { return _mm256_cmpeq_epi16(a, b); }
HEADRACE_INLINE V32 more32(V32 a, V32 b) { return _mm256_cmpgt_epi32(a, b); }
HEADRACE_INLINE bool any_bit(V32 v) { return !_mm256_testz_si256(v, v); }

// A byte of the table for each index: below 16, or negative for 0.
HEADRACE_INLINE V16 lookup(V16 table, V16 at) { return _mm_shuffle_epi8(table, at); }
HEADRACE_INLINE V32 lookup(V32 table, V32 at) { return _mm256_shuffle_epi8(table, at); }
HEADRACE_INLINE V16 zip8_low(V16 a, V16 b) { return _mm_unpacklo_epi8(a, b); }
HEADRACE_INLINE V16 zip8_high(V16 a, V16 b) { return _mm_unpackhi_epi8(a, b); }
HEADRACE_INLINE V16 zip64_low(V16 a, V16 b) { return _mm_unpacklo_epi64(a, b); }
HEADRACE_INLINE V16 zip64_high(V16 a, V16 b) { return _mm_unpackhi_epi64(a, b); }
HEADRACE_INLINE V32 zip32_low(V32 a, V32 b) { return _mm256_unpacklo_epi32(a, b); }
HEADRACE_INLINE V32 zip32_high(V32 a, V32 b) { return _mm256_unpackhi_epi32(a, b); }
HEADRACE_INLINE V32 zip64_low(V32 a, V32 b) { return _mm256_unpacklo_epi64(a, b); }
HEADRACE_INLINE V32 zip64_high(V32 a, V32 b) { return _mm256_unpackhi_epi64(a, b); }
// 32 bits of each as 16, saturated, all in order; 16 bits as 8, of a's half before b's.
HEADRACE_INLINE V32 narrow32(V32 a, V32 b) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
}
HEADRACE_INLINE V32 narrow16(V32 a, V32 b) { return _mm256_packs_epi16(a, b); }

HEADRACE_INLINE F8 as_floats(V32 v) { return _mm256_castsi256_ps(v); }
HEADRACE_INLINE V32 as_bits(F8 v) { return _mm256_castps_si256(v); }
HEADRACE_INLINE F8 floats(V32 v) { return _mm256_cvtepi32_ps(v); }
HEADRACE_INLINE V32 rounded(F8 v) { return _mm256_cvtps_epi32(v); }
// The first eight lanes, widened.
HEADRACE_INLINE V32 words_of_bytes(V16 v) { return _mm256_cvtepu8_epi32(v); }
HEADRACE_INLINE V32 words_of_signed(V16 v) { return _mm256_cvtepi8_epi32(v); }
HEADRACE_INLINE V32 words_of_halves(V16 v) { return _mm256_cvtepu16_epi32(v); }
HEADRACE_INLINE F8 floats_of_f16(V16 v) { return _mm256_cvtph_ps(v); }
HEADRACE_INLINE float float_of_f16(std::uint16_t h) { return _cvtsh_ss(h); }
// The first 16 bits of eight blocks: a load that begins 2 g bytes early has block g's in lane g.
template <int kApart>
HEADRACE_INLINE V16 gathered_halves(const std::byte* p) {
    const auto at = [&](int g) { return load16(p + g * (kApart - 2)); };
    const V16 a = _mm_blend_epi16(at(0), at(1), 0x02), b = _mm_blend_epi16(at(2), at(3), 0x08);
    const V16 c = _mm_blend_epi16(at(4), at(5), 0x20), d = _mm_blend_epi16(at(6), at(7), 0x80);
    return _mm_blend_epi16(_mm_blend_epi16(a, b, 0x0c), _mm_blend_epi16(c, d, 0xc0), 0xf0);
}
HEADRACE_INLINE F8 gathered(const float* x, V16 at) {
    return _mm256_i32gather_ps(x, words_of_halves(at), 4);
}

HEADRACE_INLINE F8 add(F8 a, F8 b) { return _mm256_add_ps(a, b); }
HEADRACE_INLINE F8 sub(F8 a, F8 b) { return _mm256_sub_ps(a, b); }
HEADRACE_INLINE F8 mul(F8 a, F8 b) { return _mm256_mul_ps(a, b); }
HEADRACE_INLINE F8 fma(F8 a, F8 b, F8 c) { return _mm256_fmadd_ps(a, b, c); }
HEADRACE_INLINE F8 fnma(F8 a, F8 b, F8 c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a b
HEADRACE_INLINE F8 low_twice(F8 v) { return _mm256_permute2f128_ps(v, v, 0x00); }
HEADRACE_INLINE F8 high_twice(F8 v) { return _mm256_permute2f128_ps(v, v, 0x11); }
template <int kLane>  // of each half
HEADRACE_INLINE F8 lane_of(F8 v) {
    return _mm256_permute_ps(v, kLane * 0x55);
}
HEADRACE_INLINE float sum_of_lanes(F8 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
// Lane i: the sum of the lanes of v[i].
HEADRACE_INLINE F8 sums_of_lanes(const F8 (&v)[8]) {
    F8 two[4], four[2];
    for (int i = 0; i < 4; ++i)
        two[i] = add(_mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]),
                     _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 2; ++i)
        four[i] = add(_mm256_shuffle_ps(two[2 * i], two[2 * i + 1], 0x44),
                      _mm256_shuffle_ps(two[2 * i], two[2 * i + 1], 0xee));
    return add(_mm256_permute2f128_ps(four[0], four[1], 0x20),
               _mm256_permute2f128_ps(four[0], four[1], 0x31));
}
// to[i]: lane i of every vector.
HEADRACE_INLINE void turn_eight(const F8 (&v)[8], F8 (&to)[8]) {
    F8 two[8], four[8];
    for (int i = 0; i < 4; ++i) {
        two[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
        two[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) {
            four[4 * i + 2 * j] = _mm256_shuffle_ps(two[4 * i + j], two[4 * i + 2 + j], 0x44);
            four[4 * i + 2 * j + 1] = _mm256_shuffle_ps(two[4 * i + j], two[4 * i + 2 + j], 0xee);
        }
    for (int i = 0; i < 4; ++i) {
        to[i] = _mm256_permute2f128_ps(four[i], four[4 + i], 0x20);
        to[4 + i] = _mm256_permute2f128_ps(four[i], four[4 + i], 0x31);
    }
}
HEADRACE_INLINE int sum_of_words(V32 v) {
    V16 four = _mm_add_epi32(low_half(v), high_half(v));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
HEADRACE_INLINE int most_of_words(V32 v) {
    V16 four = _mm_max_epi32(low_half(v), high_half(v));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

}  // namespace headrace::HEADRACE_ISA
