// Reads of spans of a few files by a few threads, the urgent ones first: expert rows on their way
// from disk.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "io.hpp"

namespace headrace {

struct DiskSpan {
    int32_t file = 0;
    FileRange range;  // offset and destination agree modulo 4096; whole blocks are written
};

// Every public call is safe from any thread. A job is known by its ticket until it has been waited
// for or dropped; until then its destination belongs to the queue.
class DiskQueue {
  public:
    // Throws FileError where a file cannot be opened, std::invalid_argument for absurd numbers.
    DiskQueue(const std::vector<std::string>& paths, int threads, int64_t piece_bytes);
    ~DiskQueue();
    DiskQueue(const DiskQueue&) = delete;
    DiskQueue& operator=(const DiskQueue&) = delete;

    // A ticket. Jobs of one urgency are read in the order of the calls.
    int64_t submit(std::vector<DiskSpan> spans, bool urgent);
    // From now on among the urgent ones, behind those that are there.
    void hurry(int64_t ticket);
    // True when all is read, and the ticket is spent; false after `seconds` (negative: no limit).
    // Throws the job's FileError, once, when none of its pieces is being read any more.
    bool wait(int64_t ticket, double seconds);
    bool done(int64_t ticket);  // whole or failed: `wait` returns at once
    // Pieces that have not begun are never read; returns when none is being read. The ticket is
    // spent.
    void drop(int64_t ticket);
    void close();  // no read begins any more; waiting jobs fail

    int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
    int64_t busy_ns();  // in which at least one read was going on
    bool direct() const;

  private:
    struct Job {
        std::vector<DiskSpan> pieces;
        size_t next = 0;
        int reading = 0;
        bool urgent = false;
        std::exception_ptr failure;
        bool ended() const { return reading == 0 && (failure || next == pieces.size()); }
    };
    using Line = std::deque<Job*>;

    void check(const DiskSpan& span) const;
    void work();
    Job* front();
    void leave(Job* job);
    void finish(Job* job, std::exception_ptr failure);
    Job& job(int64_t ticket);

    std::vector<std::unique_ptr<DirectFile>> files_;
    int64_t piece_bytes_;
    std::mutex mutex_;
    std::condition_variable work_, changed_;
    std::unordered_map<int64_t, std::unique_ptr<Job>> jobs_;
    Line lines_[2];  // urgent, others; jobs with pieces that have not begun
    int64_t tickets_ = 0;
    int reading_ = 0;
    int64_t busy_ns_ = 0;
    std::chrono::steady_clock::time_point since_;
    bool stop_ = false;
    std::atomic<int64_t> bytes_{0};
    std::vector<std::thread> threads_;
};

}  // namespace headrace
