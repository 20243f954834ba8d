// Few tokens with packed weights on AVX2: integer products with 16-bit fixed point activations.
//
// A token's row holds, for each 32 columns, 16-bit integers q and a float scale s with x = s q to
// 2^-16 of the group's largest, far finer than bfloat16. A row's sum walks the groups in order.

namespace headrace::HEADRACE_ISA {

// Where a row of kFixedInput or kPairsInput has what.
struct FixedRow {
    const std::int16_t* q;
    const float* scale;  // of each group
    const float* sum;    // scale times the sum of q, for weights that are counted from elsewhere
    const float* x;      // as it was, for many tokens

    FixedRow() = default;
    FixedRow(const std::byte* row, int columns) {
        const std::size_t groups = fixed_groups(columns);
        q = reinterpret_cast<const std::int16_t*>(row);
        scale = reinterpret_cast<const float*>(row + groups * 64);
        sum = scale + groups;
        x = sum + groups;
    }
};

// Columns [first, first + n) of a row; whole groups, but for the row's last. kPairs: of 32 columns
// the even ones first, as nibbles come apart.
template <bool kPairs>
inline void put_fixed(std::byte* row, int columns, int first, const float* x, int n) {
    const FixedRow at(row, columns);
    std::memcpy(const_cast<float*>(at.x) + first, x, static_cast<std::size_t>(n) * sizeof(float));
    for (int k = 0; k < n; k += 32) {
        float v[32] = {};
        const int many = std::min(32, n - k);
        for (int i = 0; i < many; ++i) v[kPairs ? i % 2 * 16 + i / 2 : i] = x[k + i];
        float most = 0.0f;
        bool finite = true;
        for (const float f : v) {
            most = std::max(most, std::fabs(f));
            finite = finite && std::fabs(f) <= 3e38f;
        }
        const int g = (first + k) / 32;
        const float scale = finite ? most / 32767.0f : std::bit_cast<float>(0x7fc00000u);
        const float inverse = finite && most > 1e-30f ? 32767.0f / most : 0.0f;
        auto* q = const_cast<std::int16_t*>(at.q) + g * 32;
        int sum = 0;
        for (int i = 0; i < 32; ++i) {
            q[i] = static_cast<std::int16_t>(std::lrintf(v[i] * inverse));
            sum += q[i];
        }
        const_cast<float*>(at.scale)[g] = scale;
        const_cast<float*>(at.sum)[g] = scale * static_cast<float>(sum);
    }
}

// 32 weights as integers, in the order of the activations.
struct Weights32 {
    __m256i low, high;
};

inline __m128i load16(const std::byte* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline __m256i load32(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline __m128i low_nibbles(__m128i v) { return _mm_and_si128(v, _mm_set1_epi8(15)); }
inline __m128i high_nibbles(__m128i v) { return low_nibbles(_mm_srli_epi16(v, 4)); }

inline Weights32 signed_bytes(__m128i low, __m128i high) {
    return {_mm256_cvtepi8_epi16(low), _mm256_cvtepi8_epi16(high)};
}
inline Weights32 looked_up(__m128i table, const std::byte* p) {
    const __m128i v = load16(p);
    return signed_bytes(_mm_shuffle_epi8(table, low_nibbles(v)),
                        _mm_shuffle_epi8(table, high_nibbles(v)));
}

inline __m128i e2m1_doubled() {
    return _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
}
inline __m128i iq4_steps() { return load16(reinterpret_cast<const std::byte*>(kIQ4)); }

inline float half_fast(const std::byte* p) { return _cvtsh_ss(load_as<std::uint16_t>(p)); }

struct E8M0Table {
    float of[256];
};
inline constexpr E8M0Table kE8M0 = [] {
    E8M0Table table{};
    table.of[0] = 0x1p-127f;
    for (int i = 1; i < 255; ++i) table.of[i] = std::bit_cast<float>(i << 23);
    table.of[255] = std::bit_cast<float>(0x7fc00000u);
    return table;
}();

// A format's row for the walk: group g of 32 columns as integers, the float that each stands for,
// and where `kOffset` what the sum of the activations is multiplied by. `kWhole` of a row.
struct FixedMXFP4 {
    static constexpr bool kOffset = false, kPairs = true;
    const std::byte *scales, *q;
    FixedMXFP4(const std::byte* tile, const Tiles& t)
        : scales(tile), q(tile + t.columns / group_of(t.format)) {}
    static bool fits(const Tiles& t) { return group_of(t.format) == 32; }
    const std::byte* at(int g) const { return q + g * 16; }
    Weights32 weights(int g) const { return looked_up(e2m1_doubled(), at(g)); }
    __m256 scale(int g, float x) const { return _mm256_set1_ps(kE8M0.of[byte_at(scales, g)] * x); }
    float offset(int) const { return 0.0f; }
    float whole() const { return 0.5f; }
};

struct FixedNVFP4 {
    static constexpr bool kOffset = false, kPairs = true;
    const std::byte *tile, *scales, *q;
    FixedNVFP4(const std::byte* w, const Tiles& t)
        : tile(w), scales(w + sizeof(float)), q(scales + t.columns / 16) {}
    static bool fits(const Tiles& t) { return group_of(t.format) == 16 && t.columns % 32 == 0; }
    const std::byte* at(int g) const { return q + g * 16; }
    Weights32 weights(int g) const { return looked_up(e2m1_doubled(), at(g)); }
    __m256 scale(int g, float x) const {
        const __m128 first = _mm_set1_ps(e4m3(scales[2 * g]) * x);
        const __m128 second = _mm_set1_ps(e4m3(scales[2 * g + 1]) * x);
        return _mm256_set_m128(second, first);
    }
    float offset(int) const { return 0.0f; }
    float whole() const { return 0.5f * load_as<float>(tile); }
};

template <bool kBF16Scales>
struct FixedInt4 {
    static constexpr bool kOffset = true, kPairs = true;
    const std::byte *scales, *zeros, *q;
    int shift;  // 2^shift groups of 32 share a scale
    FixedInt4(const std::byte* tile, const Tiles& t) : scales(tile) {
        const int groups = t.columns / group_of(t.format);
        zeros = has_zeros(t.format) ? tile + 2 * groups : nullptr;
        q = tile + groups * (zeros != nullptr ? 3 : 2);
        shift = std::countr_zero(static_cast<unsigned>(group_of(t.format) / 32));
    }
    static bool fits(const Tiles& t) {
        return group_of(t.format) >= 32 &&
               std::has_single_bit(static_cast<unsigned>(group_of(t.format)));
    }
    float shared(int g) const {
        const std::byte* p = scales + (g >> shift) * 2;
        return kBF16Scales ? float_from_bf16(load_as<std::uint16_t>(p)) : half_fast(p);
    }
    const std::byte* at(int g) const { return q + g * 16; }
    Weights32 weights(int g) const {
        const __m128i v = load16(at(g));
        return signed_bytes(low_nibbles(v), high_nibbles(v));
    }
    __m256 scale(int g, float x) const { return _mm256_set1_ps(shared(g) * x); }
    float offset(int g) const {
        return shared(g) * static_cast<float>(zeros != nullptr ? byte_at(zeros, (g >> shift)) : 8);
    }
    float whole() const { return 1.0f; }
};

template <int kNbytes>
struct FixedBlocks32 {
    static constexpr bool kOffset = false, kPairs = false;
    const std::byte* blocks;
    FixedBlocks32(const std::byte* tile, const Tiles&) : blocks(tile) {}
    static bool fits(const Tiles&) { return true; }
    const std::byte* block(int g) const { return blocks + g * kNbytes; }
    const std::byte* at(int g) const { return block(g); }
    __m256 scale(int g, float x) const { return _mm256_set1_ps(half_fast(block(g)) * x); }
    float offset(int) const { return 0.0f; }
    float whole() const { return 1.0f; }
};

struct FixedQ8_0 : FixedBlocks32<34> {
    using FixedBlocks32::FixedBlocks32;
    Weights32 weights(int g) const {
        return signed_bytes(load16(block(g) + 2), load16(block(g) + 18));
    }
};

struct FixedQ4_0 : FixedBlocks32<18> {
    using FixedBlocks32::FixedBlocks32;
    Weights32 weights(int g) const {
        const __m128i v = load16(block(g) + 2), eight = _mm_set1_epi8(8);
        return signed_bytes(_mm_sub_epi8(low_nibbles(v), eight),
                            _mm_sub_epi8(high_nibbles(v), eight));
    }
};

struct FixedIQ4_NL : FixedBlocks32<18> {
    using FixedBlocks32::FixedBlocks32;
    Weights32 weights(int g) const { return looked_up(iq4_steps(), block(g) + 2); }
};

struct FixedGgmlMXFP4 : FixedBlocks32<17> {
    using FixedBlocks32::FixedBlocks32;
    Weights32 weights(int g) const { return looked_up(e2m1_doubled(), block(g) + 1); }
    __m256 scale(int g, float x) const {
        return _mm256_set1_ps(kE8M0.of[byte_at(block(g), 0)] * x);
    }
    float whole() const { return 0.5f; }
};

inline __m256 floats_of(std::uint32_t first, std::uint32_t second) {
    const std::uint64_t bytes = first | static_cast<std::uint64_t>(second) << 32;
    return _mm256_cvtepi32_ps(
        _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<std::int64_t>(bytes))));
}

// Q4_K and Q5_K: eight groups a block, each with a scale and a minimum of 6 bits.
template <int kNbytes, bool kFifth>
struct FixedK {
    static constexpr bool kOffset = false, kPairs = false;
    const std::byte* blocks;
    float scales[8];
    __m256 least;
    FixedK(const std::byte* tile, const Tiles&) : blocks(tile) {}
    static bool fits(const Tiles&) { return true; }
    const std::byte* block(int g) const { return blocks + g / 8 * kNbytes; }
    const std::byte* at(int g) const { return blocks + g * (kNbytes / 8); }
    // As `scale_min`, all eight at once.
    void begin(int g) {
        const std::byte* b = block(g);
        const auto s = load_as<std::uint32_t>(b + 4), m = load_as<std::uint32_t>(b + 8);
        const auto rest = load_as<std::uint32_t>(b + 12);
        const std::uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, top = 0x30303030;
        const __m256 d = _mm256_set1_ps(half_fast(b)), dmin = _mm256_set1_ps(half_fast(b + 2));
        const __m256 scale = floats_of(s & six, (rest & four) | (s >> 2 & top));
        _mm256_storeu_ps(scales, _mm256_mul_ps(d, scale));
        least = _mm256_mul_ps(dmin, floats_of(m & six, (rest >> 4 & four) | (m >> 2 & top)));
    }
    Weights32 weights(int g) const {
        const std::byte* b = block(g);
        __m256i v = load32(b + (kFifth ? 48 : 16) + g % 8 / 2 * 32);
        if (g % 2 != 0) v = _mm256_srli_epi16(v, 4);
        v = _mm256_and_si256(v, _mm256_set1_epi8(15));
        if constexpr (kFifth) {
            const __m256i bit = _mm256_set1_epi8(static_cast<char>(1 << g % 8));
            const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(load32(b + 16), bit), bit);
            v = _mm256_or_si256(v, _mm256_and_si256(set, _mm256_set1_epi8(16)));
        }
        return signed_bytes(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    }
    __m256 scale(int g, float x) const { return _mm256_set1_ps(scales[g % 8] * x); }
    float offset(int) const { return 0.0f; }
    float whole() const { return 1.0f; }
};

// Q6_K: 16 columns share a signed scale, which the integers are multiplied by.
struct FixedQ6_K {
    static constexpr bool kOffset = false, kPairs = false;
    const std::byte* blocks;
    FixedQ6_K(const std::byte* tile, const Tiles&) : blocks(tile) {}
    static bool fits(const Tiles&) { return true; }
    const std::byte* block(int g) const { return blocks + g / 8 * 210; }
    const std::byte* at(int g) const { return blocks + g * 26; }
    Weights32 weights(int g) const {
        const std::byte* b = block(g);
        const int half = g % 8 / 4, quarter = g % 4;
        __m256i low = load32(b + half * 64 + quarter % 2 * 32);
        if (quarter >= 2) low = _mm256_srli_epi16(low, 4);
        const __m256i high =
            _mm256_srl_epi16(load32(b + 128 + half * 32), _mm_cvtsi32_si128(quarter * 2));
        const __m256i three = _mm256_set1_epi8(3);
        const __m256i code = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(15)),
                                             _mm256_slli_epi16(_mm256_and_si256(high, three), 4));
        const __m256i v = _mm256_sub_epi8(code, _mm256_set1_epi8(32));
        const Weights32 w = signed_bytes(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        const std::byte* s = b + 192 + half * 8 + quarter * 2;
        const auto of = [](std::byte f) { return _mm256_set1_epi16(static_cast<std::int8_t>(f)); };
        return {_mm256_mullo_epi16(w.low, of(s[0])), _mm256_mullo_epi16(w.high, of(s[1]))};
    }
    __m256 scale(int g, float x) const { return _mm256_set1_ps(half_fast(block(g) + 208) * x); }
    float offset(int) const { return 0.0f; }
    float whole() const { return 1.0f; }
};

inline float sum_of_lanes(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// Asked for ahead of a row, into the next one: 15% on Zen 3 with Q8_0, nothing with plain floats.
inline constexpr int kAheadNbytes = 1536;

// R rows, `apart` rows from each other, for T tokens.
template <class F, int R, int T>
inline void fixed_rows(const Dot& d, const Tiles& tiles, const FixedRow* x, int row, int apart) {
    auto f = [&]<std::size_t... I>(std::index_sequence<I...>) {
        return std::array<F, R>{F(tiles.tile(row + static_cast<int>(I) * apart), tiles)...};
    }(std::make_index_sequence<R>{});
    constexpr bool kBlocks = requires(F one) { one.begin(0); };
    __m256 sum[R][T], least[R][T];
    float less[R][T] = {};
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) sum[r][t] = least[r][t] = _mm256_setzero_ps();
    const int groups = d.columns / 32;
    for (int g = 0; g < groups; ++g) {
        if constexpr (kBlocks) {
            for (int r = 0; r < R && g % 8 == 0; ++r) {
                F& one = f[static_cast<std::size_t>(r)];
                one.begin(g);
                for (int t = 0; t < T; ++t)
                    least[r][t] =
                        _mm256_fmadd_ps(one.least, _mm256_loadu_ps(x[t].sum + g), least[r][t]);
            }
        }
        for (int r = 0; r < R; ++r) {
            __builtin_prefetch(f[static_cast<std::size_t>(r)].at(g) + kAheadNbytes);
            const Weights32 w = f[static_cast<std::size_t>(r)].weights(g);
            for (int t = 0; t < T; ++t) {
                const auto* q = reinterpret_cast<const __m256i*>(x[t].q + g * 32);
                const __m256i p =
                    _mm256_add_epi32(_mm256_madd_epi16(w.low, _mm256_loadu_si256(q)),
                                     _mm256_madd_epi16(w.high, _mm256_loadu_si256(q + 1)));
                sum[r][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(p),
                                            f[static_cast<std::size_t>(r)].scale(g, x[t].scale[g]),
                                            sum[r][t]);
                if constexpr (F::kOffset)
                    less[r][t] += f[static_cast<std::size_t>(r)].offset(g) * x[t].sum[g];
            }
        }
    }
    for (int t = 0; t < T; ++t)
        for (int r = 0; r < R; ++r) {
            if constexpr (kBlocks) less[r][t] = sum_of_lanes(least[r][t]);
            d.out[static_cast<std::size_t>(t) * d.out_stride +
                  static_cast<std::size_t>(row + r * apart)] =
                sum_of_lanes(sum[r][t]) * f[static_cast<std::size_t>(r)].whole() - less[r][t];
        }
}

inline constexpr int kFixedRows = 2;  // read at once, far apart, as `stream` does

template <class F, int T>
inline void fixed_stream(const Dot& d, const Tiles& tiles) {
    FixedRow x[T];
    for (int t = 0; t < T; ++t) x[t] = FixedRow(d.x[t], d.columns);
    const int apart = d.rows / kFixedRows;
    for (int row = 0; row < apart; ++row) fixed_rows<F, kFixedRows, T>(d, tiles, x, row, apart);
    for (int row = apart * kFixedRows; row < d.rows; ++row)
        fixed_rows<F, 1, T>(d, tiles, x, row, 1);
}

// Many tokens, and what does not fit: the rows as float32 with the activations as they were.
template <class F, void (*kUnpack)(const Tiles&, int, float*)>
void fixed_run(const Dot& d) {
    const Tiles tiles{d.w, d.w_stride, d.columns, d.format};
    if (d.tokens <= 3 && F::fits(tiles)) {
        if (d.tokens == 1) return fixed_stream<F, 1>(d, tiles);
        if (d.tokens == 2) return fixed_stream<F, 2>(d, tiles);
        return fixed_stream<F, 3>(d, tiles);
    }
    auto** x = reinterpret_cast<const std::byte**>(d.scratch);
    for (int t = 0; t < d.tokens; ++t)
        x[t] = reinterpret_cast<const std::byte*>(FixedRow(d.x[t], d.columns).x);
    Dot plain = d;
    plain.x = x;
    plain.scratch = d.scratch + pointers_nbytes(d.tokens);
    unpacked_run<kUnpack>(plain);
}

inline std::size_t fixed_scratch_nbytes(int rows, int columns, int tokens) {
    return pointers_nbytes(tokens) + unpacked_scratch_nbytes(rows, columns, tokens);
}

template <class F, void (*kUnpack)(const Tiles&, int, float*)>
inline void put_fixed_kernel(KernelTable& t, int kind) {
    t.fast[kind] = {F::kPairs ? kPairsInput : kFixedInput, kTileTokens, fixed_run<F, kUnpack>,
                    fixed_scratch_nbytes, dot_tile_rows<Widened<FloatRows>>};
}

inline void put_fixed_kernels(KernelTable& t) {
    t.put[kFixedInput] = put_fixed<false>;
    t.put[kPairsInput] = put_fixed<true>;
    put_fixed_kernel<FixedMXFP4, unpack_mxfp4>(t, kMXFP4);
    put_fixed_kernel<FixedNVFP4, unpack_nvfp4>(t, kNVFP4);
    put_fixed_kernel<FixedInt4<false>, unpack_int4<false>>(t, kInt4F16);
    put_fixed_kernel<FixedInt4<true>, unpack_int4<true>>(t, kInt4BF16);
    put_fixed_kernel<FixedQ8_0, unpack_q8_0>(t, kQ8_0);
    put_fixed_kernel<FixedQ4_0, unpack_q4_0>(t, kQ4_0);
    put_fixed_kernel<FixedIQ4_NL, unpack_iq4_nl>(t, kIQ4_NL);
    put_fixed_kernel<FixedGgmlMXFP4, unpack_ggml_mxfp4>(t, kGgmlMXFP4);
    put_fixed_kernel<FixedK<144, false>, unpack_q4_k>(t, kQ4_K);
    put_fixed_kernel<FixedK<176, true>, unpack_q5_k>(t, kQ5_K);
    put_fixed_kernel<FixedQ6_K, unpack_q6_k>(t, kQ6_K);
}

}  // namespace headrace::HEADRACE_ISA
