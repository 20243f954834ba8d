// Few tokens with packed weights on AVX2: integer products with 16-bit fixed point activations.
//
// A token's row holds, for each 32 columns, 16-bit integers q and a float scale s with x = s q to
// 2^-16 of the group's largest, far finer than bfloat16. Weights are walked in blocks of 256
// columns, whatever the format's own; a row's sums have one order in any company.

// A call for each block would keep the sums in memory.
#define HEADRACE_INLINE [[gnu::always_inline]] inline

namespace headrace::HEADRACE_ISA {

// Where a row of activations has what; of whole blocks, filled up with zeros.
struct FixedRow {
    const std::int16_t* q;
    const float* scale;     // of each group of 32
    const float* sum;       // scale times the sum of q, for weights that are counted from elsewhere
    const float* x;         // as it was, for many tokens
    const std::byte* more;  // what an input has besides

    FixedRow() = default;
    FixedRow(const std::byte* row, int columns) {
        const std::size_t blocks = fixed_blocks(columns);
        q = reinterpret_cast<const std::int16_t*>(row);
        scale = reinterpret_cast<const float*>(row + blocks * 512);
        sum = scale + blocks * 8;
        x = sum + blocks * 8;
        more = row + fixed_nbytes(columns);
    }
    // Of kSixteensInput: as `sum`, of 16 columns each.
    const float* sum16() const { return reinterpret_cast<const float*>(more); }
    // Of kFoursInput, kHalvesInput and kPlanesInput: q in bytes, 512 a block.
    const std::int8_t* bytes() const { return reinterpret_cast<const std::int8_t*>(more); }
};

inline __m128i load16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline __m256i load32(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline __m256i load_q(const std::int16_t* p) { return load32(p); }

inline float half_fast(const std::byte* p) { return _cvtsh_ss(load_as<std::uint16_t>(p)); }

inline __m128i low_half(__m256i v) { return _mm256_castsi256_si128(v); }
inline __m128i high_half(__m256i v) { return _mm256_extracti128_si256(v, 1); }

// Four times eight of 32 integers in order, as nibbles come apart in 16-bit lanes.
struct Quarters {
    __m128i of[4];
};

// [even of the first 16, even of the others], then the odd ones likewise.
inline void by_evens(__m256i first, __m256i second, __m256i (&out)[2]) {
    const __m256i apart = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0,
                                           1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    first = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(first, apart), 0xd8);
    second = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(second, apart), 0xd8);
    out[0] = _mm256_permute2x128_si256(first, second, 0x20);
    out[1] = _mm256_permute2x128_si256(first, second, 0x31);
}

// Every fourth: where a byte has two neighbours.
inline Quarters by_fours(__m256i first, __m256i second) {
    const __m256i apart = _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15, 0,
                                           1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    first = _mm256_shuffle_epi8(first, apart);
    second = _mm256_shuffle_epi8(second, apart);
    const __m128i a = low_half(first), b = high_half(first), c = low_half(second),
                  d = high_half(second);
    const __m128i ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d);
    const __m128i rest_ab = _mm_unpackhi_epi32(a, b), rest_cd = _mm_unpackhi_epi32(c, d);
    return {{_mm_unpacklo_epi64(ab, cd), _mm_unpackhi_epi64(ab, cd),
             _mm_unpacklo_epi64(rest_ab, rest_cd), _mm_unpackhi_epi64(rest_ab, rest_cd)}};
}

// q = 256 h + l in signed bytes.
inline constexpr float kMostFixed = 127 * 256 + 127;

// Eight h and eight l of 16 integers, and those of the other eight.
inline __m256i in_bytes(__m256i q) {
    const __m256i low = _mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8);
    return _mm256_packs_epi16(_mm256_srai_epi16(_mm256_sub_epi16(q, low), 8), low);
}

// 16 integers of a group, four for each vector of bytes: its lane of h, then of l.
inline void put_lanes(std::int8_t* lane, __m256i q) {
    alignas(32) std::int32_t fours[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(fours), in_bytes(q));
    for (int i = 0; i < 4; ++i) {
        const int* from = fours + i / 2 * 4 + i % 2;
        std::memcpy(lane + i * 128, from, 4);
        std::memcpy(lane + i * 128 + 32, from + 2, 4);
    }
}

// Group g of a row in the order of an input. Of a nibble's inputs, groups j and j + 4 of a block
// share vectors: their scales are then in the two halves of one.
template <Input kInput>
inline void put_order(const FixedRow& row, int g, __m256i first, __m256i second) {
    auto* q = const_cast<std::int16_t*>(row.q);
    __m256i evens[2];
    by_evens(first, second, evens);
    if constexpr (kInput == kEvensInput) {
        for (int i = 0; i < 2; ++i)
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + g * 32 + i * 16), evens[i]);
    } else {
        Quarters quarters{
            {low_half(evens[0]), high_half(evens[0]), low_half(evens[1]), high_half(evens[1])}};
        if constexpr (kInput == kFoursInput) quarters = by_fours(first, second);
        std::int16_t* at = q + g / 8 * 256 + g % 4 * 64 + g / 4 % 2 * 8;
        for (int i = 0; i < 4; ++i)
            _mm_storeu_si128(reinterpret_cast<__m128i*>(at + i * 16), quarters.of[i]);
        const bool fours = kInput == kFoursInput;
        std::int8_t* lane = const_cast<std::int8_t*>(row.bytes()) + g / 8 * 512 + g % 8 * 4;
        put_lanes(lane, fours ? evens[0] : first);
        put_lanes(lane + 64, fours ? evens[1] : second);
    }
}

// 32 floats: the scale, and the sum times it.
template <Input kInput>
inline void put_group(const FixedRow& at, int g, const float* from) {
    __m256 v[4], most = _mm256_setzero_ps(), finite = most;
    finite = _mm256_cmp_ps(finite, finite, _CMP_EQ_OQ);
    const __m256 bits = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    for (int i = 0; i < 4; ++i) {
        v[i] = _mm256_loadu_ps(from + i * 8);
        const __m256 size = _mm256_and_ps(v[i], bits);
        most = _mm256_max_ps(most, size);
        finite = _mm256_and_ps(finite, _mm256_cmp_ps(size, _mm256_set1_ps(3e38f), _CMP_LE_OQ));
    }
    __m128 top = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
    top = _mm_max_ps(top, _mm_movehl_ps(top, top));
    const float largest = _mm_cvtss_f32(_mm_max_ss(top, _mm_movehdup_ps(top)));
    const bool sound = _mm256_movemask_ps(finite) == 255;
    const float scale = sound ? largest / kMostFixed : std::bit_cast<float>(0x7fc00000u);
    const __m256 inverse = _mm256_set1_ps(sound && largest > 1e-30f ? kMostFixed / largest : 0.0f);
    __m256i n[4], sum = _mm256_setzero_si256();
    for (int i = 0; i < 4; ++i) {
        const __m256 q = sound ? _mm256_mul_ps(v[i], inverse) : _mm256_setzero_ps();
        n[i] = _mm256_cvtps_epi32(q);
        sum = _mm256_add_epi32(sum, n[i]);
    }
    put_order<kInput>(at, g, _mm256_permute4x64_epi64(_mm256_packs_epi32(n[0], n[1]), 0xd8),
                      _mm256_permute4x64_epi64(_mm256_packs_epi32(n[2], n[3]), 0xd8));
    __m128i four = _mm_add_epi32(low_half(sum), high_half(sum));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    const int total = _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
    const_cast<float*>(at.scale)[g] = scale;
    const_cast<float*>(at.sum)[g] = scale * static_cast<float>(total);
}

// Columns [first, first + n) of a row; whole groups, but for the row's last.
template <Input kInput>
inline void put_fixed(std::byte* row, int columns, int first, const float* x, int n) {
    const FixedRow at(row, columns);
    std::memcpy(const_cast<float*>(at.x) + first, x, static_cast<std::size_t>(n) * sizeof(float));
    int k = 0;
    for (; k + 32 <= n; k += 32) put_group<kInput>(at, (first + k) / 32, x + k);
    const bool last = first + n == columns;
    const int end = last ? static_cast<int>(fixed_blocks(columns)) * 256 - first : k;
    for (; k < end; k += 32) {
        float rest[32] = {};
        if (k < n) std::memcpy(rest, x + k, static_cast<std::size_t>(n - k) * sizeof(float));
        put_group<kInput>(at, (first + k) / 32, rest);
    }
}

inline float sum_of_lanes(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// A block's groups, whose scales are taken in a loop that is no loop: shuffles want constants.
template <int kCount, class Fn>
inline void unrolled(Fn&& fn) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
        (fn(std::integral_constant<int, static_cast<int>(I)>{}), ...);
    }(std::make_index_sequence<kCount>{});
}

// Asked for ahead of a row, into the next one: 15% on Zen 3 with Q8_0, nothing with plain floats.
inline constexpr int kAheadNbytes = 2048;

template <int kNbytes>
inline void ask_ahead(const std::byte* p) {
    for (int i = 0; i < kNbytes; i += 64) __builtin_prefetch(p + kAheadNbytes + i);
}

// The groups behind a row's last whole block, as a block whose other groups are zeros.
template <class F, int T>
[[gnu::noinline]] void add_tail(const F& f, int columns, const FixedRow (&x)[T], __m256 (&sum)[T],
                                __m256 (&less)[T]) {
    alignas(32) std::byte copy[F::kBlockNbytes + 64] = {};
    const int blocks = columns / 256;
    f.tail(copy, blocks, columns % 256 / 32).add(0, x, blocks, sum, less);
}

// The row of activations that F takes, and the rows that it reads at once, far apart as `stream`
// does: one after another where products take longer than memory.
template <class F>
struct Habits {
    using Row = FixedRow;
    static constexpr int kRows = 1;
};

// R rows, `apart` rows from each other, for T tokens.
template <class F, int R, int T>
inline void fixed_rows(const Dot& d, const Tiles& tiles, const typename Habits<F>::Row (&x)[T],
                       int row, int apart) {
    auto f = [&]<std::size_t... I>(std::index_sequence<I...>) {
        return std::array<F, R>{F(tiles.tile(row + static_cast<int>(I) * apart), tiles)...};
    }(std::make_index_sequence<R>{});
    __m256 sum[R][T], less[R][T];
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) sum[r][t] = less[r][t] = _mm256_setzero_ps();
    const int blocks = d.columns / 256;
    for (int b = 0; b < blocks; ++b)
        for (int r = 0; r < R; ++r) {
            const F& one = f[static_cast<std::size_t>(r)];
            ask_ahead<F::kStreamNbytes>(one.stream(b));
            one.add(b, x, b, sum[r], less[r]);
        }
    if constexpr (F::kTails) {
        if (d.columns % 256 != 0)
            for (int r = 0; r < R; ++r)
                add_tail(f[static_cast<std::size_t>(r)], d.columns, x, sum[r], less[r]);
    }
    for (int t = 0; t < T; ++t)
        for (int r = 0; r < R; ++r) {
            float& out = d.out[static_cast<std::size_t>(t) * d.out_stride +
                               static_cast<std::size_t>(row + r * apart)];
            out = sum_of_lanes(sum[r][t]) * f[static_cast<std::size_t>(r)].whole();
            if constexpr (F::kOffset) out -= sum_of_lanes(less[r][t]);
        }
}

template <class F, int T>
inline void fixed_stream(const Dot& d, const Tiles& tiles) {
    constexpr int kRows = Habits<F>::kRows;
    typename Habits<F>::Row x[T];
    for (int t = 0; t < T; ++t) x[t] = {d.x[t], d.columns};
    const int apart = d.rows / kRows;
    for (int row = 0; row < apart; ++row) fixed_rows<F, kRows, T>(d, tiles, x, row, apart);
    for (int row = apart * kRows; row < d.rows; ++row) fixed_rows<F, 1, T>(d, tiles, x, row, 1);
}

// Many tokens, and what does not fit: the rows as float32 with the activations as they were.
template <class Row, void (*kUnpack)(const Tiles&, int, float*)>
void plain_run(const Dot& d) {
    auto** x = reinterpret_cast<const std::byte**>(d.scratch);
    for (int t = 0; t < d.tokens; ++t)
        x[t] = reinterpret_cast<const std::byte*>(Row(d.x[t], d.columns).x);
    Dot plain = d;
    plain.x = x;
    plain.scratch = d.scratch + pointers_nbytes(d.tokens);
    unpacked_run<kUnpack>(plain);
}

template <class F, void (*kUnpack)(const Tiles&, int, float*)>
void fixed_run(const Dot& d) {
    const Tiles tiles{d.w, d.w_stride, d.columns, d.format};
    if (d.tokens > 3 || !F::fits(tiles)) return plain_run<FixedRow, kUnpack>(d);
    if (d.tokens == 1) return fixed_stream<F, 1>(d, tiles);
    if (d.tokens == 2) return fixed_stream<F, 2>(d, tiles);
    return fixed_stream<F, 3>(d, tiles);
}

inline std::size_t fixed_scratch_nbytes(int rows, int columns, int tokens) {
    return pointers_nbytes(tokens) + unpacked_scratch_nbytes(rows, columns, tokens);
}

}  // namespace headrace::HEADRACE_ISA
