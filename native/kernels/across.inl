// Products along the other side of a matrix: its rows are scaled and summed, in any format.
//
// Invariant: an element sums over the rows in ascending order, whatever tokens share the call.

namespace headrace::HEADRACE_ISA {

inline constexpr int kFewTokens = 4;  // up to here, rows go through L1
inline constexpr int kAcrossRows = 64, kAcrossFew = 16;

inline int across_padded(int columns) { return (columns + F32::N - 1) / F32::N * F32::N; }

inline std::size_t across_scratch_nbytes(int columns, int tokens) {
    const auto row = static_cast<std::size_t>(across_padded(columns)) * sizeof(float);
    return static_cast<std::size_t>(kAcrossRows + tokens) * row;
}

inline void across(const Across& c) {
    const int columns = c.w.columns, padded = across_padded(columns);
    const auto row_nbytes = static_cast<std::size_t>(padded) * sizeof(float);
    float* rows = reinterpret_cast<float*>(c.scratch);
    // Where rows are no whole vectors, sums wait apart from what lies behind them.
    const bool direct = columns == padded;
    float* sums = direct ? c.y : rows + static_cast<std::int64_t>(kAcrossRows) * padded;
    const std::int64_t stride = direct ? c.y_stride : padded;
    const int strip = c.tokens <= kFewTokens ? kAcrossFew : kAcrossRows;
    std::memset(rows, 0, static_cast<std::size_t>(strip) * row_nbytes);
    for (int t = 0; t < c.tokens; ++t) std::memset(sums + t * stride, 0, row_nbytes);
    for (int first = 0; first < c.rows; first += strip) {
        const int depth = c.rows - first < strip ? c.rows - first : strip;
        for (int i = 0; i < depth; ++i)
            c.unpack(c.w, first + i, rows + static_cast<std::int64_t>(i) * padded);
        panel_product<true>({c.x + first, c.x_stride, rows, padded, depth, sums, stride}, c.tokens,
                            padded / F32::N);
    }
    for (int t = 0; !direct && t < c.tokens; ++t)
        std::memcpy(c.y + t * c.y_stride, sums + t * stride,
                    static_cast<std::size_t>(columns) * sizeof(float));
}

}  // namespace headrace::HEADRACE_ISA
