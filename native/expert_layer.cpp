#include <stdexcept>
#include <string>

#include "expert.hpp"

namespace headrace {

ExpertForm ExpertLayer::form(std::size_t i) const {
    if (i > 0) return others[i - 1];
    return {gate_format, up_format, down_format, gate_stride, up_stride, down_stride};
}

std::size_t ExpertLayer::row_nbytes() const {
    const auto rows = static_cast<std::size_t>(width);
    const std::size_t ups = gate_bias.empty() ? 0 : up_bias.empty() ? rows : 2 * rows;
    const std::size_t downs = down_bias.empty() ? 0 : static_cast<std::size_t>(hidden);
    const auto weights = [](int format, int rows, int columns) {
        const int tall = tile_rows(format);
        return static_cast<std::size_t>((rows + tall - 1) / tall) * tile_nbytes(format, columns);
    };
    const auto nbytes = [&](const ExpertForm& f) {
        return weights(f.gate_format, width, hidden) +
               (has_up() ? weights(f.up_format, width, hidden) : 0) +
               weights(f.down_format, hidden, width) + (ups + downs) * sizeof(float);
    };
    if (form_of.empty()) return nbytes(form(0));
    std::size_t all = 0;
    for (const std::uint8_t i : form_of) all += nbytes(form(i));
    return (all + form_of.size() - 1) / form_of.size();
}

void ExpertLayer::check() const {
    const auto require = [](bool fits, const std::string& what) {
        if (!fits) throw std::invalid_argument("ExpertLayer: " + what);
    };
    require(activation >= 0 && activation <= kReluSquared,
            "activation " + std::to_string(activation) + "; expected 0 to 3");
    require(hidden > 0 && width > 0, "hidden and width must be positive");
    const std::size_t n = gate.size();
    require(n > 0 && up.size() == (has_up() ? n : 0) && down.size() == n,
            "gate, up and down must have one address per expert, up none for activation 3");
    for (const auto* bias : {&gate_bias, &up_bias, &down_bias})
        require(bias->empty() || bias->size() == n, "a bias needs one address per expert, or none");
    const auto check_kind = [&](int format, std::size_t stride, int columns) {
        const std::string fault = format_fault(format, columns);
        require(fault.empty(), fault);
        const std::size_t unit = format < kFloats ? format_nbytes(format) : 1;
        require(stride % unit == 0 && stride >= tile_nbytes(format, columns),
                "a row stride is shorter than its row or no multiple of the element size");
    };
    for (std::size_t i = 0; i < forms(); ++i) {
        const ExpertForm f = form(i);
        check_kind(f.gate_format, f.gate_stride, hidden);
        if (has_up()) check_kind(f.up_format, f.up_stride, hidden);
        check_kind(f.down_format, f.down_stride, width);
    }
    require(form_of.empty() ? others.empty() : form_of.size() == n,
            "other forms need the form of every expert");
    for (const std::uint8_t i : form_of)
        require(i < forms(), "form " + std::to_string(i) + " of " + std::to_string(forms()));
}

}  // namespace headrace
