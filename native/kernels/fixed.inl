// Few tokens with packed weights: integer products with 16-bit fixed point activations.
//
// A token's row holds, for each 32 columns, 16-bit integers q and a float scale s with x = s q to
// 2^-16 of the group's largest, far finer than bfloat16. Weights are walked in blocks of 256
// columns, whatever the format's own; a row's sums have one order in any company.

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
    // The same of kHalfSumsInput, behind the bytes.
    const float* half_sums() const {
        return reinterpret_cast<const float*>(more + (sum - scale) / 8 * 512);
    }
    // Of kFoursInput, kHalvesInput, kHalfSumsInput and kPlanesInput: q in bytes, 512 a block.
    const std::int8_t* bytes() const { return reinterpret_cast<const std::int8_t*>(more); }
};

inline float half_fast(const std::byte* p) { return float_of_f16(load_as<std::uint16_t>(p)); }

// 16 integers of a group, four for each vector of bytes: its lane of h, then of l.
inline void put_lanes(std::int8_t* lane, V32 q) {
    alignas(32) std::int32_t fours[8];
    store32(fours, in_bytes(q));
    for (int i = 0; i < 4; ++i) {
        const int* from = fours + i / 2 * 4 + i % 2;
        std::memcpy(lane + i * 128, from, 4);
        std::memcpy(lane + i * 128 + 32, from + 2, 4);
    }
}

// Group g of a row: 16 integers, and 16 more.
template <Input kInput>
inline void put_integers(const FixedRow& row, int g, V32 first, V32 second) {
    put_order<kInput>(const_cast<std::int16_t*>(row.q), g, first, second);
    if constexpr (kInput != kEvensInput) {
        std::int8_t* lane = const_cast<std::int8_t*>(row.bytes()) + g / 8 * 512 + g % 8 * 4;
        V32 nibbles[2] = {first, second};
        if constexpr (kInput == kFoursInput) by_evens(first, second, nibbles);
        put_lanes(lane, nibbles[0]);
        put_lanes(lane + 64, nibbles[1]);
    }
}

// 32 floats: the scale, and the sum times it.
template <Input kInput>
inline void put_group(const FixedRow& at, int g, const float* from) {
    // The bits of floats without a sign are in the order of what they are, NaNs above all.
    F8 v[4];
    V32 most = no_bits();
    for (int i = 0; i < 4; ++i) {
        v[i] = load_floats(from + i * 8);
        most = most32(most, bits_and(as_bits(v[i]), each32(0x7fffffff)));
    }
    const int top = most_of_words(most);
    const bool sound = top <= std::bit_cast<int>(3e38f);
    const auto largest = std::bit_cast<float>(top);
    const float scale = sound ? largest / kMostFixed : std::bit_cast<float>(0x7fc00000u);
    const F8 inverse = same(sound && largest > 1e-30f ? kMostFixed / largest : 0.0f);
    V32 n[4], sum = no_bits();
    for (int i = 0; i < 4; ++i) {
        n[i] = rounded(sound ? mul(v[i], inverse) : no_floats());
        sum = add32(sum, n[i]);
    }
    put_integers<kInput>(at, g, narrow32(n[0], n[1]), narrow32(n[2], n[3]));
    const_cast<float*>(at.scale)[g] = scale;
    const_cast<float*>(at.sum)[g] = scale * static_cast<float>(sum_of_words(sum));
    if constexpr (kInput == kHalfSumsInput)
        for (int half = 0; half < 2; ++half) {
            const int of = sum_of_words(add32(n[2 * half], n[2 * half + 1]));
            const_cast<float*>(at.half_sums())[2 * g + half] = scale * static_cast<float>(of);
        }
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

// A block's groups, whose scales are taken in a loop that is no loop: shuffles want constants.
template <int kCount, class Fn>
inline void unrolled(Fn&& fn) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
        (fn(std::integral_constant<int, static_cast<int>(I)>{}), ...);
    }(std::make_index_sequence<kCount>{});
}

// Asked for ahead of a row, into the next ones: 15% on Zen 3, where 1 to 8 KiB are alike; on
// Emerald Rapids 4 KiB are 5 to 17% better than 2.
inline constexpr int kAheadNbytes = 4096;

// Inlined always, and so is what only calls it: GCC drops calls of functions that only ask.
HEADRACE_INLINE void ask_for(const std::byte* p, const std::byte* end) {
    for (; p < end; p += 64) __builtin_prefetch(p);
}

template <int kNbytes>
HEADRACE_INLINE void ask_ahead(const std::byte* p) {
    ask_for(p + kAheadNbytes, p + kAheadNbytes + kNbytes);
}

// The groups behind a row's last whole block, as a block whose other groups are zeros.
template <class F, int T>
[[gnu::noinline]] void add_tail(const F& f, int columns, const FixedRow (&x)[T], F8 (&sum)[T],
                                F8 (&less)[T]) {
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

// The products of R rows, `apart` rows from each other, with T tokens: sums of their lanes are the
// results.
template <class F, int R, int T>
HEADRACE_INLINE void fixed_rows(const Tiles& tiles, const typename Habits<F>::Row (&x)[T], int row,
                                int apart, F8 (&total)[R][T]) {
    auto f = [&]<std::size_t... I>(std::index_sequence<I...>) {
        return std::array<F, R>{F(tiles.tile(row + static_cast<int>(I) * apart), tiles)...};
    }(std::make_index_sequence<R>{});
    F8 sum[R][T], less[R][T];
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) sum[r][t] = less[r][t] = no_floats();
    const int blocks = tiles.columns / 256;
    for (int b = 0; b < blocks; ++b)
        for (int r = 0; r < R; ++r) {
            const F& one = f[static_cast<std::size_t>(r)];
            ask_ahead<F::kStreamNbytes>(one.stream(b));
            one.add(b, x, b, sum[r], less[r]);
        }
    if constexpr (F::kTails) {
        if (tiles.columns % 256 != 0)
            for (int r = 0; r < R; ++r)
                add_tail(f[static_cast<std::size_t>(r)], tiles.columns, x, sum[r], less[r]);
    }
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) {
            const F8 all = mul(sum[r][t], same(f[static_cast<std::size_t>(r)].whole()));
            total[r][t] = F::kOffset ? sub(all, less[r][t]) : all;
        }
}

// `count` times R rows from `first` on. Eight rows are summed up at once: done one by one, it took
// as long as a block.
template <class F, int R, int T>
inline void fixed_strip(const Dot& d, const Tiles& tiles, const typename Habits<F>::Row (&x)[T],
                        int first, int count) {
    for (int i = 0; i < count; i += 8) {
        const int n = std::min(8, count - i);
        F8 total[R][T][8];
        for (int k = 0; k < 8; ++k) {
            F8 row[R][T] = {};
            if (k < n) fixed_rows<F, R, T>(tiles, x, first + i + k, count, row);
            for (int r = 0; r < R; ++r)
                for (int t = 0; t < T; ++t) total[r][t][k] = row[r][t];
        }
        for (int r = 0; r < R; ++r)
            for (int t = 0; t < T; ++t) {
                float sums[8];
                store_floats(sums, sums_of_lanes(total[r][t]));
                std::memcpy(d.out + static_cast<std::size_t>(t) * d.out_stride +
                                static_cast<std::size_t>(first + r * count + i),
                            sums, static_cast<std::size_t>(n) * sizeof(float));
            }
    }
}

template <class F, int T>
inline void fixed_stream(const Dot& d, const Tiles& tiles) {
    constexpr int kRows = Habits<F>::kRows;
    typename Habits<F>::Row x[T];
    for (int t = 0; t < T; ++t) x[t] = {d.x[t], d.columns};
    const int apart = d.rows / kRows;
    fixed_strip<F, kRows, T>(d, tiles, x, 0, apart);
    fixed_strip<F, 1, T>(d, tiles, x, apart * kRows, d.rows - apart * kRows);
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
