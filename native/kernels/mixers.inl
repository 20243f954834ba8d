// The mixer kernels of one instruction set: norm, state, router and attention, as one table.
#include <cstring>
#include <limits>

#include "norm.inl"

#include "delta.inl"
#include "kv_tile.inl"
#include "panel.inl"
#include "route.inl"

#include "across.inl"
#include "attention.inl"
#include "ssm.inl"

namespace headrace::HEADRACE_ISA {

inline const MixerTable* mixer_table() {
    static const MixerTable table{
        .rms_norm = rms_norm_rows,
        .rope = rope_tokens,
        .store_kv = store_kv_tokens,
        .attention_scratch_nbytes = attention_scratch_nbytes,
        .attention_entry = attention_entry,
        .attention = attention_piece,
        .attention_merge = attention_merge,
        .conv_scratch_nbytes = conv_scratch_nbytes,
        .conv = conv_piece,
        .delta_scratch_nbytes = delta_scratch_nbytes,
        .delta = delta_piece,
        .ssm_scratch_nbytes = ssm_scratch_nbytes,
        .ssm = ssm_piece,
        .route = route_tokens,
        .across_scratch_nbytes = across_scratch_nbytes,
        .across = across,
    };
    return &table;
}

}  // namespace headrace::HEADRACE_ISA
