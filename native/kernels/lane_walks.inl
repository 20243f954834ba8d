// Few tokens with rows in lanes: the walk over a matrix's tiles.

namespace headrace::HEADRACE_ISA {

#if !defined(HEADRACE_SIXTEEN_ROWS)
// The sums of a tile's rows, of T tokens.
template <class F, int T>
struct TileSums {
    F8 sum[2][T];

    HEADRACE_INLINE void clear() {
#pragma GCC unroll 3
        for (int t = 0; t < T; ++t) sum[0][t] = sum[1][t] = no_floats();
    }
    HEADRACE_INLINE void add(const std::byte* block, const FixedRow (&x)[T], int b) {
        if constexpr (T == 1) {
            F::template add<2>(block, 0, x, b, sum);
        } else {
            F::template add<1>(block, 0, x, b, sum);
            F::template add<1>(block, 1, x, b, sum);
        }
    }
    void store(int t, float* to) const {
        store_floats(to, sum[0][t]);
        store_floats(to + 8, sum[1][t]);
    }
};
#endif

// S tiles, `apart` tiles from each other, with T tokens.
template <class F, int S, int T>
inline void lanes_tiles(const Dot& d, const Tiles& tiles, const FixedRow (&x)[T], int tile,
                        int apart) {
    const std::byte* from[S];
    TileSums<F, T> sums[S];
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s) {
        from[s] = first_group(tiles, (tile + s * apart) * kLaneRows);
        sums[s].clear();
    }
    constexpr int kBlockNbytes = F::kGroupNbytes * (F::kColumns / 32);
    for (int b = 0; b < groups_of(tiles.columns) / (F::kColumns / 32); ++b)
#pragma GCC unroll 4
        for (int s = 0; s < S; ++s) {
            if constexpr (F::kAsksAhead)
                ask_for(from[s] + kLanesAhead, from[s] + kLanesAhead + F::kGroupNbytes);
            sums[s].add(from[s], x, b);
            from[s] += kBlockNbytes;
        }
    for (int s = 0; s < S; ++s)
        for (int t = 0; t < T; ++t) {
            const int row = (tile + s * apart) * kLaneRows;
            float rows[kLaneRows];
            sums[s].store(t, rows);
            if constexpr (kWholeRows<F>)
                for (int r = 0; r < kLaneRows; ++r) rows[r] *= F::whole(tiles.tile(row), r);
            std::memcpy(
                d.out + static_cast<std::size_t>(t) * d.out_stride + row, rows,
                static_cast<std::size_t>(std::min(kLaneRows, d.rows - row)) * sizeof(float));
        }
}

// Tiles from `tile` on: S streams as long as there are as many, then half of them. Nobody has asked
// for where they begin.
template <class F, int S, int T>
inline void lanes_streams(const Dot& d, const Tiles& tiles, const FixedRow (&x)[T], int tile,
                          int count) {
    const int apart = count / S;
    for (int s = 0; s < S && apart > 0; ++s) {
        const std::byte* begin = tiles.tile((tile + s * apart) * kLaneRows);
        ask_for(begin, begin + kLanesAhead);
    }
    for (int i = 0; i < apart; ++i) lanes_tiles<F, S, T>(d, tiles, x, tile + i, apart);
    if constexpr (S > 1)
        lanes_streams<F, S / 2, T>(d, tiles, x, tile + apart * S, count - apart * S);
}

template <class F, int T>
inline void lanes_run_of(const Dot& d) {
    FixedRow x[T];
    for (int t = 0; t < T; ++t) x[t] = {d.x[t], d.columns};
    lanes_streams<F, T == 1 ? F::kStreams : 1, T>(d, {d.w, d.w_stride, d.columns, d.format}, x, 0,
                                                  (d.rows + kLaneRows - 1) / kLaneRows);
}

// As `unpack_codes`.
template <class F>
inline void unpack_lanes(const Tiles& t, int row, float* to) {
    const int r = row % kLaneRows;
    float whole = 1.0f;
    if constexpr (kWholeRows<F>) whole = F::whole(t.tile(row), r);
    for (int k = 0; k < t.columns; k += 32) {
        const std::byte* group = F::group(t, row, k / 32);
        const V32 codes = F::codes(group, r);
        for (int half = 0; half < 2 && k + half * 16 < t.columns; ++half) {
            float scales[8];
            store_floats(scales, F::scales(group, r / 8, half));
            const F8 s = same(scales[r % 8] * whole);
            const V16 q = half == 0 ? low_half(codes) : high_half(codes);
            store_floats(to + k + half * 16, mul(floats_of_eight(q), s));
            store_floats(to + k + half * 16 + 8, mul(floats_of_eight(zip64_high(q, q)), s));
        }
    }
}

// A block of Q4_K is put together first.
inline void unpack_lanes_of_blocks(const Tiles& t, int row, float* to) {
    std::byte block[144];
    for (int g = 0; g < t.columns / 32; g += 8, to += 256) {
        gather_codes<0, 144>(LanesQ4_K::group(t, row, g), row % kLaneRows, block);
        unpack_groups(CodesK<144, false>(block, t), 8, to);
    }
}

inline void put_codes(KernelTable& t) {
    put_unpacked<unpack_lanes<LanesNVFP4>>(t, kNVFP4);
    put_unpacked<unpack_codes<CodesInt4<false>, unpack_int4<false>>>(t, kInt4F16);
    put_unpacked<unpack_codes<CodesInt4<true>, unpack_int4<true>>>(t, kInt4BF16);
    put_unpacked<unpack_lanes<LanesQ4_0>>(t, kQ4_0);
    put_unpacked<unpack_codes<CodesQ5_0, unpack_q5_0>>(t, kQ5_0);
    put_unpacked<unpack_lanes<LanesQ8_0>>(t, kQ8_0);
    put_unpacked<unpack_codes<CodesQ2_K, unpack_q2_k>>(t, kQ2_K);
    put_unpacked<unpack_codes<CodesQ3_K, unpack_q3_k>>(t, kQ3_K);
    put_unpacked<unpack_lanes_of_blocks>(t, kQ4_K);
    put_unpacked<unpack_codes<CodesK<176, true>, unpack_q5_k>>(t, kQ5_K);
    put_unpacked<unpack_codes<CodesQ6_K, unpack_q6_k>>(t, kQ6_K);
    put_unpacked<unpack_codes<CodesIQ4_NL, unpack_iq4_nl>>(t, kIQ4_NL);
    put_unpacked<unpack_codes<CodesIQ4_XS, unpack_iq4_xs>>(t, kIQ4_XS);
    put_unpacked<unpack_lanes<LanesMXFP4>>(t, kGgmlMXFP4);
}

}  // namespace headrace::HEADRACE_ISA
