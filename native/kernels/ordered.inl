// INT4 whose groups are columns from anywhere: a tile begins with the column that each stored one
// is, as 16 bits, behind which rows lie as those of plain INT4.
//
// Few and many tokens meet the plain kernels; their activations are put into the stored order
// first, once for the rows of a call. All tiles of a matrix have the same order.

namespace headrace::HEADRACE_ISA {

inline const std::byte* order_of(const Tiles& t, int row) { return t.tile(row); }

// A damaged order names no column outside.
inline std::size_t column_at(const std::byte* order, int i, int columns) {
    return std::min<std::size_t>(load_as<std::uint16_t>(order + 2 * i),
                                 static_cast<std::size_t>(columns) - 1);
}

// The rows of the tile of `row`.
inline Tiles rows_behind_order(const Tiles& t, int row) {
    const int plain = plain_format(t.format);
    return {t.tile(row) + 2 * static_cast<std::size_t>(t.columns), tile_nbytes(plain, t.columns),
            t.columns, plain};
}

template <void (*kPlain)(const Tiles&, int, float*)>
inline void unpack_ordered(const Tiles& t, int row, float* to) {
    float stored[kMostOrdered];
    kPlain(rows_behind_order(t, row), row % kOrderedRows, stored);
    const std::byte* order = order_of(t, row);
    for (int i = 0; i < t.columns; ++i) to[column_at(order, i, t.columns)] = stored[i];
}

#if defined(HEADRACE_PACKED)
inline constexpr int kOrderedTokens = 32;  // that are put in order at once

inline void put_in_order(const std::byte* order, const float* x, int columns, float* to) {
    const V16 most = small16(static_cast<short>(columns - 1));
    for (int i = 0; i < columns; i += 8) {
        const V16 at = least16(load16(order + 2 * i), most);
        store_floats(to + i, gathered(x, at));
    }
}

template <class F, class C, void (*kPlain)(const Tiles&, int, float*),
          void (*kUnpack)(const Tiles&, int, float*)>
void ordered_run(const Dot& d) {
    const Tiles tiles{d.w, d.w_stride, d.columns, d.format};
    const Tiles plain = rows_behind_order(tiles, 0);
    const bool few = d.tokens <= 3;
    if (!(few ? F::fits(plain) : C::fits(plain))) return plain_run<FixedRow, kUnpack>(d);
    const int most = std::min(d.tokens, kOrderedTokens);
    const std::size_t row_nbytes = input_nbytes(F::kInput, d.columns);
    auto** x = reinterpret_cast<const std::byte**>(d.scratch);
    std::byte* rows = d.scratch + pointers_nbytes(most);
    auto* ordered = reinterpret_cast<float*>(rows + static_cast<std::size_t>(most) * row_nbytes);
    Dot part = d;
    part.x = x;
    part.format = plain.format;
    part.w_stride = plain.stride;
    part.scratch = reinterpret_cast<std::byte*>(ordered + padded_columns(d.columns));
    for (int first = 0; first < d.tokens; first += most) {
        part.tokens = std::min(most, d.tokens - first);
        for (int t = 0; t < part.tokens; ++t) {
            std::byte* row = rows + static_cast<std::size_t>(t) * row_nbytes;
            put_in_order(order_of(tiles, 0), FixedRow(d.x[first + t], d.columns).x, d.columns,
                         ordered);
            put_fixed<F::kInput>(row, d.columns, 0, ordered, d.columns);
            x[t] = row;
        }
        for (int r = 0; r < d.rows; r += kOrderedRows) {
            part.w = rows_behind_order(tiles, r).w;
            part.rows = std::min(kOrderedRows, d.rows - r);
            part.out = d.out + static_cast<std::size_t>(first) * d.out_stride + r;
            few ? fixed_run<F, kPlain>(part) : strips_run<C, F::kInput>(part);
        }
    }
}

inline std::size_t ordered_scratch_nbytes(int rows, int columns, int tokens) {
    const int most = std::min(tokens, kOrderedTokens);
    const std::size_t in_order =
        pointers_nbytes(most) +
        static_cast<std::size_t>(most) * input_nbytes(kFoursInput, columns) +
        padded_columns(columns) * sizeof(float) + many_scratch_nbytes(kOrderedRows, columns, most);
    return std::max(in_order, fixed_scratch_nbytes(rows, columns, tokens));
}

inline int ordered_tile_rows(int) { return 4 * kOrderedRows; }

template <bool kBF16Scales>
inline void put_ordered(KernelTable& t, int kind) {
    using F = FixedInt4<kBF16Scales>;
    using C = CodesInt4<kBF16Scales>;
    constexpr auto kPlain = unpack_codes<C, unpack_int4<kBF16Scales>>;
    put_unpacked<unpack_ordered<kPlain>>(t, kind);
    t.fast[kind] = {F::kInput, kTileTokens, ordered_run<F, C, kPlain, unpack_ordered<kPlain>>,
                    ordered_scratch_nbytes, ordered_tile_rows};
}
#else
template <bool kBF16Scales>
inline void put_ordered(KernelTable& t, int kind) {
    put_unpacked<unpack_ordered<unpack_int4<kBF16Scales>>>(t, kind);
    t.fast[kind] = t.exact[kind];
}
#endif

inline void put_ordered_kernels(KernelTable& t) {
    put_ordered<false>(t, kInt4F16Ordered);
    put_ordered<true>(t, kInt4BF16Ordered);
}

}  // namespace headrace::HEADRACE_ISA
