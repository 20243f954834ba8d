// Experts on a pool of their own, while the caller goes on: a task is two numbers, rung and done.
//
// Invariant: the service's thread is the only submitter of its pool.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include "expert.hpp"
#include "observations.hpp"
#include "threads.hpp"

namespace headrace {

// All calls are made by one thread at a time. std::runtime_error after `close` and in a forked
// child.
class HostService {
  public:
    // What `experts_parts` takes. All memory stays as it is until `wait`.
    struct Task {
        const float* x;
        int tokens;
        const std::int32_t* ids;
        int top_k;
        const ExpertLayer* layer;
        float* parts;
        bool exact;
    };

    // `pool` must outlive the service. `cpu` < 0 = anywhere.
    explicit HostService(Pool& pool, int cpu = -1);
    ~HostService();
    HostService(const HostService&) = delete;
    HostService& operator=(const HostService&) = delete;

    void alert();                 // a ring will come soon: its threads wake, and look out for it
    void ring(const Task& task);  // after the one before is done
    void wait();                  // until all is done; throws what a task threw
    std::vector<Observations::Pair> observations() { return observations_.take(); }
    void close();  // finishes what was rung for; idempotent

  private:
    void check_open() const;
    void serve();
    void run();
    int distinct();

    Pool& pool_;
    Counter rung_, done_;
    std::uint64_t rings_ = 0;  // the caller's own
    std::atomic<bool> alerted_{false}, stop_{false};
    // The task at hand: the caller's until the ring, the thread's until done.
    Task task_{};
    Clock::time_point rang_;
    std::uint64_t observation_ = 0;
    std::exception_ptr failed_;
    std::vector<bool> seen_;  // the thread's own
    Observations observations_;
    int forks_ = 0;
    std::thread thread_;
};

}  // namespace headrace
