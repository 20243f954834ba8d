// Persistent workers that share one task at a time, handed out in small pieces.
//
// Invariant: a piece is taken by exactly one thread, and `parallel` returns after every piece is
// done. With `rescue`, a piece whose owner was descheduled is computed a second time by the
// submitter; exactly one of the two results is committed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "arena.hpp"
#include "table.hpp"

namespace headrace {

// A task whose pieces may be computed twice. It lives in the call's Arena together with all that
// `compute` reads, except weights.
struct Work {
    // Computes one piece into `scratch`, private to the thread.
    virtual void compute(std::size_t piece, std::byte* scratch) const = 0;
    // Moves the result from `scratch` to where it belongs; once per piece.
    virtual void commit(std::size_t piece, const std::byte* scratch) const = 0;

  protected:
    ~Work() = default;
};

class Pool {
  public:
    // `threads` counts the submitter; 0 = one per physical core of the affinity mask. `isa` caps
    // the kernels; "" = the best. Throws std::invalid_argument for an unknown `isa`.
    // With `rescue`, weights must stay mapped until `quiesce` or `close`: a call does not wait for
    // a worker that was descheduled, which may read them later (and drop what it computes).
    explicit Pool(int threads = 0, bool pin = true, const std::string& isa = "",
                  bool rescue = false);
    Pool(int threads, bool pin, const KernelTable& kernels, bool rescue);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    void close();    // idempotent; later calls run on the submitter alone
    void quiesce();  // returns when no worker reads any memory of an earlier call
    void rouse();    // workers that sleep wake, and look out for a task a while
    int threads() const { return threads_; }
    const KernelTable& kernels() const { return *kernels_; }
    std::uint64_t busy_ns() const { return busy_ns_.load(std::memory_order_relaxed); }

    // Calls fn(size_t piece, int worker) for every piece, 0 <= worker < threads(). `fn` must not
    // throw. Pieces are handed out in ascending order.
    template <class F>
    void parallel(std::size_t pieces, F&& fn) {
        using Fn = std::remove_reference_t<F>;
        const Job job{[](const Job& j, std::size_t piece, int worker) {
                          (*static_cast<Fn*>(const_cast<void*>(j.context)))(piece, worker);
                          return true;
                      },
                      &fn};
        run(pieces, job);
    }

    // Whether a call of so many tokens is worth rescuing: its inputs are copied, its pieces short.
    bool rescues(int tokens) const { return rescue_ && tokens <= 16; }
    // Memory for one call that no worker of an earlier call looks at any more.
    Arena& begin_call();
    // Runs every piece of `work`, which lies in `arena`, with `scratch_nbytes` for each thread.
    // With `rescue`, workers may still be inside `compute` after this has returned.
    void perform(Arena& arena, const Work& work, std::size_t pieces, std::size_t scratch_nbytes,
                 bool rescue);

    // Memory of one worker for the length of a call, 64-byte aligned. Grow it before `parallel`.
    void reserve_scratch(std::size_t nbytes);
    std::byte* scratch(int worker) { return scratch_[static_cast<std::size_t>(worker)].data; }

    // What one call of the public face does. It is kept by a tape, so it holds addresses, no
    // Python.
    using Call = std::function<void(Pool&)>;

    // Makes the call, and adds it to the tape that is being recorded, if one is.
    void make(Call call);
    void record(std::vector<Call>* tape) { tape_ = tape; }  // nullptr ends it

    // Counts the wall time of one public call.
    class Busy {
      public:
        explicit Busy(Pool& pool) : pool_(pool), start_(std::chrono::steady_clock::now()) {}
        ~Busy() {
            const auto spent = std::chrono::steady_clock::now() - start_;
            pool_.busy_ns_.fetch_add(
                static_cast<std::uint64_t>(std::chrono::nanoseconds(spent).count()),
                std::memory_order_relaxed);
        }
        Busy(const Busy&) = delete;
        Busy& operator=(const Busy&) = delete;

      private:
        Pool& pool_;
        std::chrono::steady_clock::time_point start_;
    };

  private:
    // What a worker needs to run pieces. Its words are copied before a piece is taken.
    struct Job {
        // False where the piece was already committed by another thread.
        bool (*run)(const Job& job, std::size_t piece, int worker);
        const void* context;
    };
    struct Scratch {
        std::byte* data = nullptr;
        std::size_t nbytes = 0;
    };
    struct Shared;   // what workers and submitter both touch
    struct Twofold;  // a task whose pieces may be computed twice

    bool alone() const;
    // Posts the task and takes part; some pieces may still be in other hands afterwards.
    void post_and_work(std::size_t pieces, const Job& job);
    void run(std::size_t pieces, const Job& job);

    int threads_ = 1;
    const KernelTable* kernels_ = nullptr;
    std::unique_ptr<Shared> shared_;
    std::vector<std::thread> workers_;
    std::vector<Scratch> scratch_;
    std::vector<std::unique_ptr<Arena>> arenas_;
    std::atomic<std::uint64_t> busy_ns_{0};
    int forks_ = 0;  // a fork copies the pool without its workers: a child works alone
    std::vector<Call>* tape_ = nullptr;
    bool rescue_ = false;
};

}  // namespace headrace
