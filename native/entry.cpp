#include "entry.hpp"

#include <cmath>
#include <vector>

#include "split.hpp"

namespace headrace {
namespace {

// A sine and a cosine in double take about as long as so many vector elements.
constexpr std::int64_t kTurnWork = 64;
constexpr std::int64_t kSegment = 8192;  // elements that one thread looks through at once

}  // namespace

void lookup(Pool& pool, const Lookup& c) {
    const std::string fault = format_fault(c.format, c.width);
    require(fault.empty(), fault, "a known format");
    for (std::int64_t i = 0; i < c.count; ++i)
        require(c.ids[i] >= 0 && c.ids[i] < c.rows,
                "row " + number(c.ids[i]) + " of a table of " + number(c.rows),
                "a row of the table");
    const Pool::Busy busy(pool);
    const auto unpack = pool.kernels().unpack[kind_of(c.format)];
    const Tiles table{c.table, static_cast<std::size_t>(c.row_stride), static_cast<int>(c.width),
                      c.format};
    split(pool, c.count, c.width, [&](std::int64_t first, std::int64_t last, int) {
        for (std::int64_t i = first; i < last; ++i)
            unpack(table, static_cast<int>(c.ids[i]), c.y + i * c.width);
    });
}

void angles(Pool& pool, const Angles& c) {
    const Pool::Busy busy(pool);
    split(pool, c.tokens, c.pairs * kTurnWork, [&](std::int64_t first, std::int64_t last, int) {
        for (std::int64_t t = first; t < last; ++t)
            for (std::int64_t i = 0; i < c.pairs; ++i) {
                const float angle = static_cast<float>(c.positions[t]) * c.frequencies[i];
                const std::int64_t at = t * c.pairs + i;
                c.cos[at] = static_cast<float>(std::cos(static_cast<double>(angle))) * c.factor;
                c.sin[at] = static_cast<float>(std::sin(static_cast<double>(angle))) * c.factor;
            }
    });
}

void best(Pool& pool, const Best& c) {
    require(c.width > 0, "a row of " + number(c.width), "at least 1 element");
    const Pool::Busy busy(pool);
    const auto top_of = pool.kernels().top_of;
    const std::int64_t segments = (c.width + kSegment - 1) / kSegment;
    const auto size = [&](std::int64_t at) { return std::min(kSegment, c.width - at * kSegment); };
    std::vector<Top> tops(static_cast<std::size_t>(segments * c.rows));
    split(pool, segments * c.rows, kSegment, [&](std::int64_t first, std::int64_t last, int) {
        for (std::int64_t i = first; i < last; ++i) {
            const std::int64_t at = i % segments;
            tops[static_cast<std::size_t>(i)] =
                top_of(c.x + i / segments * c.width + at * kSegment, size(at));
        }
    });
    for (std::int64_t row = 0; row < c.rows; ++row) {
        const Top* of = tops.data() + row * segments;
        std::int64_t first = 0;
        bool finite = true;
        for (std::int64_t i = 0; i < segments; ++i) {
            finite = finite && of[i].finite;
            if (of[i].value > of[first].value) first = i;
        }
        c.ids[row] = -1;
        if (!finite) continue;
        std::int64_t at = first * kSegment;
        while (c.x[row * c.width + at] != of[first].value) ++at;
        c.ids[row] = at;
    }
}

}  // namespace headrace
