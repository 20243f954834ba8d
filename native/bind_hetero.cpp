// Python face of plan.hpp, link.hpp, service.hpp and the parts of expert.hpp. Addresses come as
// integers; calls go through the tape of the pool that is named first.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bind.hpp"
#include "link.hpp"
#include "plan.hpp"
#include "service.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using headrace::ExpertLayer;
using headrace::HostService;
using headrace::Link;
using headrace::Pool;
using Pair = std::pair<std::int64_t, std::int64_t>;

// Shared by the copies that are queued and by tapes, which may outlive the Python object.
struct RowSpans {
    std::shared_ptr<const headrace::RowSpans> of;
};

void experts_parts(Pool& p, Address x, int tokens, Address ids, int top_k, const ExpertLayer& layer,
                   Address parts, bool exact) {
    p.make([=, &layer](Pool& pool) {
        const Pool::Busy busy(pool);
        headrace::experts_parts(pool, at<const float>(x), tokens, at<const std::int32_t>(ids),
                                top_k, layer, at<float>(parts), exact);
    });
}

void combine(Pool& p, Address parts, int tokens, int top_k, int hidden, Address ids,
             Address weights, Address y) {
    p.make([=](Pool& pool) {
        const Pool::Busy busy(pool);
        headrace::combine(pool, at<const float>(parts), tokens, top_k, hidden,
                          at<const std::int32_t>(ids), at<const float>(weights), at<float>(y));
    });
}

void plan(Pool& p, Address ids, int tokens, int top_k, std::int64_t base, int experts,
          Address slot_of, std::int64_t rows, Address row_of, int slots, Address sums,
          Address value, Address clock, bool lru, Address quota, int quotas, Address slot_ids,
          Address host_ids, Address fill_experts, Address fill_slots, Address counts, int staging,
          Address shift) {
    using I32 = std::int32_t;
    using I64 = std::int64_t;
    const headrace::PlanCall call{{at<I32>(ids), tokens, top_k},
                                  {at<I32>(slot_of), rows, at<I32>(row_of), slots, at<I64>(sums),
                                   at<I64>(value), at<I64>(clock), lru, base, experts},
                                  at<I32>(quota),
                                  quotas,
                                  at<I32>(slot_ids),
                                  at<I32>(host_ids),
                                  at<I32>(fill_experts),
                                  at<I32>(fill_slots),
                                  at<I32>(counts),
                                  staging,
                                  at<I32>(shift)};
    p.make([=](Pool& pool) { headrace::plan(pool, call); });
}

void observe(Pool& p, Address ids, int tokens, int top_k, std::int64_t base, int experts,
             std::int64_t rows, Address sums, Address value, Pair left_q24, Pair gain_q32) {
    const headrace::ObserveCall call{{at<std::int32_t>(ids), tokens, top_k},
                                     {nullptr, rows, nullptr, 0, at<std::int64_t>(sums),
                                      at<std::int64_t>(value), nullptr, false, base, experts},
                                     {left_q24.first, left_q24.second},
                                     {gain_q32.first, gain_q32.second}};
    p.make([=](Pool& pool) { headrace::observe(pool, call); });
}

void pace(Pool& p, std::int64_t nanoseconds) {
    p.make([=](Pool&) {
        headrace::sleep_until(headrace::Clock::now() + std::chrono::nanoseconds(nanoseconds),
                              [] { return false; });
    });
}

void make_spans(RowSpans* self, const std::vector<std::vector<Address>>& sources,
                std::vector<std::size_t> nbytes, std::vector<std::size_t> offsets,
                std::size_t forms, std::vector<std::uint8_t> form_of) {
    auto spans = std::make_shared<headrace::RowSpans>();
    spans->nbytes = std::move(nbytes);
    spans->offsets = std::move(offsets);
    spans->forms = std::max<std::size_t>(forms, 1);
    spans->form_of = std::move(form_of);
    for (const auto& expert : sources) {
        if (expert.size() != spans->spans())
            throw std::invalid_argument("RowSpans: every expert needs one source per span");
        for (const Address a : expert) spans->sources.push_back(at<const std::byte>(a));
    }
    spans->check();
    new (self) RowSpans{std::move(spans)};
}

void copy_rows(Link& link, Pool& p, const RowSpans& spans, Address experts, Address slots,
               Address count, Address base, std::size_t slot_nbytes, bool poison) {
    const headrace::RowCopies copies{at<std::int32_t>(experts),
                                     at<std::int32_t>(slots),
                                     at<std::int32_t>(count),
                                     at<std::byte>(base),
                                     slot_nbytes,
                                     poison};
    p.make([&link, rows = spans.of, copies](Pool&) { link.copy_rows(rows, copies); });
}

void copy(Link& link, Pool& p, Address to, Address from, std::size_t nbytes) {
    p.make([=, &link](Pool&) { link.copy(at<std::byte>(to), at<const std::byte>(from), nbytes); });
}

void ring(HostService& service, Pool& p, Address x, int tokens, Address ids, int top_k,
          const ExpertLayer& layer, Address parts, bool exact) {
    const HostService::Task task{at<float>(x),     tokens, at<std::int32_t>(ids), top_k, &layer,
                                 at<float>(parts), exact};
    p.make([&service, task](Pool&) { service.ring(task); });
}

void bind_link(nb::module_& m) {
    nb::class_<RowSpans>(m, "RowSpans")
        .def("__init__", &make_spans, "sources"_a, "nbytes"_a, "offsets"_a, "forms"_a = 1,
             "form_of"_a = std::vector<std::uint8_t>{})
        .def_prop_ro("experts", [](const RowSpans& s) { return s.of->experts(); })
        .def_prop_ro("row_nbytes", [](const RowSpans& s) { return s.of->row_nbytes(); })
        .def_prop_ro("slot_nbytes", [](const RowSpans& s) { return s.of->slot_nbytes(); });
    nb::class_<Link>(m, "Link")
        .def(nb::init<double, int, bool>(), "bytes_per_s"_a = 0.0, "cpu"_a = -1, "staged"_a = false)
        .def_prop_rw("rate", &Link::rate, &Link::set_rate)
        .def("copy_rows", &copy_rows, "pool"_a, "spans"_a, "experts"_a, "slots"_a, "count"_a,
             "base"_a, "slot_nbytes"_a, "poison"_a, Released())
        .def("copy", &copy, "pool"_a, "dst"_a, "src"_a, "nbytes"_a, Released())
        .def(
            "wait", [](Link& link, Pool& p) { p.make([&link](Pool&) { link.wait(); }); }, "pool"_a,
            Released())
        .def("mark", &Link::mark)
        .def("wait_for", &Link::wait_for, "mark"_a, Released())
        .def("observations", &Link::observations)
        .def("close", &Link::close, Released());
}

void bind_service(nb::module_& m) {
    nb::class_<HostService>(m, "HostService")
        .def(nb::init<Pool&, int>(), "pool"_a, "cpu"_a = -1, nb::keep_alive<1, 2>())
        .def(
            "alert", [](HostService& s, Pool& p) { p.make([&s](Pool&) { s.alert(); }); }, "pool"_a,
            Released())
        .def("ring", &ring, "pool"_a, "x"_a, "tokens"_a, "ids"_a, "top_k"_a, "layer"_a, "parts"_a,
             "exact"_a, Released())
        .def(
            "wait", [](HostService& s, Pool& p) { p.make([&s](Pool&) { s.wait(); }); }, "pool"_a,
            Released())
        .def("observations", &HostService::observations)
        .def("close", &HostService::close, Released());
}

}  // namespace

void bind_hetero(nb::module_& m, nb::class_<Pool>& pool) {
    pool.def("experts_parts", &experts_parts, "x"_a, "tokens"_a, "ids"_a, "top_k"_a, "layer"_a,
             "parts"_a, "exact"_a, Released())
        .def("combine", &combine, "parts"_a, "tokens"_a, "top_k"_a, "hidden"_a, "ids"_a,
             "weights"_a, "y"_a, Released())
        .def("plan", &plan, nb::kw_only(), "ids"_a, "tokens"_a, "top_k"_a, "base"_a, "experts"_a,
             "slot_of"_a, "rows"_a, "row_of"_a, "slots"_a, "sums"_a, "value"_a, "clock"_a, "lru"_a,
             "quota"_a, "quotas"_a, "slot_ids"_a, "host_ids"_a, "fill_experts"_a, "fill_slots"_a,
             "counts"_a, "staging"_a, "shift"_a = 0, Released())
        .def("observe", &observe, nb::kw_only(), "ids"_a, "tokens"_a, "top_k"_a, "base"_a,
             "experts"_a, "rows"_a, "sums"_a, "value"_a, "left_q24"_a, "gain_q32"_a, Released())
        .def("pace", &pace, "nanoseconds"_a, Released());
    bind_link(m);
    bind_service(m);
}
