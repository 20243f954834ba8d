#include "pool.hpp"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <utility>

#include "cpu.hpp"
#include "threads.hpp"

namespace headrace {
namespace {

constexpr int kMaxThreads = 1024;

// Several times what a piece takes. A piece that lasts longer has lost its core.
constexpr auto kPatience = std::chrono::microseconds(60);

}  // namespace

// `turn` is epoch << 32 | pieces not yet taken. A piece is taken by compare-and-swap on it, so a
// late worker can neither take a piece of a newer task nor act on an older job: the job's words
// are written only while `turn` shows no piece left, and read before the piece is taken.
struct Pool::Shared {
    alignas(64) std::atomic<std::uint64_t> turn{0};
    alignas(64) std::atomic<std::uint32_t> ring{0};  // epoch of the newest task
    std::atomic<std::uint32_t> sleepers{0};
    std::atomic<bool> stop{false};
    alignas(64) std::atomic<std::uint32_t> done{0};  // pieces finished of the newest task
    std::atomic<std::uint32_t> submitter_sleeps{0};
    alignas(64) std::atomic<bool (*)(const Job&, std::size_t, int)> run{nullptr};
    std::atomic<const void*> context{nullptr};
    std::atomic<std::uint32_t> pieces{0};
    // Per thread: the task whose memory it may be reading, 0 for none. Set before a piece is taken.
    struct alignas(64) Reading {
        std::atomic<std::uint32_t> epoch{0};
    };
    std::vector<Reading> reading;

    explicit Shared(int threads) : reading(static_cast<std::size_t>(threads)) {}

    static std::uint32_t after(std::uint32_t epoch) { return epoch + 1 == 0 ? 1 : epoch + 1; }

    void post(const Job& job, std::uint32_t count) {
        run.store(job.run, std::memory_order_relaxed);
        context.store(job.context, std::memory_order_relaxed);
        pieces.store(count, std::memory_order_relaxed);
        done.store(0, std::memory_order_relaxed);
        const std::uint32_t epoch = after(ring.load(std::memory_order_relaxed));
        turn.store(std::uint64_t{epoch} << 32 | count, std::memory_order_release);
        ring.store(epoch, std::memory_order_seq_cst);
        if (sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(ring);
    }

    // Takes one piece of task `epoch` and runs it; false when none is left.
    bool work_once(std::uint32_t epoch, int worker) {
        std::atomic<std::uint32_t>& mine = reading[static_cast<std::size_t>(worker)].epoch;
        mine.store(epoch, std::memory_order_seq_cst);
        const bool worked = work_on(epoch, worker);
        mine.store(0, std::memory_order_release);
        return worked;
    }

    // True if a thread may be reading memory of a task from `first` to `last`.
    bool anyone_reads(std::uint32_t first, std::uint32_t last) const {
        return std::any_of(reading.begin(), reading.end(), [&](const Reading& r) {
            const std::uint32_t epoch = r.epoch.load(std::memory_order_seq_cst);
            return epoch != 0 && epoch - first <= last - first;
        });
    }

    bool work_on(std::uint32_t epoch, int worker) {
        std::uint64_t seen = turn.load(std::memory_order_acquire);
        Job job{};
        std::uint32_t count = 0;
        for (;;) {
            const auto left = static_cast<std::uint32_t>(seen);
            if (left == 0 || static_cast<std::uint32_t>(seen >> 32) != epoch) return false;
            job.run = run.load(std::memory_order_relaxed);
            job.context = context.load(std::memory_order_relaxed);
            count = pieces.load(std::memory_order_relaxed);
            if (turn.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                           std::memory_order_acquire)) {
                if (job.run(job, count - left, worker)) finish_piece(count);
                return true;
            }
        }
    }

    void finish_piece(std::uint32_t count) {
        if (done.fetch_add(1, std::memory_order_seq_cst) + 1 == count &&
            submitter_sleeps.load(std::memory_order_seq_cst) != 0)
            futex_wake_all(done);
    }

    void wait_done(std::uint32_t count) {
        const auto all = [&] { return done.load(std::memory_order_acquire) == count; };
        while (!spin(kIdleSpin, all)) {
            submitter_sleeps.store(1, std::memory_order_seq_cst);
            const std::uint32_t seen = done.load(std::memory_order_seq_cst);
            if (seen != count) futex_wait(done, seen);
            submitter_sleeps.store(0, std::memory_order_relaxed);
        }
    }

    void serve(int worker) {
        std::uint32_t epoch = 0;
        while (!stop.load(std::memory_order_acquire)) {
            const auto rung = [&] { return ring.load(std::memory_order_acquire) != epoch; };
            if (!spin(kIdleSpin, rung)) {
                sleepers.fetch_add(1, std::memory_order_seq_cst);
                if (!stop.load(std::memory_order_seq_cst)) futex_wait(ring, epoch);
                sleepers.fetch_sub(1, std::memory_order_relaxed);
                continue;
            }
            epoch = ring.load(std::memory_order_acquire);
            while (work_once(epoch, worker)) {
            }
        }
    }
};

Pool::Pool(int threads, bool pin, const std::string& isa, bool rescue)
    : Pool(threads, pin, kernels_up_to(isa), rescue) {}

Pool::Pool(int threads, bool pin, const KernelTable& kernels, bool rescue)
    : kernels_(&kernels), rescue_(rescue) {
    if (threads < 0 || threads > kMaxThreads)
        throw std::invalid_argument("Pool: " + std::to_string(threads) +
                                    " threads; expected 1 to " + std::to_string(kMaxThreads) +
                                    ", or 0 for one per core");
    const std::vector<int> cores = physical_cores();
    threads_ = threads > 0 ? threads : static_cast<int>(cores.size());
    scratch_.resize(static_cast<std::size_t>(threads_));
    shared_ = std::make_unique<Shared>(threads_);
    forks_ = forks();
    // More threads than cores cannot each have one; then the scheduler places them.
    pin = pin && threads_ <= static_cast<int>(cores.size());
    for (int i = 1; i < threads_; ++i) {
        workers_.emplace_back([shared = shared_.get(), i] { shared->serve(i); });
        if (pin) headrace::pin(workers_.back(), cores[static_cast<std::size_t>(i)]);
    }
}

void Pool::make(Call call) {
    call(*this);
    if (tape_ != nullptr) tape_->push_back(std::move(call));
}

Pool::~Pool() {
    close();
    for (Scratch& s : scratch_) std::free(s.data);
}

void Pool::close() {
    if (forks_ != forks()) {
        for (std::thread& worker : workers_) worker.detach();
    } else {
        shared_->stop.store(true, std::memory_order_seq_cst);
        shared_->ring.fetch_add(1, std::memory_order_seq_cst);
        futex_wake_all(shared_->ring);
        for (std::thread& worker : workers_) worker.join();
    }
    workers_.clear();
}

bool Pool::alone() const { return workers_.empty() || forks_ != forks(); }

void Pool::rouse() {
    if (!alone()) shared_->post({}, 0);
}

void Pool::post_and_work(std::size_t pieces, const Job& job) {
    if (pieces > UINT_MAX) throw std::invalid_argument("Pool: too many pieces");
    shared_->post(job, static_cast<std::uint32_t>(pieces));
    const std::uint32_t epoch = shared_->ring.load(std::memory_order_relaxed);
    while (shared_->work_once(epoch, 0)) {
    }
}

void Pool::run(std::size_t pieces, const Job& job) {
    if (alone() || pieces <= 1) {
        for (std::size_t i = 0; i < pieces; ++i) job.run(job, i, 0);
        return;
    }
    post_and_work(pieces, job);
    shared_->wait_done(static_cast<std::uint32_t>(pieces));
}

struct Pool::Twofold {
    const Work& work;
    std::byte* scratch;
    std::size_t scratch_nbytes;
    std::atomic<bool>* committed;

    // True if this thread's result was the first.
    bool run(std::size_t piece, int worker) const {
        std::byte* own = scratch + scratch_nbytes * static_cast<std::size_t>(worker);
        work.compute(piece, own);
        if (committed[piece].exchange(true, std::memory_order_acq_rel)) return false;
        work.commit(piece, own);
        return true;
    }
};

void Pool::perform(Arena& arena, const Work& work, std::size_t pieces, std::size_t scratch_nbytes,
                   bool rescue) {
    scratch_nbytes = (scratch_nbytes + 63) / 64 * 64;
    std::byte* scratch = arena.take<std::byte>(scratch_nbytes * static_cast<std::size_t>(threads_));
    if (!rescue || alone() || pieces <= 1) {
        parallel(pieces, [&](std::size_t piece, int worker) {
            std::byte* own = scratch + scratch_nbytes * static_cast<std::size_t>(worker);
            work.compute(piece, own);
            work.commit(piece, own);
        });
        return;
    }
    auto* committed = arena.take<std::atomic<bool>>(pieces);
    for (std::size_t i = 0; i < pieces; ++i) new (committed + i) std::atomic<bool>(false);
    const auto* task =
        new (arena.take<Twofold>(1)) Twofold{work, scratch, scratch_nbytes, committed};
    const std::uint32_t epoch = Shared::after(shared_->ring.load(std::memory_order_relaxed));
    if (arena.first_epoch == 0) arena.first_epoch = epoch;
    arena.last_epoch = epoch;
    post_and_work(pieces, {[](const Job& job, std::size_t piece, int worker) {
                               return static_cast<const Twofold*>(job.context)->run(piece, worker);
                           },
                           task});
    const auto count = static_cast<std::uint32_t>(pieces);
    const auto all = [&] { return shared_->done.load(std::memory_order_acquire) == count; };
    if (spin(kPatience, all)) return;
    for (std::size_t i = 0; i < pieces; ++i)
        if (!committed[i].load(std::memory_order_relaxed) && task->run(i, 0))
            shared_->finish_piece(count);
    // What is left is a copy of one result, in another thread's hands.
    shared_->wait_done(count);
}

Arena& Pool::begin_call() {
    for (const auto& arena : arenas_) {
        if (arena->first_epoch != 0 && shared_->anyone_reads(arena->first_epoch, arena->last_epoch))
            continue;
        arena->reset();
        return *arena;
    }
    return *arenas_.emplace_back(std::make_unique<Arena>());
}

void Pool::quiesce() {
    if (alone()) return;
    while (shared_->anyone_reads(1, UINT_MAX)) std::this_thread::yield();
}

void Pool::reserve_scratch(std::size_t nbytes) {
    for (Scratch& s : scratch_) {
        if (s.nbytes >= nbytes) continue;
        std::free(s.data);
        s = {};
        const std::size_t rounded = (nbytes + 4095) / 4096 * 4096;
        s.data = static_cast<std::byte*>(std::aligned_alloc(4096, rounded));
        if (s.data == nullptr) throw std::bad_alloc();
        s.nbytes = rounded;
    }
}

}  // namespace headrace
