// Many tokens on tiles with weights that are exact in bfloat16: E4M3, and E2M1 with scales of four
// bits or powers of two. Activations are two bfloat16 each, what the first leaves out in the
// second, so their error is 2^-16 of each.
//
// A token's sums are its own row of C; they walk the columns upwards, 32 at a time, whatever shares
// the call.

namespace headrace::HEADRACE_ISA {

// Group i of 32 rows and of one tile of tokens or two, `apart` from each other.
template <bool kTwo>
HEADRACE_INLINE void load_group(const WidePanel& p, const WideGroup* x, std::ptrdiff_t apart,
                                int i) {
    _tile_loadd(6, p.w[i][0], 64);
    _tile_loadd(7, p.w[i][1], 64);
    _tile_loadd(4, x[i].high, 64);
    if constexpr (kTwo) _tile_loadd(5, x[apart + i].high, 64);
}

template <bool kTwo>
HEADRACE_INLINE void multiply_loaded() {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTwo) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

// The products of a group that is loaded. Then the next one is, before the stores of what is done
// beside: a load behind a store to the same place of another page waits for it.
template <bool kTwo>
HEADRACE_INLINE void multiply_group(const WidePanel& p, const WideGroup* x, std::ptrdiff_t apart,
                                    int i, int groups) {
    multiply_loaded<kTwo>();
    _tile_loadd(4, x[i].low, 64);
    if constexpr (kTwo) _tile_loadd(5, x[apart + i].low, 64);
    multiply_loaded<kTwo>();
    if (i + 1 < groups) load_group<kTwo>(p, x, apart, i + 1);
    memory_barrier();
}

// What the vector units do while tiles are multiplied: a part with every group. Done at once, each
// would wait for the other.

// The panel behind is filled, and the one behind that asked for: in `units` parts.
template <class W>
struct WideAhead {
    W& format;
    const Dot& d;
    const Tiles& tiles;
    WidePlace next, behind;
    WidePanel& to;
    int units, due = 0, done = 0;

    HEADRACE_INLINE void step() {
        const int steps = W::steps(next.groups);
        for (due += steps; due >= units && done < steps; due -= units) one();
    }
    void rest() {
        while (done < W::steps(next.groups)) one();
    }

  private:
    HEADRACE_INLINE void one() {
        format.step(to, d, tiles, next, done);
        if (done < W::steps(behind.groups)) W::ask(d, tiles, behind, done);
        ++done;
    }
};

// The sums of a panel are multiplied by its scales and added up: while those of the next are made.
struct alignas(64) WideSums {
    float of[2][2][2][kTile][kTile];  // of panels in turn: [tile of tokens, tile of rows]
    float scale[2][kWideRows];
    float* to;
    int last = 0, tokens = 0, done = 0;

    HEADRACE_INLINE void add(int count) {
        const int end = std::min(done + count, tokens);
        for (; done < end; ++done)
            for (int r = 0; r < 2; ++r) {
                float* at = to + done * kWideRows + r * kTile;
                fma(F32::load(of[last][done / kTile][r][done % kTile]),
                    F32::load(scale[last] + r * kTile), F32::load(at))
                    .store(at);
            }
    }
    template <bool kTwo>
    HEADRACE_INLINE void put(const float* by, int count, float* where) {
        last ^= 1;
        _tile_stored(0, of[last][0][0], 64);
        _tile_stored(1, of[last][0][1], 64);
        if constexpr (kTwo) {
            _tile_stored(2, of[last][1][0], 64);
            _tile_stored(3, of[last][1][1], 64);
        }
        memory_barrier();
        std::memcpy(scale[last], by, sizeof scale[last]);
        to = where;
        tokens = count;
        done = 0;
    }
};

HEADRACE_INLINE void zero_wide_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

// to[t * kWideRows] += a panel's products, of up to 32 tokens, some of them later.
template <bool kTwo, class W>
inline void multiply_scaled(const WidePanel& p, const WideGroup* x, std::ptrdiff_t apart,
                            int groups, int tokens, WideSums& sums, WideAhead<W>& ahead,
                            float* to) {
    const int each = (kWideTokens + groups - 1) / groups;
    zero_wide_sums();
    load_group<kTwo>(p, x, apart, 0);
    for (int i = 0; i < groups; ++i) {
        multiply_group<kTwo>(p, x, apart, i, groups);
        sums.add(each);
        ahead.step();
    }
    sums.put<kTwo>(p.scale, tokens, to);
}

// Whether a panel is its rows' first, their last, and whether no other tokens come between.
struct WideEnds {
    bool first, last, alone;
};

// The same without scales: sums stay in tiles where nothing else is multiplied.
template <bool kTwo, class W>
inline void multiply_plain(const WidePanel& p, const WideGroup* x, std::ptrdiff_t apart, int groups,
                           WideEnds ends, WideAhead<W>& ahead, float* to) {
    constexpr int kStride = kWideRows * sizeof(float);
    if (ends.first) {
        zero_wide_sums();
    } else if (!ends.alone) {
        _tile_loadd(0, to, kStride);
        _tile_loadd(1, to + kTile, kStride);
        if constexpr (kTwo) {
            _tile_loadd(2, to + kTile * kWideRows, kStride);
            _tile_loadd(3, to + kTile * kWideRows + kTile, kStride);
        }
    }
    load_group<kTwo>(p, x, apart, 0);
    for (int i = 0; i < groups; ++i) {
        multiply_group<kTwo>(p, x, apart, i, groups);
        ahead.step();
    }
    if (ends.last || !ends.alone) {
        _tile_stored(0, to, kStride);
        _tile_stored(1, to + kTile, kStride);
        if constexpr (kTwo) {
            _tile_stored(2, to + kTile * kWideRows, kStride);
            _tile_stored(3, to + kTile * kWideRows + kTile, kStride);
        }
    }
    memory_barrier();
}

// What a block of tokens meets all rows with.
template <class W>
struct WideWork {
    WidePanel panels[2];
    WideSums later;
    W format;
    alignas(64) float whole[kWideRows];
};

inline int wide_tokens(int tokens) {
    return std::min(kWideTiles, (tokens + kTile - 1) / kTile) * kTile;
}

inline std::byte* at_page(std::byte* p) {
    return p + (kPageNbytes - reinterpret_cast<std::uintptr_t>(p) % kPageNbytes) % kPageNbytes;
}

template <class W>
inline std::size_t wide_scratch_nbytes(int columns, int tokens) {
    const auto block = static_cast<std::size_t>(wide_tokens(tokens));
    return sizeof(WideWork<W>) + 2 * kPageNbytes +
           block / kTile * static_cast<std::size_t>(columns) / 32 * sizeof(WideGroup) +
           block * kWideRows * sizeof(float);
}

// One panel with up to 32 tokens.
template <class W>
inline void multiply_panel(const Tiles& tiles, const WidePanel& p, const WideGroup* x, int groups,
                           int tokens, WideEnds ends, WideSums& later, WideAhead<W>& ahead,
                           float* to) {
    const bool scaled = W::scaled(tiles);
    const int apart = tiles.columns / 32;
    if (scaled && tokens > kTile)
        multiply_scaled<true>(p, x, apart, groups, tokens, later, ahead, to);
    else if (scaled)
        multiply_scaled<false>(p, x, apart, groups, tokens, later, ahead, to);
    else if (tokens > kTile)
        multiply_plain<true>(p, x, apart, groups, ends, ahead, to);
    else
        multiply_plain<false>(p, x, apart, groups, ends, ahead, to);
}

// All rows with `tokens` of a block, from `first` on.
template <class W>
inline void wide_block(const Dot& d, const Tiles& tiles, const WideGroup* x, int first, int tokens,
                       WideWork<W>& work, float* sums) {
    const int groups = d.columns / 32;
    const bool scaled = W::scaled(tiles);
    const auto nbytes = static_cast<std::size_t>(wide_tokens(tokens) * kWideRows) * sizeof(float);
    WidePlace at{0, 0, std::min(kWideGroups, groups)};
    int panel = 0;
    for (int i = 0; i < W::steps(at.groups); ++i) work.format.step(work.panels[0], d, tiles, at, i);
    for (int row = 0; row < d.rows; row += kWideRows) {
        if (scaled) std::memset(sums, 0, nbytes);
        for (; at.row == row; at = at.next(d), panel ^= 1) {
            const WidePlace next = at.next(d);
            const WideEnds ends{at.from == 0, next.row != row, tokens <= kWideTokens};
            const int blocks = (tokens + kWideTokens - 1) / kWideTokens;
            WideAhead<W> ahead{
                work.format,       d, tiles, next, next.next(d), work.panels[panel ^ 1],
                at.groups * blocks};
            for (int t = 0; t < tokens; t += kWideTokens)
                multiply_panel<W>(tiles, work.panels[panel], x + t / kTile * groups + at.from,
                                  at.groups, std::min(kWideTokens, tokens - t), ends, work.later,
                                  ahead, sums + t * kWideRows);
            ahead.rest();
            memory_barrier();
        }
        work.later.add(kWideTokens);
        W::put_whole(work.whole, d, tiles, row);
        for (int t = 0; t < tokens; ++t) {
            float* from = sums + t * kWideRows;
            for (int r = 0; r < kWideRows; r += kTile)
                (F32::load(from + r) * F32::load(work.whole + r)).store(from + r);
            put_out<kWideRows>(d, first + t, row, from);
        }
    }
}

template <class W>
inline void wide_run(const Dot& d) {
    const Tiles tiles{d.w, d.w_stride, d.columns, d.format};
    const int block = wide_tokens(d.tokens), groups = d.columns / 32;
    auto& work = *new (at_page(d.scratch)) WideWork<W>;
    auto* packed = reinterpret_cast<WideGroup*>(at_page(reinterpret_cast<std::byte*>(&work + 1)));
    auto* sums = reinterpret_cast<float*>(packed + block / kTile * groups);
    const auto* given = reinterpret_cast<const WideGroup*>(d.packed);
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) config.set(tile, kTile, 64);
    load_config(config);
    for (int first = 0; first < d.tokens; first += block) {
        const int tokens = std::min(block, d.tokens - first);
        if (given == nullptr) put_wide_some<typename W::Row>(d, first, tokens, packed);
        const auto* x = given == nullptr ? packed : given + first / kTile * groups;
        wide_block<W>(d, tiles, x, first, tokens, work, sums);
    }
    _tile_release();
}

// W for many tokens where it can, else what the kernel was.
template <class W, void (*kElse)(const Dot&)>
void wide_or_else(const Dot& d) {
    if (takes_wide<W>(d)) return wide_run<W>(d);
    kElse(d);
}

template <class W, std::size_t (*kElse)(int, int, int)>
std::size_t wide_or_else_nbytes(int rows, int columns, int tokens) {
    return std::max(wide_scratch_nbytes<W>(columns, tokens), kElse(rows, columns, tokens));
}

// E4M3, whose few tokens are another set's.
template <bool kRowScales>
inline const DotKernel& few_fp8() {
    return avx512bf16::table().fast[kRowScales ? kFP8Row : kFP8Block];
}
template <bool kRowScales>
void wide_fp8(const Dot& d) {
    using W = WideFP8<kRowScales>;
    if (takes_wide<W>(d)) return wide_run<W>(d);
    few_fp8<kRowScales>().run(d);
}
template <bool kRowScales>
std::size_t wide_fp8_nbytes(int rows, int columns, int tokens) {
    return std::max(wide_scratch_nbytes<WideFP8<kRowScales>>(columns, tokens),
                    few_fp8<kRowScales>().scratch_nbytes(rows, columns, tokens));
}

inline void put_wide_kernels(KernelTable& t) {
    const auto lanes = [&]<class W, class F>(int kind, W, F) {
        t.fast[kind] = {F::kInput,
                        kTileTokens,
                        wide_or_else<W, lanes_run<F>>,
                        wide_or_else_nbytes<W, lanes_scratch_nbytes>,
                        strips_tile_rows,
                        F::kStreams * kLaneRows,
                        &kWidePacking<W>};
    };
    lanes(kNVFP4, WideNVFP4{}, LanesNVFP4{});
    lanes(kGgmlMXFP4, WideMXFP4{}, LanesMXFP4{});
    const KernelTable& few = avx512bf16::table();
    t.put[kUnpackedInput] = few.put[kUnpackedInput];
    const auto fp8 = [&](int kind, auto* run, auto* nbytes, const Packing* packing) {
        t.fast[kind] = few.fast[kind];
        t.fast[kind].run = run;
        t.fast[kind].scratch_nbytes = nbytes;
        t.fast[kind].tile_rows = strips_tile_rows;
        t.fast[kind].packing = packing;
    };
    fp8(kFP8Block, wide_fp8<false>, wide_fp8_nbytes<false>, &kWidePacking<WideFP8<false>>);
    fp8(kFP8Row, wide_fp8<true>, wide_fp8_nbytes<true>, &kWidePacking<WideFP8<true>>);
}

}  // namespace headrace::HEADRACE_ISA
