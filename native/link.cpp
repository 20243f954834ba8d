#include "link.hpp"

#include <sys/prctl.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace headrace {
namespace {

constexpr std::uint64_t kEntries = 4096;
constexpr std::size_t kPieceNbytes = 256 << 10;
constexpr double kLongest = 1e6;  // seconds for one transfer; more would not fit the clock

// A copy that leaves the caches alone, as a copy engine does: what is written is not read first.
void stream(std::byte* to, const std::byte* from, std::size_t n) {
#ifdef __SSE2__
    const std::size_t head = std::min(n, (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64);
    std::memcpy(to, from, head);
    std::size_t at = head;
    for (; at + 64 <= n; at += 64) {
        __m128i line[4];
        for (std::size_t i = 0; i < 4; ++i)
            line[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at) + i);
        for (std::size_t i = 0; i < 4; ++i)
            _mm_stream_si128(reinterpret_cast<__m128i*>(to + at) + i, line[i]);
    }
    _mm_sfence();
    std::memcpy(to + at, from + at, n - at);
#else
    std::memcpy(to, from, n);
#endif
}

void require(bool fits, const std::string& what) {
    if (!fits) throw std::invalid_argument(what);
}

}  // namespace

std::size_t RowSpans::row_nbytes() const {
    std::size_t all = 0;
    const std::size_t rows = form_of.empty() ? 1 : form_of.size();
    for (std::size_t e = 0; e < rows; ++e)
        for (std::size_t i = 0; i < spans(); ++i) all += nbytes[first(e) + i];
    return (all + rows - 1) / rows;
}

std::size_t RowSpans::slot_nbytes() const {
    std::size_t end = 0;
    for (std::size_t i = 0; i < nbytes.size(); ++i) end = std::max(end, offsets[i] + nbytes[i]);
    return end;
}

void RowSpans::check() const {
    require(forms > 0 && nbytes.size() >= forms && nbytes.size() % forms == 0 &&
                nbytes.size() == offsets.size(),
            "RowSpans: nbytes and offsets must have one entry per span, at least one");
    require(!sources.empty() && sources.size() % spans() == 0,
            "RowSpans: every expert needs one source per span");
    require(std::find(sources.begin(), sources.end(), nullptr) == sources.end(),
            "RowSpans: null address in sources");
    require(form_of.empty() ? forms == 1 : form_of.size() * spans() == sources.size(),
            "RowSpans: several forms need the form of every expert");
    require(std::all_of(form_of.begin(), form_of.end(), [&](auto form) { return form < forms; }),
            "RowSpans: a form that is none of them");
}

Link::Link(double bytes_per_s, int cpu, bool staged)
    : ring_(kEntries), buffer_(staged ? kPieceNbytes : 0), forks_(forks()) {
    set_rate(bytes_per_s);
    thread_ = std::thread([this] { serve(); });
    pin(thread_, cpu);
}

Link::~Link() { close(); }

void Link::set_rate(double bytes_per_s) {
    require(std::isfinite(bytes_per_s) && bytes_per_s >= 0.0,
            "Link: a rate of " + std::to_string(bytes_per_s) +
                " bytes/s; expected a positive number, or 0 for no limit");
    rate_.store(bytes_per_s, std::memory_order_relaxed);
}

void Link::close() {
    if (!thread_.joinable()) return;
    if (forks_ != forks()) return thread_.detach();
    stop_.store(true, std::memory_order_seq_cst);
    queued_.nudge();
    thread_.join();
}

void Link::check_open() const {
    if (!thread_.joinable()) throw std::runtime_error("Link: it is closed");
    if (forks_ != forks()) throw std::runtime_error("Link: its thread is the parent process's");
}

void Link::copy_rows(const std::shared_ptr<const RowSpans>& spans, const RowCopies& copies) {
    check_open();
    const std::int32_t count = *copies.count;
    require(copies.slot_nbytes >= spans->slot_nbytes(), "Link: a slot is smaller than a row");
    for (std::int32_t i = 0; i < count; ++i) {
        require(copies.experts[i] >= 0 && copies.experts[i] < spans->experts(),
                "Link: expert " + std::to_string(copies.experts[i]) + " in a layer of " +
                    std::to_string(spans->experts()));
        require(copies.slots[i] >= 0, "Link: slot " + std::to_string(copies.slots[i]));
    }
    const std::uint64_t observation = observations_.begin();
    if (count <= 0) return observations_.end(observation, 0, 0);
    const auto asked = Clock::now();
    const auto slot = [&](std::int32_t i) {
        return copies.base + static_cast<std::size_t>(copies.slots[i]) * copies.slot_nbytes;
    };
    if (copies.poison)
        for (std::int32_t i = 0; i < count; ++i) std::memset(slot(i), 0xFF, copies.slot_nbytes);
    for (std::int32_t i = 0; i < count; ++i)
        push({spans, copies.experts[i], slot(i), nullptr, 0, static_cast<std::uint32_t>(i),
              static_cast<std::uint32_t>(count), asked, observation});
    publish();
}

void Link::copy(std::byte* to, const std::byte* from, std::size_t nbytes) {
    check_open();
    push({nullptr, 0, to, from, nbytes, 0, 1, Clock::now(), 0});
    publish();
}

void Link::wait_for(std::uint64_t mark) {
    require(mark <= pushed_, "Link: a mark that was never given");
    if (done_.value() >= mark) return;
    check_open();
    done_.wait_for(mark);
}

void Link::push(Entry entry) {
    if (pushed_ - done_.value() == kEntries) {
        publish();
        done_.wait_for(pushed_ - kEntries + 1);
    }
    ring_[pushed_ % kEntries] = std::move(entry);
    ++pushed_;
}

void Link::serve() {
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);  // short sleeps are meant
    for (std::uint64_t taken = 0;;) {
        const auto more = [&] { return queued_.value() > taken; };
        if (!more()) {
            const auto ready = [&] { return more() || stop_.load(std::memory_order_seq_cst); };
            if (stop_.load(std::memory_order_seq_cst) && !more()) return;
            if (!spin(kIdleSpin, ready)) queued_.sleep(ready);
            continue;
        }
        run(ring_[taken % kEntries]);
        ++taken;
        done_.advance();
    }
}

void Link::run(Entry& entry) {
    const auto now = Clock::now();
    if (entry.index == 0) {
        began_ = std::max(entry.asked, ended_);
        pace_ = {rate(), now, 0.0};
    }
    if (entry.spans == nullptr) {
        move(entry.to, entry.from, entry.nbytes);
    } else {
        const RowSpans& spans = *entry.spans;
        const auto expert = static_cast<std::size_t>(entry.expert);
        const std::byte* const* sources = &spans.sources[expert * spans.spans()];
        const std::size_t first = spans.first(expert);
        for (std::size_t i = 0; i < spans.spans(); ++i)
            move(entry.to + spans.offsets[first + i], sources[i], spans.nbytes[first + i]);
    }
    if (entry.index + 1 < entry.rows) return;
    ended_ = Clock::now();
    if (entry.spans == nullptr) return;
    entry.spans.reset();
    observations_.end(
        entry.observation, entry.rows,
        std::chrono::duration_cast<std::chrono::nanoseconds>(ended_ - began_).count());
}

void Link::move(std::byte* to, const std::byte* from, std::size_t nbytes) {
    for (std::size_t at = 0; at < nbytes; at += kPieceNbytes) {
        const std::size_t n = std::min(kPieceNbytes, nbytes - at);
        const std::byte* source = from + at;
        if (!buffer_.empty()) {
            std::memcpy(buffer_.data(), source, n);
            source = buffer_.data();
        }
        stream(to + at, source, n);
        const double now_rate = rate();
        if (now_rate != pace_.rate) pace_ = {now_rate, Clock::now(), 0.0};
        pace_.nbytes += static_cast<double>(n);
        if (pace_.rate <= 0.0) continue;
        const std::chrono::duration<double> spent(std::min(pace_.nbytes / pace_.rate, kLongest));
        // A link that is stopped, or was given another rate, does not sleep on.
        const auto enough = [&] {
            return stop_.load(std::memory_order_relaxed) || rate() != pace_.rate;
        };
        sleep_until(pace_.begin + std::chrono::duration_cast<Clock::duration>(spent), enough);
    }
}

}  // namespace headrace
