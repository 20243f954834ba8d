// The routed experts of one layer: y = sum over chosen experts of weight * down(act(gate x, up x)).
//
// Invariants: each expert's rows are read once per call; a token's sum runs over its experts in
// ascending id; two barriers per call.
#pragma once

#include <cstdint>
#include <vector>

#include "pool.hpp"

namespace headrace {

inline constexpr int kReluSquared = 3;  // the activation of experts that have no up

// How the matrices of an expert are stored.
struct ExpertForm {
    int gate_format = kF32, up_format = kF32, down_format = kF32;
    std::size_t gate_stride = 0, up_stride = 0, down_stride = 0;  // bytes from tile to tile
};

struct ExpertLayer {
    int gate_format = kF32, up_format = kF32, down_format = kF32;
    int hidden = 0;
    int width = 0;
    int activation = 0;
    float alpha = 1.702f;
    float limit = 0.0f;
    std::vector<const std::byte*> gate, up,
        down;  // up: empty where the activation has no use for it
    std::size_t gate_stride = 0, up_stride = 0, down_stride = 0;  // bytes from tile to tile
    std::vector<const float*> gate_bias, up_bias, down_bias;      // empty = none
    // Where experts differ: forms beside the one above, and which each has; 0 is the one above.
    std::vector<ExpertForm> others;
    std::vector<std::uint8_t> form_of;  // empty = all have the one above

    int experts() const { return static_cast<int>(gate.size()); }
    std::size_t forms() const { return 1 + others.size(); }
    ExpertForm form(std::size_t i) const;
    bool has_up() const { return activation != kReluSquared; }
    // Bytes of an expert; where they differ, what they have on average.
    std::size_t row_nbytes() const;
    // Throws std::invalid_argument for sizes that cannot be.
    void check() const;
};

// ids: [tokens, top_k], negative ones are skipped; others must be below layer.experts(), else
// std::invalid_argument. y is overwritten.
void experts(Pool& pool, const float* x, int tokens, const std::int32_t* ids, const float* weights,
             int top_k, const ExpertLayer& layer, float* y, bool exact);

// parts[t, k] = expert ids[t, k] of x[t], unweighted, [tokens, top_k, hidden]; those of negative
// ids are left alone. A part has the same bits whatever is computed with it.
void experts_parts(Pool& pool, const float* x, int tokens, const std::int32_t* ids, int top_k,
                   const ExpertLayer& layer, float* parts, bool exact);

// y[t] = sum over k of weights[t, k] * parts[t, k] in ascending id, negative ones skipped: with the
// parts of `experts_parts`, the bits of `experts`.
void combine(Pool& pool, const float* parts, int tokens, int top_k, int hidden,
             const std::int32_t* ids, const float* weights, float* y);

}  // namespace headrace
