// The kernels of one call: of gate, up and down of each form that experts of its layer have. Taken
// from the layer once: a worker that was descheduled may look here after the layer is gone.
#pragma once

#include <algorithm>
#include <numeric>

#include "arena.hpp"
#include "expert.hpp"

namespace headrace {

// One of gate, up and down, for all experts of a form.
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

struct Form {
    Kind gate, up, down;

    // Rows that no piece of gate and up may be cut within, and the same of down.
    int up_unit() const {
        return std::lcm(input_unit(down.kernel->input),
                        std::lcm(tile_rows(gate.format), tile_rows(up.format)));
    }
    int down_unit() const { return std::lcm(8, tile_rows(down.format)); }
};

struct Shape {
    int hidden, width, activation;
    float alpha, limit;
    const Form* forms;
    std::size_t count;

    const Form* begin() const { return forms; }
    const Form* end() const { return forms + count; }
    // The most that `of` gives for any form.
    template <class Of>
    auto most(const Of& of) const {
        auto found = of(forms[0]);
        for (std::size_t i = 1; i < count; ++i) found = std::max(found, of(forms[i]));
        return found;
    }
};

inline Shape shape_of(Arena& arena, const ExpertLayer& layer, const DotKernel* kernels) {
    const auto kind = [&](int format, std::size_t stride) {
        return Kind{&kernels[kind_of(format)], stride, format};
    };
    Form* forms = arena.take<Form>(layer.forms());
    for (std::size_t i = 0; i < layer.forms(); ++i) {
        const ExpertForm f = layer.form(i);
        forms[i] = {kind(f.gate_format, f.gate_stride), kind(f.up_format, f.up_stride),
                    kind(f.down_format, f.down_stride)};
    }
    return {layer.hidden, layer.width, layer.activation, layer.alpha,
            layer.limit,  forms,       layer.forms()};
}

}  // namespace headrace
