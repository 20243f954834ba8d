// The copy engine of an emulated device: one thread, first in first out, at a set rate.
//
// Invariants: what is asked for is copied in the order of the calls, each byte once; a call neither
// allocates nor waits, unless thousands of rows are waiting before it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "observations.hpp"
#include "threads.hpp"

namespace headrace {

// How the expert rows of one layer lie on the host and within a slot.
struct RowSpans {
    std::vector<const std::byte*> sources;  // [expert, span]
    std::vector<std::size_t> nbytes;        // [form, span]; 0 for a span that a form lacks
    std::vector<std::size_t> offsets;       // [form, span]
    std::size_t forms = 1;
    std::vector<std::uint8_t> form_of;  // of each expert; empty = all have the first

    std::size_t spans() const { return nbytes.size() / forms; }
    int experts() const { return static_cast<int>(sources.size() / spans()); }
    // First of the spans of this expert's form.
    std::size_t first(std::size_t expert) const {
        return form_of.empty() ? 0 : form_of[expert] * spans();
    }
    std::size_t row_nbytes() const;   // on average, where experts differ
    std::size_t slot_nbytes() const;  // that any row needs
    // Throws std::invalid_argument for sizes that cannot be.
    void check() const;
};

// Rows experts[i] to base + slots[i] * slot_nbytes, i < *count.
struct RowCopies {
    const std::int32_t *experts, *slots, *count;
    std::byte* base;
    std::size_t slot_nbytes;
    bool poison;  // the slots are filled with 0xFF at once
};

// All calls are made by one thread at a time. std::runtime_error after `close` and in a forked
// child.
class Link {
  public:
    // 0 bytes/s = as fast as the memory goes. `cpu` < 0 = anywhere. `staged`: every piece goes
    // through a buffer of its own first, as from memory that cannot be pinned.
    explicit Link(double bytes_per_s = 0.0, int cpu = -1, bool staged = false);
    ~Link();
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    double rate() const { return rate_.load(std::memory_order_relaxed); }
    void set_rate(double bytes_per_s);

    // Reads the numbers before it returns. std::invalid_argument for one that cannot be.
    void copy_rows(const std::shared_ptr<const RowSpans>& spans, const RowCopies& copies);
    void copy(std::byte* to, const std::byte* from, std::size_t nbytes);
    std::uint64_t mark() const { return pushed_; }
    void wait_for(std::uint64_t mark);
    void wait() { wait_for(pushed_); }
    std::vector<Observations::Pair> observations() { return observations_.take(); }
    void close();  // finishes what was asked for, at full speed; idempotent

  private:
    // One row, or one range where there are no spans.
    struct Entry {
        std::shared_ptr<const RowSpans> spans;
        std::int32_t expert = 0;
        std::byte* to = nullptr;
        const std::byte* from = nullptr;
        std::size_t nbytes = 0;
        // Of the transfer that it belongs to.
        std::uint32_t index = 0, rows = 0;
        Clock::time_point asked;
        std::uint64_t observation = 0;
    };
    // Keeps one transfer to the rate.
    struct Pace {
        double rate = 0.0;
        Clock::time_point begin;
        double nbytes = 0.0;
    };

    void check_open() const;
    void push(Entry entry);
    void publish() { queued_.advance(pushed_ - queued_.value()); }
    void serve();
    void run(Entry& entry);
    void move(std::byte* to, const std::byte* from, std::size_t nbytes);

    std::vector<Entry> ring_;
    std::uint64_t pushed_ = 0;
    Counter queued_, done_;
    std::atomic<double> rate_{0.0};
    std::atomic<bool> stop_{false};
    Observations observations_;
    std::vector<std::byte> buffer_;  // empty = not staged
    Pace pace_;                      // the thread's own
    Clock::time_point began_;        // the thread's own: the transfer at hand
    Clock::time_point ended_;        // the thread's own: the transfer before
    int forks_ = 0;
    std::thread thread_;
};

}  // namespace headrace
