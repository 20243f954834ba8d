#include "expert.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>

#include "activations.hpp"
#include "expert_phases.hpp"

namespace headrace {
namespace {

constexpr std::size_t kPieceNbytes = 256 << 10;
constexpr int kLeastStreamRows = 32;
constexpr std::size_t kHiddenNbytes = std::size_t{128} << 20;  // h of one chunk of tokens

// Rows of a piece: a bounded read where weights stream (but streams long enough for a processor's
// prefetching), a cached tile where they meet many tokens, and always enough pieces.
int piece_rows(const DotKernel& kernel, int rows, int columns, int tokens, std::size_t row_nbytes,
               int wanted_pieces, int unit) {
    const int share = (rows + wanted_pieces - 1) / wanted_pieces;
    if (tokens > kernel.stream_tokens)
        return std::max(unit, std::min(kernel.tile_rows(columns), share) / unit * unit);
    const int n = std::max(static_cast<int>(kPieceNbytes / row_nbytes), kLeastStreamRows);
    return std::max(unit, kernel.piece_rows(n, share, unit));
}

struct Tokens {
    const float* x;
    int count;
    const std::int32_t* ids;
    const float* weights;  // null: parts are wanted
    int top_k;
    float* y;

    bool parts() const { return weights == nullptr; }
    // `n` of these from `first` on.
    Tokens slice(int first, int n, int hidden) const {
        const auto token = static_cast<std::size_t>(first);
        const std::size_t entry = token * static_cast<std::size_t>(top_k);
        const auto d = static_cast<std::size_t>(hidden);
        return {x + token * d, n,
                ids + entry,   parts() ? nullptr : weights + entry,
                top_k,         y + (parts() ? entry : token) * d};
    }
};

Call& make_call(Pool& pool, Arena& arena, const Tokens& in, const ExpertLayer& layer, bool exact) {
    const KernelTable& kernels = pool.kernels();
    auto& call = *new (arena.take<Call>(1))
                     Call{kernels,
                          shape_of(arena, layer, exact ? kernels.exact : kernels.fast),
                          group_choices(arena, in.ids, in.weights, in.count, in.top_k, layer),
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr,
                          0,
                          in.y,
                          in.count};
    const std::size_t choices = call.plan.choice_count;
    call.h_nbytes = call.layer.most(
        [&](const Form& f) { return input_nbytes(f.down.kernel->input, layer.width); });
    call.h = arena.take<std::byte>(choices * call.h_nbytes);
    call.gate_x = arena.take<const std::byte*>(choices);
    call.up_x = arena.take<const std::byte*>(choices);
    call.h_choice = arena.take<const std::byte*>(choices);
    Activations inputs(pool, arena, {in.x, in.count, layer.hidden}, layer.hidden);
    for (std::size_t g = 0; g < call.plan.count; ++g) {
        const Group& group = call.plan.groups[g];
        const std::byte* const* gate_x = inputs.rows(call.form(group).gate.kernel->input);
        const std::byte* const* up_x = inputs.rows(call.form(group).up.kernel->input);
        for (int i = 0; i < group.count; ++i) {
            const auto c = static_cast<std::size_t>(group.first + i);
            call.gate_x[c] = gate_x[call.plan.choices[c].token];
            call.up_x[c] = up_x[call.plan.choices[c].token];
            call.h_choice[c] = call.h + c * call.h_nbytes;
        }
    }
    return call;
}

template <class Phase>
void perform(Pool& pool, Arena& arena, const Call& call, int rows) {
    auto* phase = new (arena.take<Phase>(1)) Phase(call, rows);
    pool.perform(arena, *phase, phase->pieces(), phase->scratch_nbytes(),
                 pool.rescues(call.tokens));
}

// Rows of a piece that suit the kernels of every form.
template <class Of>
int common_rows(const Shape& layer, int (Form::*unit_of)() const, const Of& of) {
    int unit = 1;
    for (const Form& form : layer) unit = std::lcm(unit, (form.*unit_of)());
    int rows = of(layer.forms[0], unit);
    for (const Form& form : layer) rows = std::min(rows, of(form, unit));
    return std::max(unit, rows / unit * unit);
}

int up_rows(const Call& call, int pieces) {
    const Shape& l = call.layer;
    return common_rows(l, &Form::up_unit, [&](const Form& f, int unit) {
        return piece_rows(*f.gate.kernel, l.width, l.hidden, call.plan.most,
                          f.gate.row_nbytes() + f.up.row_nbytes(), pieces, unit);
    });
}

// `together`: experts of which a piece has the same rows.
int down_rows(const Call& call, int together, int pieces) {
    const Shape& l = call.layer;
    return common_rows(l, &Form::down_unit, [&](const Form& f, int unit) {
        return piece_rows(*f.down.kernel, l.hidden, l.width, call.plan.most,
                          f.down.row_nbytes() * static_cast<std::size_t>(together), pieces, unit);
    });
}

void run_chunk(Pool& pool, const Tokens& in, const ExpertLayer& layer, bool exact) {
    Arena& arena = pool.begin_call();
    const Call& call = make_call(pool, arena, in, layer, exact);
    const Groups& plan = call.plan;
    if (plan.count == 0) {
        if (!in.parts())
            std::fill_n(in.y,
                        static_cast<std::size_t>(in.count) * static_cast<std::size_t>(layer.hidden),
                        0.0f);
        return;
    }
    const auto active = static_cast<int>(plan.count);
    const int wanted = 4 * pool.threads();
    const int wanted_each = (wanted + active - 1) / active;
    perform<GateUp>(pool, arena, call, up_rows(call, wanted_each));
    if (!pool.rescues(call.tokens) && plan.most > 1) {
        auto* pack = new (arena.take<PackHidden>(1)) PackHidden(call, arena);
        if (pack->needed()) pool.perform(arena, *pack, plan.count, 0, false);
    }
    if (in.parts())
        perform<DownParts>(pool, arena, call, down_rows(call, 1, wanted_each));
    else
        perform<Down>(pool, arena, call, down_rows(call, active, wanted));
}

void run(Pool& pool, const Tokens& in, const ExpertLayer& layer, bool exact) {
    if (in.count <= 0) return;
    const auto n = static_cast<std::size_t>(in.count) * static_cast<std::size_t>(in.top_k);
    for (std::size_t i = 0; i < n; ++i)
        if (in.ids[i] >= layer.experts())
            throw std::invalid_argument("experts: id " + std::to_string(in.ids[i]) +
                                        " in a layer of " + std::to_string(layer.experts()));
    const std::size_t token_nbytes = static_cast<std::size_t>(std::max(in.top_k, 1)) *
                                     static_cast<std::size_t>(layer.width) * sizeof(float);
    const auto chunk =
        static_cast<int>(std::clamp<std::size_t>(kHiddenNbytes / token_nbytes, 1, 1 << 20));
    for (int t = 0; t < in.count; t += chunk)
        run_chunk(pool, in.slice(t, std::min(chunk, in.count - t), layer.hidden), layer, exact);
}

// The rank after `last` in ascending (id, rank), or -1; `last` -1 = the first. Negative ids have no
// place in that order.
int next_rank(const std::int32_t* ids, int top_k, int last) {
    int best = -1;
    for (int k = 0; k < top_k; ++k) {
        const bool later = last < 0 || ids[k] > ids[last] || (ids[k] == ids[last] && k > last);
        if (ids[k] >= 0 && later && (best < 0 || ids[k] < ids[best])) best = k;
    }
    return best;
}

}  // namespace

void experts(Pool& pool, const float* x, int tokens, const std::int32_t* ids, const float* weights,
             int top_k, const ExpertLayer& layer, float* y, bool exact) {
    if (top_k > 0) return run(pool, {x, tokens, ids, weights, top_k, y}, layer, exact);
    std::fill_n(y, static_cast<std::size_t>(std::max(tokens, 0)) * layer.hidden, 0.0f);
}

void experts_parts(Pool& pool, const float* x, int tokens, const std::int32_t* ids, int top_k,
                   const ExpertLayer& layer, float* parts, bool exact) {
    run(pool, {x, tokens, ids, nullptr, top_k, parts}, layer, exact);
}

void combine(Pool& pool, const float* parts, int tokens, int top_k, int hidden,
             const std::int32_t* ids, const float* weights, float* y) {
    if (tokens <= 0) return;
    const KernelTable& kernels = pool.kernels();
    const auto d = static_cast<std::size_t>(hidden);
    pool.parallel(static_cast<std::size_t>(tokens), [&](std::size_t token, int) {
        const std::size_t first = token * static_cast<std::size_t>(top_k);
        float* sum = y + token * d;
        std::fill_n(sum, d, 0.0f);
        for (int k = -1; (k = next_rank(ids + first, top_k, k)) >= 0;) {
            const std::size_t entry = first + static_cast<std::size_t>(k);
            kernels.add_scaled(sum, parts + entry * d, weights[entry], d);
        }
    });
}

}  // namespace headrace
