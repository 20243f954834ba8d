// Many tokens with packed weights: integer products with rows in lanes.
//
// A strip of rows is taken apart once for some columns, into a panel that stays in L1 and meets
// every token. A sum is exact within 32 columns (16 where a scale ends there), then float32 in
// the order of its groups, whatever shares the call.

namespace headrace::HEADRACE_ISA {

inline constexpr int kStripRows = kStripVectors * F32::N;
inline constexpr int kStripGroups = 8;  // of 32 columns

struct alignas(64) StripPanel {
    PanelCode q[kStripGroups][kPanelSteps][kStripRows * kStepColumns];
    float scale[kStripGroups][2][kStripRows];
    float more[kStripGroups][2][kStripRows];  // of the activations' sums
};

// One of the two floats of eight groups of eight rows: a group's rows next to each other.
template <bool kNegative>
HEADRACE_INLINE void put_turned(const float (&of)[8][2][8], int half, int groups,
                                float (*to)[2][kStripRows], int row) {
    F8 v[8], turned[8];
    for (int r = 0; r < 8; ++r) {
        v[r] = load_floats(of[r][half]);
        if constexpr (kNegative) v[r] = mul(v[r], same(-1.0f));
    }
    turn_eight(v, turned);
    for (int i = 0; i < groups; ++i) store_floats(to[i][half] + row, turned[i]);
}

// Of groups [g, g + groups), at most eight.
template <class P, class C>
inline void put_scales(P& p, const std::array<C, 8>& c, int from, int g, int groups, int row) {
    float scale[8][2][8] = {}, less[8][2][8] = {};
    for (std::size_t r = 0; r < 8; ++r) scales_of_eight(c[r], from + g, groups, scale[r], less[r]);
    put_turned<false>(scale, 0, groups, p.scale + g, row);
    if constexpr (C::kHalves) put_turned<false>(scale, 1, groups, p.scale + g, row);
    if constexpr (C::kOffset) put_turned<true>(less, 0, groups, p.more + g, row);
    if constexpr (half_offsets<C>) put_turned<true>(less, 1, groups, p.more + g, row);
}

// Formats whose rows lie in lanes (kernels/lanes.inl).
template <class C>
concept Laned = requires { C::kGroupNbytes; };
template <class C>
concept LanedBlocks = Laned<C> && C::kColumns > 32;

// Whether a product's tokens meet panels.
template <class C>
bool takes_strips(const Dot& d) {
    if constexpr (!Laned<C>)
        if (!C::fits({d.w, d.w_stride, d.columns, d.format})) return false;
    return d.tokens > 3;
}

// Readers of eight rows from `row` on; past the last row, that one again.
template <class C>
inline std::array<C, 8> eight_readers(const Dot& d, const Tiles& tiles, int row) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
        return std::array<C, 8>{
            C(tiles.tile(std::min(row + static_cast<int>(I), d.rows - 1)), tiles)...};
    }(std::make_index_sequence<8>{});
}

// Whose codes a panel's products read where they lie.
#if defined(HEADRACE_TILES)
template <class C>
inline constexpr bool kReadsInPlace = std::is_same_v<C, LanesQ8_0>;
#else
template <class>
inline constexpr bool kReadsInPlace = false;
#endif

// Groups [from, from + groups) of rows [row, row + kStripRows); past the last row, that one again.
template <class C, Input kInput>
inline void fill_strip(StripPanel& p, const Dot& d, const Tiles& tiles, int row, int from,
                       int groups) {
    for (int eight = 0; eight < kStripRows; eight += 8) {
        const auto c = eight_readers<C>(d, tiles, row + eight);
        for (int g = 0; g < groups; ++g) {
            if (g % 8 == 0) put_scales(p, c, from, g, std::min(8, groups - g), eight);
            V32 rows[8];
            for (std::size_t r = 0; r < 8; ++r)
                rows[r] = StepOrder<kInput>::in_steps(c[r].codes(from + g));
            put_eight_rows(rows, p.q[g], eight);
        }
    }
}

// Words of four columns are what steps are made of.
template <Laned C, Input>
inline void fill_strip(StripPanel& p, const Dot& d, const Tiles& tiles, int row, int from,
                       int groups) {
    for (int eight = 0; eight < kStripRows; eight += 8) {
        const int first = row + eight, half = first % kLaneRows / 8;
        const int last = std::min(first, d.rows - 1);
        const std::byte* group = C::group(tiles, last, from);
        F8 wholes = no_floats();
        if constexpr (kWholeRows<C>) wholes = C::wholes(tiles.tile(last), half);
        for (int g = 0; g < groups; ++g, group += C::kGroupNbytes) {
            for (int part = 0; part < (C::kHalves ? 2 : 1); ++part) {
                F8 scales = C::scales(group, half, part);
                if constexpr (kWholeRows<C>) scales = mul(scales, wholes);
                store_floats(&p.scale[g][part][eight], scales);
            }
            if constexpr (!kReadsInPlace<C>) {
                V32 words[8];
                C::words(group, half, words);
                put_words(words, p.q[g], eight);
            }
        }
    }
}

// A block's groups.
template <LanedBlocks C, Input>
inline void fill_strip(StripPanel& p, const Dot& d, const Tiles& tiles, int row, int from,
                       int groups) {
    for (int eight = 0; eight < kStripRows; eight += 8) {
        const int first = row + eight, half = first % kLaneRows / 8;
        const std::byte* block = C::group(tiles, std::min(first, d.rows - 1), from);
        const typename C::Six six(block, half);
        const typename C::Whole whole(block, half);
        const F8 least = mul(whole.least, same(-1.0f));
        for (int g = 0; g < groups; ++g) {
            store_floats(&p.scale[g][0][eight], mul(whole.scale, C::Six::of(six.scales, g)));
            store_floats(&p.more[g][0][eight], mul(least, C::Six::of(six.minima, g)));
            V32 words[8];
            C::words(block, g, half, words);
            put_words(words, p.q[g], eight);
        }
    }
}

// Asks for what `fill_strip` will take.
template <class C>
HEADRACE_INLINE void ask_for_strip(const Dot& d, const Tiles& tiles, int row, int from,
                                   int groups) {
    for (int r = row; r < std::min(row + kStripRows, d.rows); ++r) {
        const C c(tiles.tile(r), tiles);
        ask_for(c.at(from), c.at(from + groups));
    }
}
template <Laned C>
HEADRACE_INLINE void ask_for_strip(const Dot& d, const Tiles& tiles, int row, int from,
                                   int groups) {
    for (int r = row; r < std::min(row + kStripRows, d.rows); r += kLaneRows)
        ask_for(C::group(tiles, r, from), C::group(tiles, r, from + groups));
}

}  // namespace headrace::HEADRACE_ISA
