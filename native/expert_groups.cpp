#include "expert_groups.hpp"

#include <algorithm>

namespace headrace {
namespace {

Group group_of(const ExpertLayer& layer, int expert, int first) {
    const auto e = static_cast<std::size_t>(expert);
    const auto bias = [&](const std::vector<const float*>& list) {
        return list.empty() ? nullptr : list[e];
    };
    return {expert,
            first,
            0,
            layer.form_of.empty() ? 0 : layer.form_of[e],
            layer.gate[e],
            layer.has_up() ? layer.up[e] : nullptr,
            layer.down[e],
            bias(layer.gate_bias),
            bias(layer.up_bias),
            bias(layer.down_bias)};
}

struct Order {
    std::uint32_t* entries;
    std::size_t count = 0;
};

// A few choices of many experts (or of thousands of slots) are sorted in place.
Order sort_choices(Arena& arena, const std::int32_t* ids, std::size_t n) {
    auto* keys = arena.take<std::uint64_t>(n);
    Order order{arena.take<std::uint32_t>(n)};
    for (std::size_t i = 0; i < n; ++i)
        if (ids[i] >= 0) keys[order.count++] = std::uint64_t(ids[i]) << 32 | i;
    std::sort(keys, keys + order.count);
    for (std::size_t i = 0; i < order.count; ++i)
        order.entries[i] = static_cast<std::uint32_t>(keys[i]);
    return order;
}

// Many choices are counted.
Order count_choices(Arena& arena, const std::int32_t* ids, std::size_t n, std::size_t experts) {
    Order order{arena.take<std::uint32_t>(n)};
    auto* next = arena.take<std::size_t>(experts);
    std::fill_n(next, experts, 0);
    for (std::size_t i = 0; i < n; ++i)
        if (ids[i] >= 0) ++next[ids[i]];
    for (std::size_t e = 0; e < experts; ++e) {
        const std::size_t here = next[e];
        next[e] = order.count;
        order.count += here;
    }
    for (std::size_t i = 0; i < n; ++i)
        if (ids[i] >= 0) order.entries[next[ids[i]]++] = static_cast<std::uint32_t>(i);
    return order;
}

}  // namespace

Groups group_choices(Arena& arena, const std::int32_t* ids, const float* weights, int tokens,
                     int top_k, const ExpertLayer& layer) {
    const auto experts = static_cast<std::size_t>(layer.experts());
    const auto n = static_cast<std::size_t>(tokens) * static_cast<std::size_t>(top_k);
    const Order order =
        n < experts ? sort_choices(arena, ids, n) : count_choices(arena, ids, n, experts);
    Groups out;
    out.groups = arena.take<Group>(std::min(order.count, experts));
    out.choices = arena.take<Choice>(order.count);
    out.choice_count = order.count;
    for (std::size_t i = 0; i < order.count; ++i) {
        const std::uint32_t entry = order.entries[i];
        if (out.count == 0 || out.groups[out.count - 1].expert != ids[entry])
            out.groups[out.count++] = group_of(layer, ids[entry], static_cast<int>(i));
        Group& group = out.groups[out.count - 1];
        out.most = std::max(out.most, ++group.count);
        out.choices[i] = {static_cast<std::int32_t>(entry / static_cast<std::uint32_t>(top_k)),
                          entry, weights == nullptr ? 0.0f : weights[entry]};
    }
    return out;
}

}  // namespace headrace
