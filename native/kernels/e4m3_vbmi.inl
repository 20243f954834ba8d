// Few tokens with E4M3 weights as float32, put together from two bytes: two thirds of the
// operations that the way through float16 takes (kernels/e4m3.inl).
//
// A row's sum walks its columns upwards, 128 at a time, whatever shares the call.

namespace headrace::HEADRACE_ISA {

inline constexpr int kBytesAhead = 4096;  // asked for, into the next rows

// The column of 64 that is float i of vector v (`add_unpacked`).
constexpr int unpacked_column(int v, int i) { return i / 4 * 16 + v / 2 * 8 + i % 4 * 2 + v % 2; }

inline void put_unpacked_floats(std::byte* row, int columns, int first, const float* x, int n) {
    const UnpackedRow at(row, columns);
    std::memcpy(const_cast<float*>(at.x) + first, x, static_cast<std::size_t>(n) * sizeof(float));
    for (int k = 0; k < n; k += 128) {
        float v[128] = {};
        std::memcpy(v, x + k, static_cast<std::size_t>(std::min(128, n - k)) * sizeof(float));
        float* to = const_cast<float*>(at.unpacked) + first + k;
        for (int i = 0; i < 128; ++i) to[i] = v[i / 64 * 64 + unpacked_column(i / 16 % 4, i % 16)];
    }
}

// 64 columns of T tokens from x on.
template <int T>
HEADRACE_INLINE void add_unpacked(__m512i codes, const E4M3Tables& tables,
                                  const float* const (&x)[T], __m512 (&sum)[T][2]) {
    const E4M3Halves w(codes, tables);
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    const __m512i words[2] = {_mm512_unpacklo_epi8(w.low, w.high),
                              _mm512_unpackhi_epi8(w.low, w.high)};
    for (int v = 0; v < 4; ++v) {
        const __m512i bits = v % 2 == 0 ? _mm512_slli_epi32(words[v / 2], 16)
                                        : _mm512_and_si512(words[v / 2], upper);
        for (int t = 0; t < T; ++t)
            sum[t][v % 2] = _mm512_fmadd_ps(_mm512_castsi512_ps(bits),
                                            _mm512_loadu_ps(x[t] + v * 16), sum[t][v % 2]);
    }
}

// Columns [k, k + 128), which are these codes.
template <int T>
HEADRACE_INLINE void e4m3_stride(__m512i first, __m512i second, const E4M3Tables& tables,
                                 const UnpackedRow (&x)[T], int k, float scale, __m512 (&sum)[T]) {
    __m512 part[T][2];
    const float *at[T], *behind[T];
    for (int t = 0; t < T; ++t) {
        part[t][0] = part[t][1] = _mm512_setzero_ps();
        at[t] = x[t].unpacked + k;
        behind[t] = at[t] + 64;
    }
    add_unpacked<T>(first, tables, at, part);
    add_unpacked<T>(second, tables, behind, part);
    for (int t = 0; t < T; ++t)
        sum[t] =
            _mm512_fmadd_ps(_mm512_add_ps(part[t][0], part[t][1]), _mm512_set1_ps(scale), sum[t]);
}

// Columns [from, end), which share a scale. What is not there is zero.
template <int T>
HEADRACE_INLINE void e4m3_group(const std::byte* q, const E4M3Tables& tables,
                                const UnpackedRow (&x)[T], int from, int end, float scale,
                                __m512 (&sum)[T]) {
    for (; from + 128 <= end; from += 128) {
        __builtin_prefetch(q + from + kBytesAhead);
        __builtin_prefetch(q + from + kBytesAhead + 64);
        e4m3_stride<T>(bytes_at(q + from), bytes_at(q + from + 64), tables, x, from, scale, sum);
    }
    if (from == end) return;
    e4m3_stride<T>(bytes_at(q + from, end - from), bytes_at(q + from + 64, end - from - 64), tables,
                   x, from, scale, sum);
}

inline int e4m3_columns(const Dot& d) {
    return kind_of(d.format) == kFP8Row ? d.columns : group_of(d.format);
}

template <int T>
inline void e4m3_rows(const Dot& d) {
    const int group = e4m3_columns(d), groups = (d.columns + group - 1) / group;
    const int tall = tile_rows(d.format);
    const E4M3Tables tables;
    UnpackedRow x[T];
    for (int t = 0; t < T; ++t) x[t] = UnpackedRow(d.x[t], d.columns);
    for (int row = 0; row < d.rows; ++row) {
        const std::byte* tile = d.w + static_cast<std::size_t>(row / tall) * d.w_stride;
        const std::byte* q =
            tile + groups * 4 + static_cast<std::ptrdiff_t>(row % tall) * d.columns;
        __m512 sum[T];
        for (int t = 0; t < T; ++t) sum[t] = _mm512_setzero_ps();
        for (int g = 0; g < groups; ++g) {
            float scale;
            std::memcpy(&scale, tile + g * 4, sizeof scale);
            e4m3_group<T>(q, tables, x, g * group, std::min((g + 1) * group, d.columns), scale,
                          sum);
        }
        for (int t = 0; t < T; ++t)
            d.out[static_cast<std::size_t>(t) * d.out_stride + static_cast<std::size_t>(row)] =
                F32{sum[t]}.reduce_add();
    }
}

// Many tokens, and groups that are no whole strides: as another set's exact products are.
template <int kKind>
void e4m3_vbmi_run(const Dot& d) {
    if (d.tokens <= 3 && (e4m3_columns(d) % 128 == 0 || e4m3_columns(d) >= d.columns)) {
        if (d.tokens == 1) return e4m3_rows<1>(d);
        if (d.tokens == 2) return e4m3_rows<2>(d);
        return e4m3_rows<3>(d);
    }
    auto** x = reinterpret_cast<const std::byte**>(d.scratch);
    for (int t = 0; t < d.tokens; ++t)
        x[t] = reinterpret_cast<const std::byte*>(UnpackedRow(d.x[t], d.columns).x);
    Dot plain = d;
    plain.x = x;
    plain.scratch = d.scratch + pointers_nbytes(d.tokens);
    avx512vnni::table().exact[kKind].run(plain);
}

template <int kKind>
std::size_t e4m3_vbmi_nbytes(int rows, int columns, int tokens) {
    return pointers_nbytes(tokens) +
           avx512vnni::table().exact[kKind].scratch_nbytes(rows, columns, tokens);
}

inline void put_e4m3_vbmi(KernelTable& t) {
    t.put[kUnpackedInput] = put_unpacked_floats;
    t.fast[kFP8Block] = {kUnpackedInput, kTileTokens, e4m3_vbmi_run<kFP8Block>,
                         e4m3_vbmi_nbytes<kFP8Block>, dot_tile_rows};
    t.fast[kFP8Row] = {kUnpackedInput, kTileTokens, e4m3_vbmi_run<kFP8Row>,
                       e4m3_vbmi_nbytes<kFP8Row>, dot_tile_rows};
}

}  // namespace headrace::HEADRACE_ISA
