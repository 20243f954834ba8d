#include "service.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace headrace {
namespace {

// Longer than planning takes: between the alert and the ring nobody falls asleep.
constexpr auto kAlertSpin = std::chrono::microseconds(300);

}  // namespace

HostService::HostService(Pool& pool, int cpu) : pool_(pool), forks_(forks()) {
    thread_ = std::thread([this] { serve(); });
    pin(thread_, cpu);
}

HostService::~HostService() { close(); }

void HostService::close() {
    if (!thread_.joinable()) return;
    if (forks_ != forks()) return thread_.detach();
    stop_.store(true, std::memory_order_seq_cst);
    rung_.nudge();
    thread_.join();
}

void HostService::check_open() const {
    if (!thread_.joinable()) throw std::runtime_error("HostService: it is closed");
    if (forks_ != forks())
        throw std::runtime_error("HostService: its thread is the parent process's");
}

void HostService::alert() {
    check_open();
    alerted_.store(true, std::memory_order_seq_cst);
    rung_.nudge();
}

void HostService::ring(const Task& task) {
    check_open();
    done_.wait_for(rings_);
    const auto n = static_cast<std::size_t>(task.tokens) * static_cast<std::size_t>(task.top_k);
    const std::uint64_t observation = observations_.begin();
    if (std::all_of(task.ids, task.ids + n, [](std::int32_t id) { return id < 0; }))
        return observations_.end(observation, 0, 0);
    task_ = task;
    observation_ = observation;
    rang_ = Clock::now();
    ++rings_;
    rung_.advance();
}

void HostService::wait() {
    if (done_.value() < rings_) {
        check_open();
        done_.wait_for(rings_);
    }
    if (failed_ != nullptr) std::rethrow_exception(std::exchange(failed_, nullptr));
}

void HostService::serve() {
    for (std::uint64_t taken = 0;;) {
        const auto rung = [&] { return rung_.value() > taken; };
        if (rung()) {
            alerted_.store(false, std::memory_order_seq_cst);  // this is what it was for
            run();
            ++taken;
            done_.advance();
            continue;
        }
        if (stop_.load(std::memory_order_seq_cst)) return;
        const auto told = [&] {
            return rung() || stop_.load(std::memory_order_seq_cst) ||
                   alerted_.load(std::memory_order_seq_cst);
        };
        if (alerted_.exchange(false, std::memory_order_seq_cst)) {
            pool_.rouse();
            spin(kAlertSpin, told);
        } else if (!spin(kIdleSpin, told)) {
            rung_.sleep(told);
        }
    }
}

void HostService::run() {
    const Task& t = task_;
    int experts = 0;
    try {
        experts_parts(pool_, t.x, t.tokens, t.ids, t.top_k, *t.layer, t.parts, t.exact);
        experts = distinct();
    } catch (...) {
        failed_ = std::current_exception();
    }
    observations_.end(
        observation_, experts,
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - rang_).count());
}

int HostService::distinct() {
    seen_.assign(static_cast<std::size_t>(task_.layer->experts()), false);
    int found = 0;
    const auto n = static_cast<std::size_t>(task_.tokens) * static_cast<std::size_t>(task_.top_k);
    for (std::size_t i = 0; i < n; ++i) {
        if (task_.ids[i] < 0 || seen_[static_cast<std::size_t>(task_.ids[i])]) continue;
        seen_[static_cast<std::size_t>(task_.ids[i])] = true;
        ++found;
    }
    return found;
}

}  // namespace headrace
