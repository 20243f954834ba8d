// What was timed, in the order in which it was asked for, until somebody takes it.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace headrace {

class Observations {
  public:
    using Pair = std::pair<std::int64_t, std::int64_t>;  // how much, nanoseconds

    // A place in the order. The oldest is forgotten where there is no room.
    std::uint64_t begin() {
        const std::lock_guard lock(mutex_);
        if (next_ - first_ == kMost) ++first_;
        ring_[next_ % kMost] = {{}, false};
        return next_++;
    }

    void end(std::uint64_t place, std::int64_t amount, std::int64_t nanoseconds) {
        const std::lock_guard lock(mutex_);
        if (place >= first_) ring_[place % kMost] = {{amount, nanoseconds}, true};
    }

    // All that have ended, up to the first that has not.
    std::vector<Pair> take() {
        const std::lock_guard lock(mutex_);
        std::vector<Pair> out;
        for (; first_ < next_ && ring_[first_ % kMost].ended; ++first_)
            out.push_back(ring_[first_ % kMost].pair);
        return out;
    }

  private:
    static constexpr std::uint64_t kMost = 4096;
    struct Place {
        Pair pair;
        bool ended;
    };
    std::mutex mutex_;
    std::uint64_t first_ = 0, next_ = 0;
    std::array<Place, kMost> ring_{};
};

}  // namespace headrace
