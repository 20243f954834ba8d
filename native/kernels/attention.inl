// Attention over paged KV: online softmax over key tiles, summed within spans, spans merged in
// order.

namespace headrace::HEADRACE_ISA {

inline float exp_one(float x) {
    alignas(64) float lanes[F32::N];
    exp(F32::set1(x)).store(lanes);
    return lanes[0];
}

// Turns a row of scores into weights relative to the running maximum. Of `columns`, those in
// [low, high) count.
inline void weigh_row(float* scores, int low, int high, int columns, float* sums, int padded) {
    const float none = -std::numeric_limits<float>::infinity();
    for (int j = 0; j < low; ++j) scores[j] = none;
    for (int j = high; j < columns; ++j) scores[j] = none;
    F32 tops = F32::load(scores);
    for (int j = F32::N; j < columns; j += F32::N) tops = max(tops, F32::load(scores + j));
    const float before = sums[padded];
    const float tile_top = tops.reduce_max();
    const float top = before > tile_top ? before : tile_top;
    F32 weights = F32::zero();
    for (int j = 0; j < columns; j += F32::N) {
        const F32 w = exp(F32::load(scores + j) - F32::set1(top));
        w.store(scores + j);
        weights = weights + w;
    }
    float kept = sums[padded + 1];
    if (before < top && before != none) {
        const float shrink = exp_one(before - top);
        kept *= shrink;
        for (int d = 0; d < padded; d += F32::N)
            (F32::load(sums + d) * F32::set1(shrink)).store(sums + d);
    }
    sums[padded] = top;
    sums[padded + 1] = kept + weights.reduce_add();
}

inline void clear_sums(float* sums, int padded) {
    std::memset(sums, 0, static_cast<std::size_t>(padded) * sizeof(float));
    sums[padded] = -std::numeric_limits<float>::infinity();
    sums[padded + 1] = 0.0f;
}

// total += span, both relative to the larger maximum.
inline void merge_sums(float* total, const float* span, int padded) {
    const float none = -std::numeric_limits<float>::infinity();
    if (span[padded] == none) return;
    if (total[padded] == none) {
        std::memcpy(total, span, static_cast<std::size_t>(padded + 2) * sizeof(float));
        return;
    }
    const float top = total[padded] > span[padded] ? total[padded] : span[padded];
    const float a = exp_one(total[padded] - top), b = exp_one(span[padded] - top);
    for (int d = 0; d < padded; d += F32::N)
        fma(F32::load(total + d), F32::set1(a), F32::load(span + d) * F32::set1(b))
            .store(total + d);
    total[padded] = top;
    total[padded + 1] = total[padded + 1] * a + span[padded + 1] * b;
}

inline void finish_row(const Attention& c, float* total, int head, float* out) {
    const int padded = padded_values(c);
    float weights = total[padded + 1];
    float by = 1.0f;
    if (c.sinks != nullptr) {
        const float sink = c.sinks[head];
        const float top = total[padded] > sink ? total[padded] : sink;
        by = exp_one(total[padded] - top);
        weights = weights * by + exp_one(sink - top);
    }
    by /= weights;
    for (int d = 0; d < c.value_dim; d += F32::N) {
        const int lanes = c.value_dim - d < F32::N ? c.value_dim - d : F32::N;
        // A sum that underflowed may be -0 or 0, as more or fewer unseen keys were added to it.
        store_lanes(F32::load(total + d) * F32::set1(by) + F32::zero(), out + d, lanes);
    }
}

inline int piece_rows_of_head(const Attention& c, const AttentionPiece& p) {
    return (p.last_token - p.first_token) * c.group();
}

inline void load_queries(const Attention& c, const AttentionPiece& p, float* to) {
    const int group = c.group();
    for (int kv = p.first_head; kv < p.last_head; ++kv)
        for (int t = p.first_token; t < p.last_token; ++t)
            for (int h = kv * group; h < (kv + 1) * group; ++h, to += c.head_dim) {
                const float* q = c.q + t * c.q_stride + static_cast<std::int64_t>(h) * c.head_dim;
                for (int d = 0; d < c.head_dim; ++d) to[d] = q[d] * c.scale;
            }
}

inline void finish_piece_row(const Attention& c, const AttentionPiece& p, int row, float* total) {
    const int group = c.group();
    const int of_head = piece_rows_of_head(c, p);
    const int token = p.first_token + row % of_head / group;
    const int head = (p.first_head + row / of_head) * group + row % group;
    finish_row(c, total, head,
               c.out + (static_cast<std::int64_t>(token) * c.heads + head) * c.value_dim);
}

// The part of a tile that some query of a piece sees: the tokens [first, last) of the piece that
// see any of it, and the columns [low, high) that any of these sees.
struct TileView {
    int first;
    int last;
    int low;
    int high;
};

inline int tile_column(std::int64_t base, std::int64_t key) {
    if (key <= base) return 0;
    return key - base < Attention::kTile ? static_cast<int>(key - base) : Attention::kTile;
}

inline TileView view_tile(const Attention& c, std::int64_t base, std::int64_t position,
                          int tokens) {
    TileView view{0, tokens, 0, 0};
    while (view.first < view.last && position + view.first < base) ++view.first;
    while (view.last > view.first &&
           c.first_key(position + view.last - 1) >= base + Attention::kTile)
        --view.last;
    view.low = tile_column(base, c.first_key(position + view.first));
    view.high = tile_column(base, position + view.last);
    return view;
}

// One tile for the queries of one KV head, `s` being the memory of its rows. Columns behind the
// last key that is seen are left out: they would add zeros.
inline void attend_tile(const Attention& c, int sequence, int kv_head, std::int64_t base,
                        std::int64_t position, const TileView& view, const AttentionScratch& s) {
    constexpr int kTile = Attention::kTile;
    const int group = c.group();
    const int padded = padded_values(c);
    const std::int64_t entry = attention_entry(c);
    if (c.format == kF32)
        load_tile<float>(c, sequence, kv_head, base, view.low, view.high, s);
    else
        load_tile<std::uint16_t>(c, sequence, kv_head, base, view.low, view.high, s);
    const int columns = used_columns(view.high);
    const int rows = (view.last - view.first) * group;
    const std::int64_t skipped = static_cast<std::int64_t>(view.first) * group;
    float* sums = s.span + skipped * entry;
    panel_product<false>(
        {s.q + skipped * c.head_dim, c.head_dim, s.keys, kTile, c.head_dim, s.scores, kTile}, rows,
        columns / F32::N);
    for (int r = 0; r < rows; ++r) {
        const std::int64_t at = position + view.first + r / group;
        weigh_row(s.scores + static_cast<std::int64_t>(r) * kTile,
                  tile_column(base, c.first_key(at)), tile_column(base, at + 1), columns,
                  sums + r * entry, padded);
    }
    panel_product<true>({s.scores, kTile, s.values, padded, columns, sums, entry}, rows,
                        padded / F32::N);
}

inline void attend_span(const Attention& c, const AttentionPiece& p, std::int64_t span,
                        const AttentionScratch& s) {
    constexpr int kTile = Attention::kTile;
    const int tokens = p.last_token - p.first_token;
    const int of_head = piece_rows_of_head(c, p);
    const int heads = p.last_head - p.first_head;
    const std::int64_t position = c.contexts[p.sequence] + p.first_token - c.offsets[p.sequence];
    const std::int64_t end = position + tokens < p.last_span * Attention::kSpan
                                 ? position + tokens
                                 : p.last_span * Attention::kSpan;
    for (std::int64_t base = span * Attention::kSpan; base < (span + 1) * Attention::kSpan;
         base += kTile) {
        const TileView view = view_tile(c, base, position, tokens);
        if (view.first == view.last) continue;
        const auto ahead = [&](int i) {
            const std::int64_t key = base + kTile + kTile * i / heads;
            return key < end ? key : end;
        };
        AttentionScratch of = s;
        for (int i = 0; i < heads; ++i) {
            if (of_head <= Attention::kFewRows) fetch_keys(c, p, ahead(i), ahead(i + 1));
            attend_tile(c, p.sequence, p.first_head + i, base, position, view, of);
            of.q += static_cast<std::int64_t>(of_head) * c.head_dim;
            of.span += of_head * attention_entry(c);
        }
    }
}

inline void attention_piece(const Attention& c, const AttentionPiece& p, std::byte* scratch) {
    const int rows = piece_rows_of_head(c, p) * (p.last_head - p.first_head);
    const int padded = padded_values(c);
    const std::int64_t entry = attention_entry(c);
    std::size_t nbytes = 0;
    const AttentionScratch s = attention_scratch(c, rows, scratch, &nbytes);
    const int wide = c.head_dim > c.value_dim ? c.head_dim : c.value_dim;
    std::memset(s.zeros, 0, static_cast<std::size_t>(wide) * sizeof(float));
    if (piece_rows_of_head(c, p) <= Attention::kFewRows) {
        const std::int64_t last = c.contexts[p.sequence] + p.last_token - c.offsets[p.sequence];
        const std::int64_t first = p.first_span * Attention::kSpan;
        const std::int64_t next = first + Attention::kTile;
        fetch_keys(c, p, first, last < next ? last : next);
    }
    load_queries(c, p, s.q);
    for (int r = 0; r < rows; ++r) clear_sums(s.total + r * entry, padded);
    for (std::int64_t span = p.first_span; span < p.last_span; ++span) {
        for (int r = 0; r < rows; ++r) clear_sums(s.span + r * entry, padded);
        attend_span(c, p, span, s);
        for (int r = 0; r < rows; ++r) {
            const float* sums = s.span + r * entry;
            if (p.partial == nullptr)
                merge_sums(s.total + r * entry, sums, padded);
            else
                std::memcpy(p.partial + (r * p.spans + span - p.base_span) * entry, sums,
                            static_cast<std::size_t>(padded + 2) * sizeof(float));
        }
    }
    for (int r = 0; p.partial == nullptr && r < rows; ++r)
        finish_piece_row(c, p, r, s.total + r * entry);
}

inline void attention_merge(const Attention& c, const AttentionPiece& p, int first, int last,
                            std::byte* scratch) {
    const int padded = padded_values(c);
    const std::int64_t entry = attention_entry(c);
    float* total = reinterpret_cast<float*>(scratch);
    for (int r = first; r < last; ++r) {
        clear_sums(total, padded);
        for (std::int64_t i = 0; i < p.spans; ++i)
            merge_sums(total, p.partial + (r * p.spans + i) * entry, padded);
        finish_piece_row(c, p, r, total);
    }
}

}  // namespace headrace::HEADRACE_ISA
