// The kernels of formats whose many tokens meet panels.

namespace headrace::HEADRACE_ISA {

// F for as few tokens as it takes, C for more.
template <class F, class C, void (*kUnpack)(const Tiles&, int, float*)>
void many_run(const Dot& d) {
    if (takes_strips<C>(d)) return strips_run<C, F::kInput>(d);
    fixed_run<F, kUnpack>(d);
}

inline std::size_t many_scratch_nbytes(int rows, int columns, int tokens) {
    return std::max(strips_scratch_nbytes(columns, tokens),
                    fixed_scratch_nbytes(rows, columns, tokens));
}

template <Laned F>
void lanes_run(const Dot& d) {
    if (d.tokens == 1) return lanes_run_of<F, 1>(d);
    if (d.tokens == 2) return lanes_run_of<F, 2>(d);
    if (d.tokens == 3) return lanes_run_of<F, 3>(d);
    strips_run<F, F::kInput>(d);
}

inline std::size_t lanes_scratch_nbytes(int, int columns, int tokens) {
    return strips_scratch_nbytes(columns, tokens);
}

#if defined(HEADRACE_TILES)
template <class C, Input kInput>
inline constexpr const Packing* packing_of = &kStripPacking<C, kInput>;
#else
template <class, Input>
inline constexpr const Packing* packing_of = nullptr;
#endif

template <Laned F>
inline void put_lanes(KernelTable& t, int kind) {
    t.fast[kind] = {F::kInput,
                    kTileTokens,
                    lanes_run<F>,
                    lanes_scratch_nbytes,
                    strips_tile_rows,
                    F::kStreams * kLaneRows,
                    packing_of<F, F::kInput>};
}

template <class F, class C, void (*kUnpack)(const Tiles&, int, float*)>
inline void put_many(KernelTable& t, int kind) {
    t.fast[kind] = {F::kInput,        kTileTokens, many_run<F, C, kUnpack>, many_scratch_nbytes,
                    strips_tile_rows, 8,           packing_of<C, F::kInput>};
}

inline void put_panel_kernels(KernelTable& t) {
    put_lanes<LanesNVFP4>(t, kNVFP4);
    put_many<FixedInt4<false>, CodesInt4<false>, unpack_int4<false>>(t, kInt4F16);
    put_many<FixedInt4<true>, CodesInt4<true>, unpack_int4<true>>(t, kInt4BF16);
    put_lanes<LanesQ8_0>(t, kQ8_0);
    put_lanes<LanesQ4_0>(t, kQ4_0);
    put_lanes<LanesMXFP4>(t, kGgmlMXFP4);
    put_many<FixedIQ4_NL, CodesIQ4_NL, unpack_iq4_nl>(t, kIQ4_NL);
    put_lanes<LanesQ4_K>(t, kQ4_K);
    put_many<PlanesQ5_K, CodesK<176, true>, unpack_q5_k>(t, kQ5_K);
    put_many<FixedQ6_K, CodesQ6_K, unpack_q6_k>(t, kQ6_K);
}

}  // namespace headrace::HEADRACE_ISA
