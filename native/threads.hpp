// What threads of this module wait with: a spin, then a futex; a clock; forks.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace headrace {

using Clock = std::chrono::steady_clock;

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen);
void futex_wake_all(std::atomic<std::uint32_t>& word);

// How often this process was forked off: a larger number than at its making tells a child that an
// object's threads are the parent's.
int forks();

// Where the thread runs from now on; cpu < 0 = anywhere. A refusal of the system is ignored.
void pin(std::thread& thread, int cpu);

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Longer than the gap between two calls of a step, shorter than a scheduler's slice.
inline constexpr auto kIdleSpin = std::chrono::microseconds(50);

// True as soon as `ready` is; false after `limit` of spinning.
template <class Ready>
bool spin(Clock::duration limit, Ready&& ready) {
    const auto end = Clock::now() + limit;
    do {
        for (int i = 0; i < 64; ++i) {
            if (ready()) return true;
            relax();
        }
    } while (Clock::now() < end);
    return ready();
}

// Returns at `end`, or as soon as `enough` is true, which is looked at every millisecond.
template <class Enough>
void sleep_until(Clock::time_point end, Enough&& enough) {
    constexpr auto kLate = std::chrono::microseconds(120);  // how late a sleeper may wake
    constexpr auto kLook = std::chrono::milliseconds(1);
    while (!enough()) {
        const auto left = end - Clock::now();
        if (left <= Clock::duration::zero()) return;
        if (left > kLate) {
            std::this_thread::sleep_for(std::min<Clock::duration>(left - kLate, kLook));
        } else {
            relax();
        }
    }
}

// A number that only grows, and that threads wait for.
class Counter {
  public:
    std::uint64_t value() const { return value_.load(std::memory_order_acquire); }

    void advance(std::uint64_t by = 1) {
        value_.fetch_add(by, std::memory_order_seq_cst);
        nudge();
    }

    // Sleepers wake and look again.
    void nudge() {
        word_.fetch_add(1, std::memory_order_seq_cst);
        if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake_all(word_);
    }

    // Sleeps until a nudge, unless `ready` already.
    template <class Ready>
    void sleep(Ready&& ready) {
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        const std::uint32_t seen = word_.load(std::memory_order_seq_cst);
        if (!ready()) futex_wait(word_, seen);
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }

    void wait_for(std::uint64_t target) {
        const auto reached = [&] { return value_.load(std::memory_order_seq_cst) >= target; };
        while (!spin(kIdleSpin, reached)) sleep(reached);
    }

  private:
    alignas(64) std::atomic<std::uint64_t> value_{0};
    std::atomic<std::uint32_t> word_{0};
    std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace headrace
