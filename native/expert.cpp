#include "expert.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>

#include "activations.hpp"
#include "expert_forms.hpp"
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
    const int share = (rows + wanted_pieces - 1) / wanted_pieces;
    if (tokens > kernel.stream_tokens)
        return std::max(unit, std::min(kernel.tile_rows(columns), share) / unit * unit);
    const int n = std::max(static_cast<int>(kPieceNbytes / row_nbytes), kLeastStreamRows);
    return std::max(unit, kernel.piece_rows(n, share, unit));
}

std::size_t floats_nbytes(std::size_t n) { return (n * sizeof(float) + 63) / 64 * 64; }

// What both phases of one call (or of one chunk of its tokens) share.
struct Call {
    const KernelTable& kernels;
    Shape layer;
    Groups plan;
    const std::byte** gate_x;  // per choice
    const std::byte** up_x;
    const std::byte** h_choice;
    std::byte* h;  // [choice, width] as the kernel of down takes it, h_nbytes each
    std::size_t h_nbytes;
    float* y;  // [token, hidden], or [entry, hidden] where parts are wanted
    int tokens;

    const Form& form(const Group& group) const { return layer.forms[group.form]; }
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
        return 2 * split_.out_nbytes() +
               call_.layer.most([&](const Form& f) { return std::max(of(f.gate), of(f.up)); });
    }

    void compute(std::size_t piece, std::byte* scratch) const override {
        const PerExpert::Place at = split_.place(piece);
        const Shape& l = call_.layer;
        const Form& form = call_.form(at.group);
        auto* gate = reinterpret_cast<float*>(scratch);
        auto* up = reinterpret_cast<float*>(scratch + split_.out_nbytes());
        project(at, form.gate, at.group.gate, call_.gate_x, at.group.gate_bias, gate, scratch);
        if (at.group.up != nullptr)
            project(at, form.up, at.group.up, call_.up_x, at.group.up_bias, up, scratch);
        call_.kernels.activate(
            l.activation, l.alpha, l.limit, gate, up,
            static_cast<std::size_t>(at.group.count) * static_cast<std::size_t>(at.rows));
    }

    void commit(std::size_t piece, const std::byte* scratch) const override {
        const PerExpert::Place at = split_.place(piece);
        const auto* from = reinterpret_cast<const float*>(scratch);
        const auto rows = static_cast<std::size_t>(at.rows);
        const auto put = call_.kernels.put[call_.form(at.group).down.kernel->input];
        for (int c = 0; c < at.group.count; ++c, from += rows) {
            const auto choice = static_cast<std::size_t>(at.group.first + c);
            put(call_.h + choice * call_.h_nbytes, call_.layer.width, at.row, from, at.rows);
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
    const Kind& down = call.form(group).down;
    const auto n = static_cast<std::size_t>(rows);
    down.kernel->run({down.at(group.down, row), down.stride, rows, call.layer.width,
                      call.h_choice + group.first, group.count, out, n, scratch, down.format});
    if (group.down_bias == nullptr) return;
    for (int c = 0; c < group.count; ++c)
        call.kernels.add(out + static_cast<std::size_t>(c) * n, group.down_bias + row, n);
}

// Of `rows` rows of down, whatever the form.
std::size_t down_scratch(const Call& call, int rows) {
    return call.layer.most([&](const Form& form) {
        return form.down.kernel->scratch_nbytes(rows, call.layer.width, call.plan.most);
    });
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
        return sums_nbytes() + out_nbytes() + down_scratch(call_, rows_);
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
        return split_.out_nbytes() + down_scratch(call_, split_.rows);
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
