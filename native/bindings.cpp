// The Python face of the pool and the weight kernels. _native.pyi states the contract.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>

#include "bandwidth.hpp"
#include "bind.hpp"
#include "cpu.hpp"
#include "expert.hpp"
#include "linear.hpp"
#include "pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

void bind_mixers(nb::module_& m, nb::class_<headrace::Pool>& pool);
void bind_gates(nb::class_<headrace::Pool>& pool);
void bind_io(nb::module_& m);
void bind_disk(nb::module_& m);
void bind_hetero(nb::module_& m, nb::class_<headrace::Pool>& pool);

namespace {

using headrace::ExpertLayer;
using headrace::Matrix;
using headrace::Pool;
using Addresses = std::vector<Address>;
using Form =
    std::pair<std::tuple<int, int, int>, std::tuple<std::size_t, std::size_t, std::size_t>>;
using Parts = std::vector<std::tuple<Address, std::int64_t, std::int64_t, int>>;

template <class T>
std::vector<const T*> pointers(const Addresses& addresses, const char* what,
                               bool optional = false) {
    std::vector<const T*> out;
    out.reserve(addresses.size());
    for (const Address a : addresses) {
        if (a == 0)
            throw std::invalid_argument(std::string("ExpertLayer: null address in ") + what);
        out.push_back(at<const T>(a));
    }
    if (out.empty() && !optional)
        throw std::invalid_argument(std::string("ExpertLayer: no experts in ") + what);
    return out;
}

std::size_t tile_nbytes(int format, std::int64_t columns) {
    const std::string fault = headrace::format_fault(format, columns);
    if (!fault.empty()) throw std::invalid_argument("tile_nbytes: " + fault);
    return headrace::tile_nbytes(format, columns);
}

// Throws unless so many rows of the given strides are read from and written where they can be.
void require_lanes(const char* call, int format, std::int64_t count, std::int64_t columns,
                   std::int64_t row_stride, std::int64_t row_nbytes, std::int64_t tile_stride) {
    const auto nbytes = static_cast<std::int64_t>(tile_nbytes(format, columns));
    if (headrace::is_laned(format) && count > 0 && tile_stride >= nbytes &&
        row_stride >= row_nbytes)
        return;
    throw std::invalid_argument(
        std::string(call) + ": found format " + std::to_string(format) + ", " +
        std::to_string(count) + " rows " + std::to_string(row_stride) + " bytes apart, tiles " +
        std::to_string(tile_stride) + "; expected a laned format, rows of " +
        std::to_string(row_nbytes) + " bytes, tiles of " + std::to_string(nbytes));
}

void put_in_lanes(int format, Address rows, std::int64_t row_stride, std::int64_t count,
                  std::int64_t columns, Address tiles, std::int64_t tile_stride) {
    const auto nbytes = static_cast<std::int64_t>(tile_nbytes(format, columns));
    require_lanes("put_in_lanes", format, count, columns, row_stride, nbytes / headrace::kLaneRows,
                  tile_stride);
    const nb::gil_scoped_release released;
    headrace::put_in_lanes(format, at<std::byte>(rows), static_cast<std::size_t>(row_stride), count,
                           columns, at<std::byte>(tiles), static_cast<std::size_t>(tile_stride));
}

void put_pairs_in_lanes(int format, Address scales, std::int64_t scale_stride, Address codes,
                        std::int64_t code_stride, std::int64_t count, std::int64_t columns,
                        Address tiles, std::int64_t tile_stride) {
    const bool two = headrace::kind_of(format) == headrace::kNVFP4;
    for (const auto& [stride, nbytes] :
         {std::pair{scale_stride, columns / (two ? 16 : 32)}, std::pair{code_stride, columns / 2}})
        require_lanes("put_pairs_in_lanes", two ? format : headrace::kGgmlMXFP4, count, columns,
                      stride, nbytes, tile_stride);
    const nb::gil_scoped_release released;
    headrace::put_pairs_in_lanes(two ? format : headrace::kGgmlMXFP4, at<std::byte>(scales),
                                 static_cast<std::size_t>(scale_stride), at<std::byte>(codes),
                                 static_cast<std::size_t>(code_stride), count, columns,
                                 at<std::byte>(tiles), static_cast<std::size_t>(tile_stride));
}

void bind_weights(nb::module_& m) {
    nb::class_<Matrix>(m, "Matrix")
        .def(
            "__init__",
            [](Matrix* self, const Parts& parts, std::int64_t columns) {
                std::vector<Matrix::Given> given;
                for (const auto& [address, rows, stride, format] : parts)
                    given.push_back({address, rows, stride, format});
                new (self) Matrix(given, columns);
            },
            "parts"_a, "columns"_a)
        .def_ro("rows", &Matrix::rows)
        .def_ro("columns", &Matrix::columns)
        .def_ro("nbytes", &Matrix::nbytes);

    nb::class_<ExpertLayer>(m, "ExpertLayer")
        .def(
            "__init__",
            [](ExpertLayer* self, const std::tuple<int, int, int>& formats, int hidden, int width,
               int activation, const Addresses& gate, const Addresses& up, const Addresses& down,
               std::size_t gate_stride, std::size_t up_stride, std::size_t down_stride,
               const Addresses& gate_bias, const Addresses& up_bias, const Addresses& down_bias,
               float alpha, float limit, const std::vector<Form>& others,
               std::vector<std::uint8_t> form_of) {
                const auto& [gate_format, up_format, down_format] = formats;
                ExpertLayer layer{gate_format,
                                  up_format,
                                  down_format,
                                  hidden,
                                  width,
                                  activation,
                                  alpha,
                                  limit,
                                  pointers<std::byte>(gate, "gate"),
                                  pointers<std::byte>(up, "up", true),
                                  pointers<std::byte>(down, "down"),
                                  gate_stride,
                                  up_stride,
                                  down_stride,
                                  pointers<float>(gate_bias, "gate_bias", true),
                                  pointers<float>(up_bias, "up_bias", true),
                                  pointers<float>(down_bias, "down_bias", true),
                                  {},
                                  std::move(form_of)};
                for (const auto& [formats, strides] : others) {
                    const auto& [g, u, d] = formats;
                    const auto& [g_stride, u_stride, d_stride] = strides;
                    layer.others.push_back({g, u, d, g_stride, u_stride, d_stride});
                }
                layer.check();
                new (self) ExpertLayer(std::move(layer));
            },
            nb::kw_only(), "formats"_a, "hidden"_a, "width"_a, "activation"_a, "gate"_a, "up"_a,
            "down"_a, "gate_stride_bytes"_a, "up_stride_bytes"_a, "down_stride_bytes"_a,
            "gate_bias"_a = Addresses{}, "up_bias"_a = Addresses{}, "down_bias"_a = Addresses{},
            "alpha"_a = 1.702f, "limit"_a = 0.0f, "others"_a = std::vector<Form>{},
            "form_of"_a = std::vector<std::uint8_t>{})
        .def_prop_ro("experts", &ExpertLayer::experts)
        .def_prop_ro("row_nbytes", &ExpertLayer::row_nbytes);
}

void bind_pool(nb::class_<Pool>& pool) {
    pool.def(nb::init<int, bool, const std::string&, bool>(), "threads"_a = 0, "pin"_a = true,
             "isa"_a = "", "rescue"_a = false)
        .def_prop_ro("threads", &Pool::threads)
        .def_prop_ro("isa", [](const Pool& p) { return std::string(p.kernels().name); })
        .def("close", &Pool::close, Released())
        .def("quiesce", &Pool::quiesce, Released())
        .def("busy_ns", &Pool::busy_ns)
        .def(
            "linear",
            [](Pool& p, Address x, int tokens, const Matrix& w, Address bias, Address y,
               bool exact) {
                p.make([=, &w](Pool& pool) {
                    const Pool::Busy busy(pool);
                    headrace::linear(pool, at<const float>(x), tokens, w, at<const float>(bias),
                                     at<float>(y), exact);
                });
            },
            Released(), "x"_a, "tokens"_a, "w"_a, "bias"_a, "y"_a, "exact"_a)
        .def(
            "per_head",
            [](Pool& p, Address x, int tokens, std::int64_t token_stride, std::int64_t head_stride,
               const Matrix& w, Address y, int keep, bool across, bool exact) {
                p.make([=, &w](Pool& pool) {
                    const Pool::Busy busy(pool);
                    headrace::per_head(pool,
                                       {at<const float>(x), tokens, token_stride, head_stride,
                                        at<float>(y), keep, across, exact},
                                       w);
                });
            },
            Released(), nb::kw_only(), "x"_a, "tokens"_a, "token_stride"_a, "head_stride"_a, "w"_a,
            "y"_a, "keep"_a, "across"_a, "exact"_a)
        .def(
            "experts",
            [](Pool& p, Address x, int tokens, Address ids, Address weights, int top_k,
               const ExpertLayer& layer, Address y, bool exact) {
                p.make([=, &layer](Pool& pool) {
                    const Pool::Busy busy(pool);
                    headrace::experts(pool, at<const float>(x), tokens, at<const std::int32_t>(ids),
                                      at<const float>(weights), top_k, layer, at<float>(y), exact);
                });
            },
            Released(), "x"_a, "tokens"_a, "ids"_a, "weights"_a, "top_k"_a, "layer"_a, "y"_a,
            "exact"_a);
}

// Calls of a pool with their addresses, made again in one go.
struct Tape {
    std::vector<Pool::Call> calls;
};

void bind_tape(nb::module_& m, nb::class_<Pool>& pool) {
    nb::class_<Tape>(m, "Tape")
        .def(nb::init<>())
        .def("__len__", [](const Tape& tape) { return tape.calls.size(); })
        .def(
            "replay",
            [](const Tape& tape, Pool& p) {
                for (const Pool::Call& call : tape.calls) call(p);
            },
            Released(), "pool"_a);
    pool.def(
            "record", [](Pool& p, Tape& tape) { p.record(&tape.calls); }, "tape"_a,
            nb::keep_alive<1, 2>())
        .def("stop", [](Pool& p) { p.record(nullptr); });
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "The native worker pool and the kernels that run on it.";
    m.def("cpu_features", [] {
        std::map<std::string, bool> out;
        for (const auto& [name, present] : headrace::cpu_feature_list()) out[name] = present;
        return out;
    });
    m.def("isas", &headrace::isas);
    m.def("tile_nbytes", &tile_nbytes, "format"_a, "columns"_a);
    m.def("put_pairs_in_lanes", &put_pairs_in_lanes, "format"_a, "scales"_a, "scale_stride"_a,
          "codes"_a, "code_stride"_a, "count"_a, "columns"_a, "tiles"_a, "tile_stride"_a);
    m.def("put_in_lanes", &put_in_lanes, "format"_a, "rows"_a, "row_stride"_a, "count"_a,
          "columns"_a, "tiles"_a, "tile_stride"_a);
    bind_weights(m);
    nb::class_<Pool> pool(m, "Pool");
    bind_pool(pool);
    bind_tape(m, pool);
    m.def("measure_read_bandwidth", &headrace::measure_read_bandwidth, Released(), "pool"_a,
          "nbytes"_a, "seconds"_a);
    m.def("measure_product_rate", &headrace::measure_product_rate, Released(), "pool"_a, "format"_a,
          "columns"_a, "seconds"_a);
    bind_mixers(m, pool);
    bind_gates(pool);
    bind_io(m);
    bind_disk(m);
    bind_hetero(m, pool);
}
