// Python face of disk.hpp. Waiting releases the GIL and lets Ctrl-C through.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <tuple>
#include <vector>

#include "bind.hpp"
#include "disk.hpp"

namespace nb = nanobind;

namespace {

using headrace::DiskQueue;
using PythonSpan = std::tuple<int32_t, int64_t, int64_t, uint64_t>;

int64_t submit(DiskQueue& queue, const std::vector<PythonSpan>& spans, bool urgent) {
    std::vector<headrace::DiskSpan> native;
    native.reserve(spans.size());
    for (const auto& [file, offset, bytes, destination] : spans)
        native.push_back({file, {offset, bytes, at<char>(destination)}});
    const nb::gil_scoped_release released;
    return queue.submit(std::move(native), urgent);
}

bool wait(DiskQueue& queue, int64_t ticket, double seconds) {
    using Clock = std::chrono::steady_clock;
    const auto started = Clock::now();
    while (true) {
        double left = 0.1;
        if (seconds >= 0)
            left = seconds - std::chrono::duration<double>(Clock::now() - started).count();
        {
            const nb::gil_scoped_release released;
            if (queue.wait(ticket, std::clamp(left, 0.0, 0.1))) return true;
        }
        if (seconds >= 0 && left <= 0.1) return false;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
}

}  // namespace

void bind_disk(nb::module_& m) {
    nb::class_<DiskQueue>(m, "DiskQueue")
        .def(nb::init<const std::vector<std::string>&, int, int64_t>(), nb::arg("paths"),
             nb::arg("threads"), nb::arg("piece_bytes"))
        .def("submit", &submit, nb::arg("spans"), nb::arg("urgent"))
        .def("hurry", &DiskQueue::hurry, nb::arg("ticket"), Released())
        .def("wait", &wait, nb::arg("ticket"), nb::arg("seconds") = -1.0)
        .def("done", &DiskQueue::done, nb::arg("ticket"), Released())
        .def("drop", &DiskQueue::drop, nb::arg("ticket"), Released())
        .def("close", &DiskQueue::close, Released())
        .def_prop_ro("bytes", &DiskQueue::bytes)
        .def_prop_ro("busy_ns", &DiskQueue::busy_ns)
        .def_prop_ro("direct", &DiskQueue::direct);
}
