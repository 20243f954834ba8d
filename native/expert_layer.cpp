#include <stdexcept>
#include <string>

#include "expert.hpp"

namespace headrace {

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

}  // namespace headrace
