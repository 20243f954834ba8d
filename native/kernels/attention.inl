// Attention over paged KV: online softmax over key tiles, summed within spans, spans merged in
// order.

namespace headrace::HEADRACE_ISA {

// One worker's memory for a piece. Rows are (token, head of the group), token by token.
struct AttentionScratch {
    float* q;       // [rows, head_dim], scaled
    float* keys;    // [head_dim, kTile]
    float* values;  // [kTile, padded]
    float* scores;  // [rows, kTile]
    float* span;    // [rows, entry]: value sum (padded), then the maximum and the sum of weights
    float* total;   // [rows, entry]
    float* zeros;   // a row for keys that no query of the piece sees
    const void** key_rows;
    const void** value_rows;
};

inline int padded_values(const Attention& c) {
    return (c.value_dim + F32::N - 1) / F32::N * F32::N;
}

inline std::int64_t attention_entry(const Attention& c) { return padded_values(c) + F32::N; }

inline AttentionScratch attention_scratch(const Attention& c, int rows, std::byte* at,
                                          std::size_t* nbytes) {
    std::size_t used = 0;
    const auto take = [&](std::int64_t floats) {
        std::byte* start = at == nullptr ? nullptr : at + used;
        used += (static_cast<std::size_t>(floats) * sizeof(float) + 63) / 64 * 64;
        return reinterpret_cast<float*>(start);
    };
    const std::int64_t many = rows;
    const int wide = c.head_dim > c.value_dim ? c.head_dim : c.value_dim;
    AttentionScratch s{};
    s.q = take(many * c.head_dim);
    s.keys = take(static_cast<std::int64_t>(c.head_dim) * Attention::kTile);
    s.values = take(static_cast<std::int64_t>(Attention::kTile) * padded_values(c));
    s.scores = take(many * Attention::kTile);
    s.span = take(many * attention_entry(c));
    s.total = take(many * attention_entry(c));
    s.zeros = take(wide);
    s.key_rows = reinterpret_cast<const void**>(take(2 * Attention::kTile));
    s.value_rows = reinterpret_cast<const void**>(take(2 * Attention::kTile));
    *nbytes = used;
    return s;
}

inline std::size_t attention_scratch_nbytes(const Attention& c, int rows) {
    std::size_t nbytes = 0;
    attention_scratch(c, rows, nullptr, &nbytes);
    return nbytes;
}

inline float exp_one(float x) {
    alignas(64) float lanes[F32::N];
    exp(F32::set1(x)).store(lanes);
    return lanes[0];
}

// Keys [low, high) of the tile that starts at `base`, turned and widened; zeros elsewhere.
template <class T>
inline void load_tile(const Attention& c, const AttentionPiece& p, std::int64_t base, int low,
                      int high, const AttentionScratch& s) {
    const std::int32_t* blocks = c.blocks + p.sequence * c.max_blocks;
    auto** key_rows = reinterpret_cast<const T**>(s.key_rows);
    auto** value_rows = reinterpret_cast<const T**>(s.value_rows);
    for (int j = 0; j < Attention::kTile; ++j) {
        key_rows[j] = value_rows[j] = reinterpret_cast<const T*>(s.zeros);
        if (j < low || j >= high) continue;
        const std::int64_t key = base + j;
        const std::int64_t slot = blocks[key / c.block_size] * c.block_size + key % c.block_size;
        const std::int64_t row = slot * c.kv_heads + p.kv_head;
        key_rows[j] = reinterpret_cast<const T*>(c.k) + row * c.head_dim;
        value_rows[j] = reinterpret_cast<const T*>(c.v) + row * c.value_dim;
    }
    turn_keys(key_rows, Attention::kTile, c.head_dim, s.keys, Attention::kTile);
    widen_values(value_rows, Attention::kTile, c.value_dim, s.values, padded_values(c));
}

// Turns a row of scores into weights relative to the running maximum. Columns [low, high) count.
inline void weigh_row(float* scores, int low, int high, float* sums, int padded) {
    constexpr int kTile = Attention::kTile;
    const float none = -std::numeric_limits<float>::infinity();
    for (int j = 0; j < low; ++j) scores[j] = none;
    for (int j = high; j < kTile; ++j) scores[j] = none;
    F32 tops = F32::load(scores);
    for (int j = F32::N; j < kTile; j += F32::N) tops = max(tops, F32::load(scores + j));
    const float before = sums[padded];
    const float tile_top = tops.reduce_max();
    const float top = before > tile_top ? before : tile_top;
    F32 weights = F32::zero();
    for (int j = 0; j < kTile; j += F32::N) {
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
        (F32::load(total + d) * F32::set1(by)).store_partial(out + d, lanes);
    }
}

inline void load_queries(const Attention& c, const AttentionPiece& p, float* to) {
    const int group = c.group();
    for (int t = p.first_token; t < p.last_token; ++t)
        for (int h = 0; h < group; ++h, to += c.head_dim) {
            const float* q = c.q + t * c.q_stride +
                             static_cast<std::int64_t>(p.kv_head * group + h) * c.head_dim;
            for (int d = 0; d < c.head_dim; ++d) to[d] = q[d] * c.scale;
        }
}

// The tile at `base` for the tokens [first, last) that see a key of it.
inline void attend_tile(const Attention& c, const AttentionPiece& p, std::int64_t base,
                        std::int64_t position, const AttentionScratch& s) {
    constexpr int kTile = Attention::kTile;
    const int group = c.group();
    const int padded = padded_values(c);
    const std::int64_t entry = attention_entry(c);
    const int tokens = p.last_token - p.first_token;
    int first = 0, last = tokens;
    while (first < last && position + first < base) ++first;
    while (last > first && c.first_key(position + last - 1) >= base + kTile) --last;
    if (first == last) return;
    const auto column = [&](std::int64_t key) {
        return static_cast<int>(key <= base ? 0 : key - base < kTile ? key - base : kTile);
    };
    const int low = column(c.first_key(position + first));
    const int high = column(position + last);
    if (c.format == kF32)
        load_tile<float>(c, p, base, low, high, s);
    else
        load_tile<std::uint16_t>(c, p, base, low, high, s);
    const int rows = (last - first) * group;
    float* scores = s.scores + static_cast<std::int64_t>(first) * group * kTile;
    float* sums = s.span + first * group * entry;
    const float* q = s.q + static_cast<std::int64_t>(first) * group * c.head_dim;
    panel_product<false>({q, c.head_dim, s.keys, kTile, c.head_dim, scores, kTile}, rows,
                         kTile / F32::N);
    for (int r = 0; r < rows; ++r) {
        const std::int64_t at = position + first + r / group;
        weigh_row(scores + r * kTile, column(c.first_key(at)), column(at + 1), sums + r * entry,
                  padded);
    }
    panel_product<true>({scores, kTile, s.values, padded, kTile, sums, entry}, rows,
                        padded / F32::N);
}

inline void attention_piece(const Attention& c, const AttentionPiece& p, std::byte* scratch) {
    const int rows = (p.last_token - p.first_token) * c.group();
    const int padded = padded_values(c);
    const std::int64_t entry = attention_entry(c);
    std::size_t nbytes = 0;
    const AttentionScratch s = attention_scratch(c, rows, scratch, &nbytes);
    const int wide = c.head_dim > c.value_dim ? c.head_dim : c.value_dim;
    std::memset(s.zeros, 0, static_cast<std::size_t>(wide) * sizeof(float));
    load_queries(c, p, s.q);
    const std::int64_t position = c.contexts[p.sequence] + p.first_token - c.offsets[p.sequence];
    const std::int64_t from = c.first_key(position);
    const std::int64_t to = position + p.last_token - p.first_token;
    for (int r = 0; r < rows; ++r) clear_sums(s.total + r * entry, padded);
    for (std::int64_t span = p.first_span; span < p.last_span; ++span) {
        for (int r = 0; r < rows; ++r) clear_sums(s.span + r * entry, padded);
        for (int i = 0; i < Attention::kSpan / Attention::kTile; ++i) {
            const std::int64_t base = span * Attention::kSpan + i * Attention::kTile;
            if (base + Attention::kTile > from && base < to) attend_tile(c, p, base, position, s);
        }
        for (int r = 0; r < rows; ++r) {
            const float* sums = s.span + r * entry;
            if (p.partial == nullptr)
                merge_sums(s.total + r * entry, sums, padded);
            else
                std::memcpy(p.partial + (r * p.spans + span - p.base_span) * entry, sums,
                            static_cast<std::size_t>(padded + 2) * sizeof(float));
        }
    }
    if (p.partial != nullptr) return;
    for (int r = 0; r < rows; ++r) {
        const int token = p.first_token + r / c.group();
        const int head = p.kv_head * c.group() + r % c.group();
        finish_row(c, s.total + r * entry, head,
                   c.out + (static_cast<std::int64_t>(token) * c.heads + head) * c.value_dim);
    }
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
        const int token = p.first_token + r / c.group();
        const int head = p.kv_head * c.group() + r % c.group();
        finish_row(c, total, head,
                   c.out + (static_cast<std::int64_t>(token) * c.heads + head) * c.value_dim);
    }
}

}  // namespace headrace::HEADRACE_ISA
