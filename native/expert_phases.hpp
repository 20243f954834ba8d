// What is done for the experts of one call, phase after phase: gate and up, then down.
#pragma once

#include <algorithm>
#include <cstring>

#include "expert_forms.hpp"
#include "expert_groups.hpp"
#include "pool.hpp"

namespace headrace {

inline std::size_t floats_nbytes(std::size_t n) { return (n * sizeof(float) + 63) / 64 * 64; }

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
        return 2 * split_.out_nbytes() + packed_nbytes() +
               call_.layer.most([&](const Form& f) { return std::max(of(f.gate), of(f.up)); });
    }

    void compute(std::size_t piece, std::byte* scratch) const override {
        const PerExpert::Place at = split_.place(piece);
        const Shape& l = call_.layer;
        const Form& form = call_.form(at.group);
        auto* gate = reinterpret_cast<float*>(scratch);
        auto* up = reinterpret_cast<float*>(scratch + split_.out_nbytes());
        Dot to_gate = dot(at, form.gate, at.group.gate, call_.gate_x, gate, scratch);
        if (at.group.up == nullptr) {
            project(form.gate, to_gate, at.group.gate_bias, at.row);
        } else {
            Dot to_up = dot(at, form.up, at.group.up, call_.up_x, up, scratch);
            if (const Packing* packing = both_take(form)) {
                std::byte* packed = scratch + 2 * split_.out_nbytes();
                packing->put(to_gate, packed);
                to_gate.packed = to_up.packed = packed;
            }
            project(form.gate, to_gate, at.group.gate_bias, at.row);
            project(form.up, to_up, at.group.up_bias, at.row);
        }
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
    // What gate and up make of the same activations, where that is the same.
    static const Packing* both_take(const Form& form) {
        const DotKernel &gate = *form.gate.kernel, &up = *form.up.kernel;
        return gate.input == up.input && gate.packing == up.packing ? gate.packing : nullptr;
    }
    std::size_t packed_nbytes() const {
        return call_.layer.most([&](const Form& form) {
            const Packing* packing = both_take(form);
            return packing == nullptr ? 0 : packing->nbytes(call_.layer.hidden, call_.plan.most);
        });
    }
    Dot dot(const PerExpert::Place& at, const Kind& kind, const std::byte* w, const std::byte** x,
            float* out, std::byte* scratch) const {
        return {kind.at(w, at.row),
                kind.stride,
                at.rows,
                call_.layer.hidden,
                x + at.group.first,
                at.group.count,
                out,
                static_cast<std::size_t>(at.rows),
                scratch + 2 * split_.out_nbytes() + packed_nbytes(),
                kind.format};
    }
    void project(const Kind& kind, const Dot& dot, const float* bias, int row) const {
        kind.kernel->run(dot);
        if (bias == nullptr) return;
        for (int c = 0; c < dot.tokens; ++c)
            call_.kernels.add(dot.out + static_cast<std::size_t>(c) * dot.out_stride, bias + row,
                              dot.out_stride);
    }

    const Call& call_;
    PerExpert split_;
};

inline Dot dot_of_down(const Call& call, const Group& group, int row, int rows) {
    const Kind& down = call.form(group).down;
    return {down.at(group.down, row),
            down.stride,
            rows,
            call.layer.width,
            call.h_choice + group.first,
            group.count,
            nullptr,
            static_cast<std::size_t>(rows),
            nullptr,
            down.format};
}

// Between the phases, where there are many tokens: what down makes of an expert's activations, for
// all pieces of its rows. A piece is an expert.
class PackHidden final : public Work {
  public:
    PackHidden(const Call& call, Arena& arena) : call_(call) {
        for (std::size_t g = 0; g < call.plan.count; ++g) {
            Group& group = call.plan.groups[g];
            const Packing* packing = call.form(group).down.kernel->packing;
            if (packing == nullptr) continue;
            group.packed = arena.take<std::byte>(packing->nbytes(call.layer.width, group.count));
            needed_ = true;
        }
    }
    bool needed() const { return needed_; }

    void compute(std::size_t piece, std::byte*) const override {
        const Group& group = call_.plan.groups[piece];
        if (group.packed == nullptr) return;
        call_.form(group).down.kernel->packing->put(dot_of_down(call_, group, 0, 0),
                                                    const_cast<std::byte*>(group.packed));
    }
    void commit(std::size_t, const std::byte*) const override {}

  private:
    const Call& call_;
    bool needed_ = false;
};

// out[c * rows + r] = row + r of an expert's output for its c-th token.
inline void project_down(const Call& call, const Group& group, int row, int rows, float* out,
                         std::byte* scratch) {
    const auto n = static_cast<std::size_t>(rows);
    Dot dot = dot_of_down(call, group, row, rows);
    dot.out = out;
    dot.scratch = scratch;
    dot.packed = group.packed;
    call.form(group).down.kernel->run(dot);
    if (group.down_bias == nullptr) return;
    for (int c = 0; c < group.count; ++c)
        call.kernels.add(out + static_cast<std::size_t>(c) * n, group.down_bias + row, n);
}

// Of `rows` rows of down, whatever the form.
inline std::size_t down_scratch(const Call& call, int rows) {
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

}  // namespace headrace
