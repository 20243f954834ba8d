// The choices of one call, sorted by expert: what is read once is used for every token that chose
// it.
//
// Invariant: groups are in ascending expert id, the choices of a group in the order of the tokens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "arena.hpp"
#include "expert.hpp"

namespace headrace {

// One (token, expert) pair.
struct Choice {
    std::int32_t token;
    std::uint32_t entry;  // token * top_k + rank
    float weight;         // 0 where no weights were given
};

// The tokens of one expert, and where that expert lies. Copied from the layer: a worker that was
// descheduled may look here after the caller has dropped the layer.
struct Group {
    int expert;
    int first;  // choice
    int count;
    int form;
    const std::byte *gate, *up, *down;  // up may be nullptr
    const float *gate_bias, *up_bias, *down_bias;
    const std::byte* packed = nullptr;  // its tokens' h, as the packing of down's kernel made it
};

struct Groups {
    Group* groups = nullptr;
    std::size_t count = 0;
    Choice* choices = nullptr;
    std::size_t choice_count = 0;
    int most = 0;  // tokens of the busiest expert
};

// ids: [tokens, top_k], below layer.experts(), negative ones are skipped. `weights` may be null.
Groups group_choices(Arena& arena, const std::int32_t* ids, const float* weights, int tokens,
                     int top_k, const ExpertLayer& layer);

}  // namespace headrace
