// Python face of gates.hpp and entry.hpp. Addresses come as integers; every call releases the GIL.
#include "bind.hpp"
#include "entry.hpp"
#include "gates.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using headrace::Pool;

void gate(Pool& pool, Address x, Address gate, std::int64_t tokens, std::int64_t heads,
          std::int64_t width, std::int64_t token_stride, std::int64_t head_stride, Address y) {
    make(pool, headrace::gate,
         {at<float>(x), at<float>(gate), tokens, heads, width, token_stride, head_stride,
          at<float>(y)});
}

void decay(Pool& pool, Address a, std::int64_t tokens, std::int64_t heads,
           std::int64_t token_stride, Address rate, Address bias, Address y) {
    make(pool, headrace::decay,
         {at<float>(a), tokens, heads, token_stride, at<double>(rate), at<float>(bias),
          at<float>(y)});
}

void clamp(Pool& pool, Address x, std::int64_t tokens, std::int64_t width,
           std::int64_t token_stride, float limit) {
    make(pool, headrace::clamp, {at<float>(x), tokens, width, token_stride, limit});
}

void multiply(Pool& pool, Address x, Address by, std::int64_t tokens, std::int64_t width,
              std::int64_t x_stride, std::int64_t by_stride, Address y) {
    make(pool, headrace::multiply,
         {at<float>(x), at<float>(by), tokens, width, x_stride, by_stride, at<float>(y)});
}

void arrange(Pool& pool, Address x, std::int64_t tokens, std::int64_t token_stride, Address order,
             std::int64_t columns, Address y) {
    const headrace::Arrange c{at<float>(x), tokens,      token_stride, at<std::int32_t>(order),
                              columns,      at<float>(y)};
    check_order(c);  // once: a step that is replayed has the same
    make(pool, headrace::arrange, c);
}

void scale(Pool& pool, Address x, std::int64_t tokens, std::int64_t width, float factor,
           float cap) {
    make(pool, headrace::scale, {at<float>(x), tokens, width, factor, cap});
}

void scale_rows(Pool& pool, Address x, std::int64_t tokens, std::int64_t heads, std::int64_t width,
                std::int64_t token_stride, std::int64_t head_stride, Address by,
                std::int64_t by_token_stride, std::int64_t by_head_stride) {
    make(pool, headrace::scale_rows,
         {at<float>(x), tokens, heads, width, token_stride, head_stride, at<float>(by),
          by_token_stride, by_head_stride});
}

void temperature(Pool& pool, Address positions, std::int64_t tokens, std::int64_t span,
                 double strength, Address y, std::int64_t ahead) {
    make(pool, headrace::temperature,
         {at<std::int64_t>(positions), tokens, span, strength, at<float>(y), ahead});
}

void layer_norm(Pool& pool, Address x, std::int64_t rows, std::int64_t width, Address weight,
                Address bias, float eps, Address y) {
    make(pool, headrace::layer_norm,
         {at<float>(x), rows, width, at<float>(weight), at<float>(bias), eps, at<float>(y)});
}

void lookup(Pool& pool, Address table, int format, std::int64_t rows, std::int64_t width,
            std::int64_t row_stride_bytes, Address ids, std::int64_t count, Address y) {
    make(pool, headrace::lookup,
         {at<std::byte>(table), format, rows, width, row_stride_bytes, at<std::int64_t>(ids), count,
          at<float>(y)});
}

void angles(Pool& pool, Address positions, std::int64_t tokens, Address frequencies,
            std::int64_t pairs, float factor, Address cos, Address sin) {
    make(pool, headrace::angles,
         {at<std::int64_t>(positions), tokens, at<float>(frequencies), pairs, factor,
          at<float>(cos), at<float>(sin)});
}

void best(Pool& pool, Address x, std::int64_t rows, std::int64_t width, Address ids) {
    make(pool, headrace::best, {at<float>(x), rows, width, at<std::int64_t>(ids)});
}

}  // namespace

void bind_gates(nb::class_<Pool>& pool) {
    pool.def("gate", &gate, "x"_a, "gate"_a, "tokens"_a, "heads"_a, "width"_a, "token_stride"_a,
             "head_stride"_a, "y"_a, Released())
        .def("decay", &decay, "a"_a, "tokens"_a, "heads"_a, "token_stride"_a, "rate"_a, "bias"_a,
             "y"_a, Released())
        .def("clamp", &clamp, "x"_a, "tokens"_a, "width"_a, "token_stride"_a, "limit"_a, Released())
        .def("multiply", &multiply, "x"_a, "by"_a, "tokens"_a, "width"_a, "x_stride"_a,
             "by_stride"_a, "y"_a, Released())
        .def("arrange", &arrange, "x"_a, "tokens"_a, "token_stride"_a, "order"_a, "columns"_a,
             "y"_a, Released())
        .def("scale", &scale, "x"_a, "tokens"_a, "width"_a, "factor"_a, "cap"_a, Released())
        .def("scale_rows", &scale_rows, "x"_a, "tokens"_a, "heads"_a, "width"_a, "token_stride"_a,
             "head_stride"_a, "by"_a, "by_token_stride"_a, "by_head_stride"_a, Released())
        .def("temperature", &temperature, "positions"_a, "tokens"_a, "span"_a, "strength"_a, "y"_a,
             "ahead"_a = 1, Released())
        .def("layer_norm", &layer_norm, "x"_a, "rows"_a, "width"_a, "weight"_a, "bias"_a, "eps"_a,
             "y"_a, Released())
        .def("lookup", &lookup, "table"_a, "format"_a, "rows"_a, "width"_a, "row_stride_bytes"_a,
             "ids"_a, "count"_a, "y"_a, Released())
        .def("angles", &angles, "positions"_a, "tokens"_a, "frequencies"_a, "pairs"_a, "factor"_a,
             "cos"_a, "sin"_a, Released())
        .def("best", &best, "x"_a, "rows"_a, "width"_a, "ids"_a, Released());
}
