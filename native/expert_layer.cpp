#include <stdexcept>
#include <string>

#include "expert.hpp"

namespace headrace {

std::size_t ExpertLayer::row_nbytes() const {
    const std::size_t ups = gate_bias.empty() ? 0 : 2 * static_cast<std::size_t>(width);
    const std::size_t downs = down_bias.empty() ? 0 : static_cast<std::size_t>(hidden);
    const auto weights = [](int format, int rows, int columns) {
        const int tall = tile_rows(format);
        return static_cast<std::size_t>((rows + tall - 1) / tall) * tile_nbytes(format, columns);
    };
    return weights(gate_format, width, hidden) + weights(up_format, width, hidden) +
           weights(down_format, hidden, width) + (ups + downs) * sizeof(float);
}

void ExpertLayer::check() const {
    const auto require = [](bool fits, const std::string& what) {
        if (!fits) throw std::invalid_argument("ExpertLayer: " + what);
    };
    require(activation >= 0 && activation <= 2,
            "activation " + std::to_string(activation) + "; expected 0, 1 or 2");
    require(hidden > 0 && width > 0, "hidden and width must be positive");
    const std::size_t n = gate.size();
    require(n > 0 && up.size() == n && down.size() == n,
            "gate, up and down must have one address per expert");
    for (const auto* bias : {&gate_bias, &up_bias, &down_bias})
        require(bias->empty() || bias->size() == n, "a bias needs one address per expert, or none");
    const auto check_kind = [&](int format, std::size_t stride, int columns) {
        const std::string fault = format_fault(format, columns);
        require(fault.empty(), fault);
        const std::size_t unit = format < kFloats ? format_nbytes(format) : 1;
        require(stride % unit == 0 && stride >= tile_nbytes(format, columns),
                "a row stride is shorter than its row or no multiple of the element size");
    };
    check_kind(gate_format, gate_stride, hidden);
    check_kind(up_format, up_stride, hidden);
    check_kind(down_format, down_stride, width);
}

}  // namespace headrace
