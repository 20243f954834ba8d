// Many tokens with packed weights on AMX tiles: rows 32 at a time with all tokens of a block.

namespace headrace::HEADRACE_ISA {

inline constexpr int kBlockTiles = 8;  // of tokens: their bytes stay in L2 for all rows of a piece

template <class C, Input kInput>
using ProductsOf = std::conditional_t<kFourBits<C>, OneProduct<C, kInput>, TwoProducts<C, kInput>>;

inline int block_tiles(int tokens) { return std::min(kBlockTiles, (tokens + kTile - 1) / kTile); }

template <class W>
inline std::size_t scratch_of_products(int columns, int tokens) {
    const auto tiles = static_cast<std::size_t>(block_tiles(tokens));
    return sizeof(typename W::Panel) +
           tiles * (W::tokens_of(groups_of(columns)) * sizeof(typename W::Tokens) +
                    kTile * kStripRows * sizeof(float));
}

// All rows with the tokens of some tiles.
template <class W, class C>
inline void strips_with(const Dot& d, const typename W::Tokens* x, int first, int tokens,
                        typename W::Panel& panel, float* sums) {
    const Tiles tiles{d.w, d.w_stride, d.columns, d.format};
    const int groups = groups_of(d.columns);
    const auto all = static_cast<std::size_t>((tokens + kTile - 1) / kTile * kTile * kStripRows);
    for (int row = 0; row < d.rows; row += kStripRows) {
        std::memset(sums, 0, all * sizeof(float));
        for (int g = 0; g < groups; g += kStripGroups) {
            const int many = std::min(kStripGroups, groups - g);
            W::fill(panel, d, tiles, row, g, many);
            const bool last = g + many == groups;
            const int next_row = last ? row + kStripRows : row, next = last ? 0 : g + many;
            // The tokens' bytes stay in L1 for all rows of the strip.
            for (int t = 0; t < tokens; t += kTile)
                for (int r = 0; r < kStripRows && row + r < d.rows; r += kTile) {
                    const TileAhead ahead =
                        t == 0 ? ahead_of<C>(tiles, d, next_row + r, next, many) : TileAhead{};
                    const std::byte* in_place = nullptr;
                    if constexpr (kReadsInPlace<C>) in_place = C::group(tiles, row + r, g);
                    const auto tile = static_cast<std::size_t>(t / kTile);
                    W::strip(panel, in_place, r, many, W::at(x + tile * W::tokens_of(groups), g),
                             std::min(kTile, tokens - t), ahead, sums + t * kStripRows + r);
                }
        }
        for (int t = 0; t < tokens; ++t)
            put_out<kStripRows>(d, first + t, row, sums + t * kStripRows);
    }
}

// All tokens' tiles, one after another.
template <class C, Input kInput>
struct StripPacking {
    using W = ProductsOf<C, kInput>;
    using Tokens = typename W::Tokens;

    static std::size_t apart(int columns) { return W::tokens_of(groups_of(columns)); }
    static std::size_t nbytes(int columns, int tokens) {
        return static_cast<std::size_t>((tokens + kTile - 1) / kTile) * apart(columns) *
               sizeof(Tokens);
    }
    // Tokens [first, first + count).
    static void put_some(const Dot& d, int first, int count, Tokens* to) {
        FixedRow x[kTile];
        for (int t = 0; t < count; t += kTile, to += apart(d.columns)) {
            const int n = std::min(kTile, count - t);
            for (int i = 0; i < n; ++i) x[i] = FixedRow(d.x[first + t + i], d.columns);
            W::put(x, n, groups_of(d.columns), to);
        }
    }
    static void put(const Dot& d, std::byte* to) {
        if (takes_strips<C>(d)) put_some(d, 0, d.tokens, reinterpret_cast<Tokens*>(to));
    }
};
template <class C, Input kInput>
inline constexpr Packing kStripPacking{StripPacking<C, kInput>::nbytes,
                                       StripPacking<C, kInput>::put};

template <class C, Input kInput>
inline void strips_run(const Dot& d) {
    using W = ProductsOf<C, kInput>;
    const int groups = groups_of(d.columns), tiles = block_tiles(d.tokens), block = tiles * kTile;
    auto& panel = *reinterpret_cast<typename W::Panel*>(d.scratch);
    auto* packed = reinterpret_cast<typename W::Tokens*>(d.scratch + sizeof panel);
    const std::size_t apart = W::tokens_of(groups);
    auto* sums = reinterpret_cast<float*>(packed + static_cast<std::size_t>(tiles) * apart);
    const auto* given = reinterpret_cast<const typename W::Tokens*>(d.packed);
    TileConfig config;
    W::configure(config, std::min(kTile, (d.tokens + 3) / 4 * 4));
    load_config(config);
    for (int first = 0; first < d.tokens; first += block) {
        const int tokens = std::min(block, d.tokens - first);
        if (given == nullptr) StripPacking<C, kInput>::put_some(d, first, tokens, packed);
        const auto* x =
            given == nullptr ? packed : given + static_cast<std::size_t>(first / kTile) * apart;
        strips_with<W, C>(d, x, first, tokens, panel, sums);
    }
    _tile_release();
}

inline std::size_t strips_scratch_nbytes(int columns, int tokens) {
    return std::max(scratch_of_products<OneProduct<LanesQ4_0, kHalvesInput>>(columns, tokens),
                    scratch_of_products<TwoProducts<LanesQ8_0, kEvensInput>>(columns, tokens));
}

// Rows of a piece: its tokens are put into tiles once.
inline int strips_tile_rows(int) { return 32 * kStripRows; }

}  // namespace headrace::HEADRACE_ISA
