// The pool: every piece once, results complete on return, rescue commits once, close and fork end.
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>
#include <thread>

#include "pool.hpp"
#include "test/check.hpp"

using namespace headrace;

namespace {

void every_piece_once(int threads) {
    Pool pool(threads);
    CHECK(pool.threads() == threads);
    for (const std::size_t pieces : {0, 1, 2, 3, 7, 100, 1000}) {
        for (int round = 0; round < 20; ++round) {
            std::vector<int> runs(pieces, 0);  // plain ints: a race would show in the sanitizer
            bool workers_known = true;
            std::atomic<bool> known{true};
            pool.parallel(pieces, [&](std::size_t piece, int worker) {
                ++runs[piece];
                if (worker < 0 || worker >= threads) known = false;
            });
            workers_known = known;
            CHECK(workers_known);
            for (const int n : runs) CHECK(n == 1, "%d", n);
        }
        std::this_thread::sleep_for(std::chrono::microseconds(200));  // let workers fall asleep
    }
    pool.close();
    pool.close();
    int after = 0;
    pool.parallel(3, [&](std::size_t, int) { ++after; });
    CHECK(after == 3);
}

void many_pools() {
    std::vector<std::unique_ptr<Pool>> pools;
    for (int i = 0; i < 12; ++i) pools.push_back(std::make_unique<Pool>(3));
    for (int round = 0; round < 10; ++round)
        for (const auto& pool : pools) {
            std::atomic<int> n{0};
            pool->parallel(50, [&](std::size_t, int) { ++n; });
            CHECK(n == 50);
        }
}

// Squares its input; a worker (not the submitter) dawdles on some pieces, as if descheduled.
struct Squares final : Work {
    const float* in;
    float* out;
    std::atomic<int>* late;
    std::thread::id submitter;

    Squares(const float* in_, float* out_, std::atomic<int>* late_)
        : in(in_), out(out_), late(late_), submitter(std::this_thread::get_id()) {}

    void compute(std::size_t piece, std::byte* scratch) const override {
        if (std::this_thread::get_id() == submitter) {
            std::this_thread::sleep_for(std::chrono::microseconds(100));  // workers get some, too
        } else if (piece % 5 == 1) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            late->fetch_add(1);
        }
        *reinterpret_cast<float*>(scratch) = in[piece] * in[piece];
    }
    void commit(std::size_t piece, const std::byte* scratch) const override {
        out[piece] += *reinterpret_cast<const float*>(scratch);  // twice would show
    }
};

void rescue(int threads) {
    Pool pool(threads, true, "", true);
    std::atomic<int> late{0};
    constexpr std::size_t kPieces = 40;
    for (int call = 0; call < 50; ++call) {
        std::vector<float> out(kPieces, 0.0f);  // gone after the call: a late write would show
        Arena& arena = pool.begin_call();
        float* in = arena.take<float>(kPieces);
        std::iota(in, in + kPieces, static_cast<float>(call));
        const auto* work = new (arena.take<Squares>(1)) Squares(in, out.data(), &late);
        pool.perform(arena, *work, kPieces, sizeof(float), true);
        for (std::size_t i = 0; i < kPieces; ++i) {
            const float x = static_cast<float>(call) + static_cast<float>(i);
            CHECK(out[i] == x * x, "call %d piece %zu: %f", call, i, static_cast<double>(out[i]));
        }
        std::atomic<int> n{0};  // ordinary tasks run while a worker is still late
        pool.parallel(9, [&](std::size_t, int) { ++n; });
        CHECK(n == 9);
    }
    pool.quiesce();
    const int seen = late;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(seen == late, "a worker was still computing after quiesce");
    CHECK(threads == 1 || seen > 0, "no worker was ever late: the test shows nothing");
}

void forked_child_ends() {
#if !defined(__SANITIZE_THREAD__)
    auto pool = std::make_unique<Pool>(3);
    const pid_t child = fork();
    if (child == 0) {
        int n = 0;
        pool->parallel(5, [&](std::size_t, int) { ++n; });
        pool.reset();
        _exit(n == 5 ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    std::atomic<int> n{0};
    pool->parallel(5, [&](std::size_t, int) { ++n; });
    CHECK(n == 5);
#endif
}

void refuses_nonsense() {
    int refused = 0;
    for (const int threads : {-1, 100000}) try {
            Pool pool(threads);
        } catch (const std::invalid_argument&) {
            ++refused;
        }
    try {
        Pool pool(1, true, "sse9");
    } catch (const std::invalid_argument&) {
        ++refused;
    }
    CHECK(refused == 3, "%d", refused);
}

}  // namespace

int main() {
    for (const int threads : {1, 2, 5}) every_piece_once(threads);
    many_pools();
    for (const int threads : {1, 2, 4}) rescue(threads);
    forked_child_ends();
    refuses_nonsense();
    return failures == 0 ? 0 : 1;
}
