#include "expert.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "activations.hpp"

namespace headrace {
namespace {

constexpr std::size_t kPieceNbytes = 256 << 10;
constexpr int kLeastStreamRows = 32;
constexpr std::size_t kHiddenNbytes = std::size_t{256} << 20;  // h of one chunk of tokens

// One (token, expert) pair, in the order of the work: by expert, then by token.
struct Choice {
    std::int32_t token;
    float weight;
};

// The tokens of one expert, and where that expert lies. Copied from the layer: a worker that was
// descheduled may look here after the caller has dropped the layer.
struct Group {
    int expert;
    int first;  // choice
    int count;
    const std::byte *gate, *up, *down;
    const float *gate_bias, *up_bias, *down_bias;
};

struct Plan {
    Group* groups;  // ascending expert
    std::size_t group_count = 0;
    Choice* choices;
    int most = 0;  // tokens of the busiest expert
};

Group group_of(const ExpertLayer& layer, int expert, int first, int count) {
    const auto e = static_cast<std::size_t>(expert);
    const auto bias = [&](const std::vector<const float*>& list) {
        return list.empty() ? nullptr : list[e];
    };
    return {expert,
            first,
            count,
            layer.gate[e],
            layer.up[e],
            layer.down[e],
            bias(layer.gate_bias),
            bias(layer.up_bias),
            bias(layer.down_bias)};
}

Plan plan_groups(Arena& arena, const std::int32_t* ids, const float* weights, int tokens, int top_k,
                 const ExpertLayer& layer) {
    const int experts = layer.experts();
    const auto all = static_cast<std::size_t>(experts);
    const auto n = static_cast<std::size_t>(tokens) * static_cast<std::size_t>(top_k);
    Plan plan{arena.take<Group>(all), 0, nullptr, 0};
    int* count = arena.take<int>(all);
    std::fill_n(count, all, 0);
    for (std::size_t i = 0; i < n; ++i)
        if (ids[i] >= 0) ++count[ids[i]];
    int first = 0;
    for (int e = 0; e < experts; ++e) {
        const int tokens_here = count[e];
        count[e] = first;  // from here on: where the next choice of e goes
        if (tokens_here == 0) continue;
        plan.groups[plan.group_count++] = group_of(layer, e, first, tokens_here);
        plan.most = std::max(plan.most, tokens_here);
        first += tokens_here;
    }
    plan.choices = arena.take<Choice>(static_cast<std::size_t>(first));
    for (std::size_t i = 0; i < n; ++i)
        if (ids[i] >= 0)
            plan.choices[count[ids[i]]++] = {
                static_cast<std::int32_t>(i / static_cast<std::size_t>(top_k)), weights[i]};
    return plan;
}

// Rows of a piece: a bounded read where weights stream (but streams long enough for a processor's
// prefetching), a cached tile where they meet many tokens, and always enough pieces.
int piece_rows(const DotKernel& kernel, int rows, int columns, int tokens, std::size_t row_nbytes,
               int wanted_pieces) {
    int n = kernel.tile_rows(columns);
    if (tokens <= kernel.stream_tokens)
        n = std::max(static_cast<int>(kPieceNbytes / row_nbytes), kLeastStreamRows);
    n = std::min(n, (rows + wanted_pieces - 1) / wanted_pieces);
    return std::max(8, n / 8 * 8);
}

std::size_t floats_nbytes(std::size_t n) { return (n * sizeof(float) + 63) / 64 * 64; }

struct Shape {
    int hidden, width, activation;
    float alpha, limit;
    std::size_t gate_stride, up_stride, down_stride;
};

// What both phases of one call (or of one chunk of its tokens) share.
struct Call {
    const KernelTable& kernels;
    const DotKernel& kernel;
    Shape layer;
    Plan plan;
    const std::byte* const* x;   // per token
    const std::byte** x_choice;  // per choice
    const std::byte** h_choice;
    std::byte* h;  // [choice, width], float32 or bfloat16 as the kernel wants
    float* y;
    int tokens;

    std::size_t h_nbytes() const { return kernel.bf16 ? sizeof(std::uint16_t) : sizeof(float); }
};

// Phase 1. A piece: some rows of one expert's gate and up, for every token that chose it.
class GateUp final : public Work {
  public:
    GateUp(const Call& call, int rows)
        : call_(call), rows_(rows), per_expert_((call.layer.width + rows - 1) / rows) {}
    std::size_t pieces() const {
        return call_.plan.group_count * static_cast<std::size_t>(per_expert_);
    }
    std::size_t scratch_nbytes() const {
        return 2 * out_nbytes() +
               call_.kernel.scratch_nbytes(rows_, call_.layer.hidden, call_.plan.most);
    }

    void compute(std::size_t piece, std::byte* scratch) const override {
        const Place at = place(piece);
        const Shape& l = call_.layer;
        auto* gate = reinterpret_cast<float*>(scratch);
        auto* up = reinterpret_cast<float*>(scratch + out_nbytes());
        project(at, at.group.gate, l.gate_stride, at.group.gate_bias, gate, scratch);
        project(at, at.group.up, l.up_stride, at.group.up_bias, up, scratch);
        call_.kernels.activate(
            l.activation, l.alpha, l.limit, gate, up,
            static_cast<std::size_t>(at.group.count) * static_cast<std::size_t>(at.rows));
    }

    void commit(std::size_t piece, const std::byte* scratch) const override {
        const Place at = place(piece);
        const auto* from = reinterpret_cast<const float*>(scratch);
        const auto rows = static_cast<std::size_t>(at.rows);
        for (int c = 0; c < at.group.count; ++c, from += rows) {
            const auto choice = static_cast<std::size_t>(at.group.first + c);
            std::byte* to = call_.h + (choice * static_cast<std::size_t>(call_.layer.width) +
                                       static_cast<std::size_t>(at.row)) *
                                          call_.h_nbytes();
            if (call_.kernel.bf16) {
                call_.kernels.to_bf16(reinterpret_cast<std::uint16_t*>(to), from, rows);
            } else {
                std::memcpy(to, from, rows * sizeof(float));
            }
        }
    }

  private:
    struct Place {
        const Group& group;
        int row, rows;
    };
    Place place(std::size_t piece) const {
        const auto per = static_cast<std::size_t>(per_expert_);
        const int row = static_cast<int>(piece % per) * rows_;
        return {call_.plan.groups[piece / per], row, std::min(rows_, call_.layer.width - row)};
    }
    std::size_t out_nbytes() const {
        return floats_nbytes(static_cast<std::size_t>(rows_) *
                             static_cast<std::size_t>(call_.plan.most));
    }
    void project(const Place& at, const std::byte* w, std::size_t stride, const float* bias,
                 float* out, std::byte* scratch) const {
        const auto rows = static_cast<std::size_t>(at.rows);
        call_.kernel.run({w + static_cast<std::size_t>(at.row) * stride, stride, at.rows,
                          call_.layer.hidden, call_.x_choice + at.group.first, at.group.count, out,
                          rows, scratch + 2 * out_nbytes()});
        if (bias == nullptr) return;
        for (int c = 0; c < at.group.count; ++c)
            call_.kernels.add(out + static_cast<std::size_t>(c) * rows, bias + at.row, rows);
    }

    const Call& call_;
    int rows_;
    int per_expert_;
};

// Phase 2. A piece: some output rows of every active expert, for every token, so that each sum has
// one owner and one order.
class Down final : public Work {
  public:
    Down(const Call& call, int rows) : call_(call), rows_(rows) {}
    std::size_t pieces() const {
        return static_cast<std::size_t>((call_.layer.hidden + rows_ - 1) / rows_);
    }
    std::size_t scratch_nbytes() const {
        return sums_nbytes() + out_nbytes() +
               call_.kernel.scratch_nbytes(rows_, call_.layer.width, call_.plan.most);
    }

    void compute(std::size_t piece, std::byte* scratch) const override {
        const Shape& l = call_.layer;
        const int row = static_cast<int>(piece) * rows_;
        const int rows = std::min(rows_, l.hidden - row);
        const auto n = static_cast<std::size_t>(rows);
        auto* sums = reinterpret_cast<float*>(scratch);
        auto* out = reinterpret_cast<float*>(scratch + sums_nbytes());
        std::fill_n(sums, n * static_cast<std::size_t>(call_.tokens), 0.0f);
        for (std::size_t g = 0; g < call_.plan.group_count; ++g) {
            const Group& group = call_.plan.groups[g];
            call_.kernel.run({group.down + static_cast<std::size_t>(row) * l.down_stride,
                              l.down_stride, rows, l.width, call_.h_choice + group.first,
                              group.count, out, n, scratch + sums_nbytes() + out_nbytes()});
            for (int c = 0; c < group.count; ++c) {
                const Choice& choice = call_.plan.choices[group.first + c];
                float* one = out + static_cast<std::size_t>(c) * n;
                if (group.down_bias != nullptr) call_.kernels.add(one, group.down_bias + row, n);
                call_.kernels.add_scaled(sums + static_cast<std::size_t>(choice.token) * n, one,
                                         choice.weight, n);
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

void run_chunk(Pool& pool, const float* x, int tokens, const std::int32_t* ids,
               const float* weights, int top_k, const ExpertLayer& layer, float* y, bool exact) {
    const KernelTable& kernels = pool.kernels();
    const DotKernel& kernel = exact ? kernels.exact[layer.format] : kernels.fast[layer.format];
    Arena& arena = pool.begin_call();
    auto& call = *new (arena.take<Call>(1))
                     Call{kernels,
                          kernel,
                          Shape{layer.hidden, layer.width, layer.activation, layer.alpha,
                                layer.limit, layer.gate_stride, layer.up_stride, layer.down_stride},
                          plan_groups(arena, ids, weights, tokens, top_k, layer),
                          activation_rows(pool, arena, kernel, x, tokens, layer.hidden),
                          nullptr,
                          nullptr,
                          nullptr,
                          y,
                          tokens};
    const Plan& plan = call.plan;
    if (plan.group_count == 0) {
        std::fill_n(y, static_cast<std::size_t>(tokens) * static_cast<std::size_t>(layer.hidden),
                    0.0f);
        return;
    }
    const Group& last = plan.groups[plan.group_count - 1];
    const auto choices = static_cast<std::size_t>(last.first + last.count);
    const std::size_t h_row = static_cast<std::size_t>(layer.width) * call.h_nbytes();
    call.h = arena.take<std::byte>(choices * h_row);
    call.x_choice = arena.take<const std::byte*>(choices);
    call.h_choice = arena.take<const std::byte*>(choices);
    for (std::size_t c = 0; c < choices; ++c) {
        call.x_choice[c] = call.x[plan.choices[c].token];
        call.h_choice[c] = call.h + c * h_row;
    }
    const auto active = static_cast<int>(plan.group_count);
    const int wanted = 4 * pool.threads();
    const int up_rows =
        piece_rows(kernel, layer.width, layer.hidden, plan.most,
                   layer.gate_stride + layer.up_stride, (wanted + active - 1) / active);
    auto* gate_up = new (arena.take<GateUp>(1)) GateUp(call, up_rows);
    pool.perform(arena, *gate_up, gate_up->pieces(), gate_up->scratch_nbytes(),
                 pool.rescues(tokens));
    const int down_rows = piece_rows(kernel, layer.hidden, layer.width, plan.most,
                                     layer.down_stride * static_cast<std::size_t>(active), wanted);
    auto* down = new (arena.take<Down>(1)) Down(call, down_rows);
    pool.perform(arena, *down, down->pieces(), down->scratch_nbytes(), pool.rescues(tokens));
}

}  // namespace

std::size_t ExpertLayer::row_nbytes() const {
    const auto weights = 3 * static_cast<std::size_t>(hidden) * static_cast<std::size_t>(width);
    const std::size_t ups = gate_bias.empty() ? 0 : 2 * static_cast<std::size_t>(width);
    const std::size_t downs = down_bias.empty() ? 0 : static_cast<std::size_t>(hidden);
    return weights * format_nbytes(format) + (ups + downs) * sizeof(float);
}

void ExpertLayer::check() const {
    const auto require = [](bool fits, const std::string& what) {
        if (!fits) throw std::invalid_argument("ExpertLayer: " + what);
    };
    require(
        format >= 0 && format < kFormats,
        "format " + std::to_string(format) + "; expected 0 (float32), 1 (bfloat16), 2 (float16)");
    require(activation >= 0 && activation <= 2,
            "activation " + std::to_string(activation) + "; expected 0, 1 or 2");
    require(hidden > 0 && width > 0, "hidden and width must be positive");
    const std::size_t n = gate.size(), element = format_nbytes(format);
    require(n > 0 && up.size() == n && down.size() == n,
            "gate, up and down must have one address per expert");
    for (const auto* bias : {&gate_bias, &up_bias, &down_bias})
        require(bias->empty() || bias->size() == n, "a bias needs one address per expert, or none");
    const auto fits = [&](std::size_t stride, int columns) {
        return stride % element == 0 && stride >= element * static_cast<std::size_t>(columns);
    };
    require(fits(gate_stride, hidden) && fits(up_stride, hidden) && fits(down_stride, width),
            "a row stride is shorter than its row or no multiple of the element size");
}

void experts(Pool& pool, const float* x, int tokens, const std::int32_t* ids, const float* weights,
             int top_k, const ExpertLayer& layer, float* y, bool exact) {
    if (tokens <= 0) return;
    const auto n = static_cast<std::size_t>(tokens) * static_cast<std::size_t>(top_k);
    for (std::size_t i = 0; i < n; ++i)
        if (ids[i] >= layer.experts())
            throw std::invalid_argument("experts: id " + std::to_string(ids[i]) +
                                        " in a layer of " + std::to_string(layer.experts()));
    const std::size_t token_nbytes = static_cast<std::size_t>(std::max(top_k, 1)) *
                                     static_cast<std::size_t>(layer.width) * sizeof(float);
    const auto chunk =
        static_cast<int>(std::clamp<std::size_t>(kHiddenNbytes / token_nbytes, 1, 1 << 20));
    for (int t = 0; t < tokens; t += chunk) {
        const auto token = static_cast<std::size_t>(t);
        const std::size_t choice = token * static_cast<std::size_t>(top_k);
        const std::size_t at = token * static_cast<std::size_t>(layer.hidden);
        run_chunk(pool, x + at, std::min(chunk, tokens - t), ids + choice, weights + choice, top_k,
                  layer, y + at, exact);
    }
}

}  // namespace headrace
