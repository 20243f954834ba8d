#include "expert.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "activations.hpp"
#include "expert_groups.hpp"

namespace headrace {
namespace {

constexpr std::size_t kPieceNbytes = 256 << 10;
constexpr int kLeastStreamRows = 32;
constexpr std::size_t kHiddenNbytes = std::size_t{256} << 20;  // h of one chunk of tokens

// Rows of a piece: a bounded read where weights stream (but streams long enough for a processor's
// prefetching), a cached tile where they meet many tokens, and always enough pieces.
int piece_rows(const DotKernel& kernel, int rows, int columns, int tokens, std::size_t row_nbytes,
               int wanted_pieces, int unit) {
    int n = kernel.tile_rows(columns);
    if (tokens <= kernel.stream_tokens)
        n = std::max(static_cast<int>(kPieceNbytes / row_nbytes), kLeastStreamRows);
    n = std::min(n, (rows + wanted_pieces - 1) / wanted_pieces);
    return std::max(unit, n / unit * unit);
}

std::size_t floats_nbytes(std::size_t n) { return (n * sizeof(float) + 63) / 64 * 64; }

// One of gate, up and down, for all experts of a layer.
struct Kind {
    const DotKernel* kernel;
    std::size_t stride;
    int format;

    // Bytes of a row, for counting.
    std::size_t row_nbytes() const { return stride / static_cast<std::size_t>(tile_rows(format)); }
    const std::byte* at(const std::byte* w, int row) const {
        return w + static_cast<std::size_t>(row / tile_rows(format)) * stride;
    }
};

struct Shape {
    int hidden, width, activation;
    float alpha, limit;
    Kind gate, up, down;
};

// What both phases of one call (or of one chunk of its tokens) share.
struct Call {
    const KernelTable& kernels;
    Shape layer;
    Groups plan;
    const std::byte** gate_x;  // per choice
    const std::byte** up_x;
    const std::byte** h_choice;
    std::byte* h;  // [choice, width] as the kernel of down takes it
    float* y;      // [token, hidden], or [entry, hidden] where parts are wanted
    int tokens;

    std::size_t h_nbytes() const { return input_nbytes(layer.down.kernel->input, layer.width); }
};

// Pieces that are some rows of one expert each.
struct PerExpert {
    struct Place {
        const Group& group;
        int row, rows;
    };

    const Groups& plan;
    int all_rows, rows;

    std::size_t per() const { return static_cast<std::size_t>((all_rows + rows - 1) / rows); }
    std::size_t pieces() const { return plan.count * per(); }
    Place place(std::size_t piece) const {
        const int row = static_cast<int>(piece % per()) * rows;
        return {plan.groups[piece / per()], row, std::min(rows, all_rows - row)};
    }
    // Of what such a piece computes for each of its tokens.
    std::size_t out_nbytes() const {
        return floats_nbytes(static_cast<std::size_t>(rows) * static_cast<std::size_t>(plan.most));
    }
};

// Phase 1. A piece: some rows of one expert's gate and up, for every token that chose it.
class GateUp final : public Work {
  public:
    GateUp(const Call& call, int rows) : call_(call), split_{call.plan, call.layer.width, rows} {}
    std::size_t pieces() const { return split_.pieces(); }
    std::size_t scratch_nbytes() const {
        const auto of = [&](const Kind& kind) {
            return kind.kernel->scratch_nbytes(split_.rows, call_.layer.hidden, call_.plan.most);
        };
        return 2 * split_.out_nbytes() + std::max(of(call_.layer.gate), of(call_.layer.up));
    }

    void compute(std::size_t piece, std::byte* scratch) const override {
        const PerExpert::Place at = split_.place(piece);
        const Shape& l = call_.layer;
        auto* gate = reinterpret_cast<float*>(scratch);
        auto* up = reinterpret_cast<float*>(scratch + split_.out_nbytes());
        project(at, l.gate, at.group.gate, call_.gate_x, at.group.gate_bias, gate, scratch);
        project(at, l.up, at.group.up, call_.up_x, at.group.up_bias, up, scratch);
        call_.kernels.activate(
            l.activation, l.alpha, l.limit, gate, up,
            static_cast<std::size_t>(at.group.count) * static_cast<std::size_t>(at.rows));
    }

    void commit(std::size_t piece, const std::byte* scratch) const override {
        const PerExpert::Place at = split_.place(piece);
        const auto* from = reinterpret_cast<const float*>(scratch);
        const auto rows = static_cast<std::size_t>(at.rows);
        for (int c = 0; c < at.group.count; ++c, from += rows) {
            const auto choice = static_cast<std::size_t>(at.group.first + c);
            call_.kernels.put[call_.layer.down.kernel->input](
                call_.h + choice * call_.h_nbytes(), call_.layer.width, at.row, from, at.rows);
        }
    }

  private:
    void project(const PerExpert::Place& at, const Kind& kind, const std::byte* w,
                 const std::byte** x, const float* bias, float* out, std::byte* scratch) const {
        const auto rows = static_cast<std::size_t>(at.rows);
        kind.kernel->run({kind.at(w, at.row), kind.stride, at.rows, call_.layer.hidden,
                          x + at.group.first, at.group.count, out, rows,
                          scratch + 2 * split_.out_nbytes(), kind.format});
        if (bias == nullptr) return;
        for (int c = 0; c < at.group.count; ++c)
            call_.kernels.add(out + static_cast<std::size_t>(c) * rows, bias + at.row, rows);
    }

    const Call& call_;
    PerExpert split_;
};

// out[c * rows + r] = row + r of an expert's output for its c-th token.
void project_down(const Call& call, const Group& group, int row, int rows, float* out,
                  std::byte* scratch) {
    const Shape& l = call.layer;
    const auto n = static_cast<std::size_t>(rows);
    l.down.kernel->run({l.down.at(group.down, row), l.down.stride, rows, l.width,
                        call.h_choice + group.first, group.count, out, n, scratch, l.down.format});
    if (group.down_bias == nullptr) return;
    for (int c = 0; c < group.count; ++c)
        call.kernels.add(out + static_cast<std::size_t>(c) * n, group.down_bias + row, n);
}

// Phase 2 of sums. A piece: some output rows of every active expert, for every token, so that each
// sum has one owner and one order.
class Down final : public Work {
  public:
    Down(const Call& call, int rows) : call_(call), rows_(rows) {}
    std::size_t pieces() const {
        return static_cast<std::size_t>((call_.layer.hidden + rows_ - 1) / rows_);
    }
    std::size_t scratch_nbytes() const {
        return sums_nbytes() + out_nbytes() +
               call_.layer.down.kernel->scratch_nbytes(rows_, call_.layer.width, call_.plan.most);
    }

    void compute(std::size_t piece, std::byte* scratch) const override {
        const Shape& l = call_.layer;
        const int row = static_cast<int>(piece) * rows_;
        const int rows = std::min(rows_, l.hidden - row);
        const auto n = static_cast<std::size_t>(rows);
        auto* sums = reinterpret_cast<float*>(scratch);
        auto* out = reinterpret_cast<float*>(scratch + sums_nbytes());
        std::fill_n(sums, n * static_cast<std::size_t>(call_.tokens), 0.0f);
        for (std::size_t g = 0; g < call_.plan.count; ++g) {
            const Group& group = call_.plan.groups[g];
            project_down(call_, group, row, rows, out, scratch + sums_nbytes() + out_nbytes());
            for (int c = 0; c < group.count; ++c) {
                const Choice& choice = call_.plan.choices[group.first + c];
                call_.kernels.add_scaled(sums + static_cast<std::size_t>(choice.token) * n,
                                         out + static_cast<std::size_t>(c) * n, choice.weight, n);
            }
        }
    }

    void commit(std::size_t piece, const std::byte* scratch) const override {
        const auto hidden = static_cast<std::size_t>(call_.layer.hidden);
        const auto row = piece * static_cast<std::size_t>(rows_);
        const auto n = std::min(static_cast<std::size_t>(rows_), hidden - row);
        const auto* sums = reinterpret_cast<const float*>(scratch);
        for (int t = 0; t < call_.tokens; ++t)
            std::memcpy(call_.y + static_cast<std::size_t>(t) * hidden + row,
                        sums + static_cast<std::size_t>(t) * n, n * sizeof(float));
    }

  private:
    std::size_t sums_nbytes() const {
        return floats_nbytes(static_cast<std::size_t>(rows_) *
                             static_cast<std::size_t>(call_.tokens));
    }
    std::size_t out_nbytes() const {
        return floats_nbytes(static_cast<std::size_t>(rows_) *
                             static_cast<std::size_t>(call_.plan.most));
    }

    const Call& call_;
    int rows_;
};

// Phase 2 of parts. A piece: some output rows of one expert, for every token that chose it.
class DownParts final : public Work {
  public:
    DownParts(const Call& call, int rows)
        : call_(call), split_{call.plan, call.layer.hidden, rows} {}
    std::size_t pieces() const { return split_.pieces(); }
    std::size_t scratch_nbytes() const {
        return split_.out_nbytes() + call_.layer.down.kernel->scratch_nbytes(
                                         split_.rows, call_.layer.width, call_.plan.most);
    }

    void compute(std::size_t piece, std::byte* scratch) const override {
        const PerExpert::Place at = split_.place(piece);
        project_down(call_, at.group, at.row, at.rows, reinterpret_cast<float*>(scratch),
                     scratch + split_.out_nbytes());
    }

    void commit(std::size_t piece, const std::byte* scratch) const override {
        const PerExpert::Place at = split_.place(piece);
        const auto n = static_cast<std::size_t>(at.rows);
        const auto* from = reinterpret_cast<const float*>(scratch);
        for (int c = 0; c < at.group.count; ++c, from += n) {
            const std::size_t entry = call_.plan.choices[at.group.first + c].entry;
            std::memcpy(call_.y + entry * static_cast<std::size_t>(call_.layer.hidden) +
                            static_cast<std::size_t>(at.row),
                        from, n * sizeof(float));
        }
    }

  private:
    const Call& call_;
    PerExpert split_;
};

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
    const auto kind = [&](int format, std::size_t stride) {
        return Kind{&(exact ? kernels.exact : kernels.fast)[kind_of(format)], stride, format};
    };
    auto& call = *new (arena.take<Call>(1)) Call{
        kernels,
        Shape{layer.hidden, layer.width, layer.activation, layer.alpha, layer.limit,
              kind(layer.gate_format, layer.gate_stride), kind(layer.up_format, layer.up_stride),
              kind(layer.down_format, layer.down_stride)},
        group_choices(arena, in.ids, in.weights, in.count, in.top_k, layer),
        nullptr,
        nullptr,
        nullptr,
        nullptr,
        in.y,
        in.count};
    const std::size_t choices = call.plan.choice_count, h_row = call.h_nbytes();
    Activations inputs(pool, arena, in.x, in.count, layer.hidden);
    const std::byte* const* gate_x = inputs.rows(call.layer.gate.kernel->input);
    const std::byte* const* up_x = inputs.rows(call.layer.up.kernel->input);
    call.h = arena.take<std::byte>(choices * h_row);
    call.gate_x = arena.take<const std::byte*>(choices);
    call.up_x = gate_x == up_x ? call.gate_x : arena.take<const std::byte*>(choices);
    call.h_choice = arena.take<const std::byte*>(choices);
    for (std::size_t c = 0; c < choices; ++c) {
        call.gate_x[c] = gate_x[call.plan.choices[c].token];
        call.up_x[c] = up_x[call.plan.choices[c].token];
        call.h_choice[c] = call.h + c * h_row;
    }
    return call;
}

template <class Phase>
void perform(Pool& pool, Arena& arena, const Call& call, int rows) {
    auto* phase = new (arena.take<Phase>(1)) Phase(call, rows);
    pool.perform(arena, *phase, phase->pieces(), phase->scratch_nbytes(),
                 pool.rescues(call.tokens));
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
    const Shape& l = call.layer;
    const auto rows_of = [&](const Kind& kind, int rows, int columns, std::size_t row_nbytes,
                             int pieces, int unit) {
        return piece_rows(*kind.kernel, rows, columns, plan.most, row_nbytes, pieces, unit);
    };
    const std::size_t down_nbytes = l.down.row_nbytes();
    const int down_unit = std::max(8, tile_rows(l.down.format));
    perform<GateUp>(
        pool, arena, call,
        rows_of(l.gate, l.width, l.hidden, l.gate.row_nbytes() + l.up.row_nbytes(), wanted_each,
                std::max({input_unit(l.down.kernel->input), tile_rows(l.gate.format),
                          tile_rows(l.up.format)})));
    if (in.parts()) {
        perform<DownParts>(pool, arena, call,
                           rows_of(l.down, l.hidden, l.width, down_nbytes, wanted_each, down_unit));
    } else {
        perform<Down>(pool, arena, call,
                      rows_of(l.down, l.hidden, l.width,
                              down_nbytes * static_cast<std::size_t>(active), wanted, down_unit));
    }
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
