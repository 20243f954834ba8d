// Python face of io.hpp: huge-page memory and FileReader. Waiting releases the GIL and lets Ctrl-C
// through.
#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "crc32c.hpp"
#include "io.hpp"

namespace nb = nanobind;

namespace {

using headrace::FileReader;
using PythonRange = std::tuple<int64_t, int64_t, uint64_t>;

// OSError(errno, text, path) lets Python choose the subclass: FileNotFoundError, PermissionError,
// ...
void translate_file_error(const std::exception_ptr& raised, void*) {
    try {
        std::rethrow_exception(raised);
    } catch (const headrace::FileError& e) {
        const nb::object arguments = nb::make_tuple(
            e.reason, nb::str(e.what()), nb::steal(PyUnicode_DecodeFSDefault(e.path.c_str())));
        PyErr_SetObject(PyExc_OSError, arguments.ptr());
    }
}

uint64_t alloc(int64_t nbytes) {
    if (nbytes <= 0)
        throw std::invalid_argument("found a request for " + std::to_string(nbytes) +
                                    " bytes; expected at least 1");
    void* address = nbytes > (int64_t{1} << 46) ? nullptr : headrace::alloc_huge(nbytes);
    if (address == nullptr) {
        PyErr_Format(PyExc_MemoryError,
                     "the system refused %lld bytes; expected that much free memory (free some, or "
                     "ask for less)",
                     static_cast<long long>(nbytes));
        throw nb::python_error();
    }
    return reinterpret_cast<uint64_t>(address);
}

void free_memory(uint64_t address, int64_t nbytes) {
    if (nbytes <= 0)
        throw std::invalid_argument("found " + std::to_string(nbytes) +
                                    " bytes to free; expected what alloc was asked for");
    const nb::gil_scoped_release released;
    headrace::free_huge(reinterpret_cast<void*>(address), nbytes);
}

void discard_memory(uint64_t address, int64_t nbytes) {
    if (nbytes < 0)
        throw std::invalid_argument("found " + std::to_string(nbytes) +
                                    " bytes to discard; expected at least 0");
    const nb::gil_scoped_release released;
    headrace::discard_huge(reinterpret_cast<void*>(address), nbytes);
}

void make_reader(FileReader* place, const std::string& path, const std::vector<PythonRange>& ranges,
                 int threads, int64_t piece_bytes) {
    std::vector<headrace::FileRange> native;
    native.reserve(ranges.size());
    for (const auto& [offset, bytes, destination] : ranges)
        native.push_back({offset, bytes, reinterpret_cast<char*>(destination)});
    const nb::gil_scoped_release released;
    new (place) FileReader(path, std::move(native), threads, piece_bytes);
}

bool wait(FileReader& reader, double seconds) {
    using Clock = std::chrono::steady_clock;
    const auto started = Clock::now();
    while (true) {
        bool done = false;
        bool idle = false;
        double left = 0.1;
        if (seconds >= 0)
            left = seconds - std::chrono::duration<double>(Clock::now() - started).count();
        {
            const nb::gil_scoped_release released;
            done = reader.wait(std::clamp(left, 0.0, 0.1));
            idle = reader.idle();
        }
        if (done || idle) {
            // A last look: the reader may have finished or failed between the two calls.
            const nb::gil_scoped_release released;
            return reader.wait(0.0);
        }
        if (seconds >= 0 && left <= 0.1) return false;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
}

uint32_t checksum(uint64_t address, int64_t nbytes, uint32_t before, bool portable) {
    if (nbytes < 0)
        throw std::invalid_argument("found " + std::to_string(nbytes) +
                                    " bytes to sum up; expected at least 0");
    const void* data = reinterpret_cast<const void*>(address);
    const nb::gil_scoped_release released;
    return portable ? headrace::crc32c_by_table(data, nbytes, before)
                    : headrace::crc32c(data, nbytes, before);
}

// A thread without Python: it can neither hold the GIL nor be in the way when the interpreter ends.
void load_ahead(const std::string& path) {
    std::thread([path] {
        static_cast<void>(dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL));
    }).detach();
}

}  // namespace

void bind_io(nb::module_& m) {
    nb::register_exception_translator(translate_file_error);
    m.def("alloc", &alloc, nb::arg("nbytes"));
    m.def("free", &free_memory, nb::arg("address"), nb::arg("nbytes"));
    m.def("discard", &discard_memory, nb::arg("address"), nb::arg("nbytes"));
    m.def("crc32c", &checksum, nb::arg("address"), nb::arg("nbytes"), nb::arg("before") = 0u,
          nb::arg("portable") = false);
    m.def("load_ahead", &load_ahead, nb::arg("path"));
    nb::class_<FileReader>(m, "FileReader")
        .def("__init__", &make_reader, nb::arg("path"), nb::arg("ranges"), nb::arg("threads") = 4,
             nb::arg("piece_bytes") = int64_t{4} << 20)
        .def_prop_ro("done_bytes", &FileReader::done_bytes)
        .def_prop_ro("direct", &FileReader::direct)
        .def("wait", &wait, nb::arg("seconds") = -1.0)
        .def("cancel", &FileReader::cancel);
}
