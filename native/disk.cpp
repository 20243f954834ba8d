#include "disk.hpp"

#include <algorithm>
#include <stdexcept>

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;

int64_t nanoseconds(Clock::duration d) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
}

}  // namespace

DiskQueue::DiskQueue(const std::vector<std::string>& paths, int threads, int64_t piece_bytes)
    : piece_bytes_((piece_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes) {
    if (threads < 1 || threads > 256)
        throw std::invalid_argument("found " + std::to_string(threads) +
                                    " reader threads; expected 1 to 256");
    if (piece_bytes < 1 || piece_bytes > (int64_t{1} << 30))
        throw std::invalid_argument("found pieces of " + std::to_string(piece_bytes) +
                                    " bytes; expected 1 byte to 1 GiB");
    for (const std::string& path : paths) files_.push_back(std::make_unique<DirectFile>(path));
    threads_.reserve(static_cast<size_t>(threads));
    try {
        for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (...) {
        close();
        throw;
    }
}

DiskQueue::~DiskQueue() { close(); }

void DiskQueue::check(const DiskSpan& span) const {
    const FileRange& r = span.range;
    if (span.file < 0 || static_cast<size_t>(span.file) >= files_.size())
        throw std::invalid_argument("found file " + std::to_string(span.file) + "; expected 0 to " +
                                    std::to_string(files_.size()) + ", exclusive");
    const int64_t destination = static_cast<int64_t>(reinterpret_cast<uintptr_t>(r.destination));
    if (r.offset < 0 || r.bytes < 1 || destination == 0 ||
        (destination - r.offset) % kBlockBytes != 0)
        throw std::invalid_argument(
            "found " + std::to_string(r.bytes) + " bytes at offset " + std::to_string(r.offset) +
            " for address " + std::to_string(destination) + "; expected both to agree modulo 4096");
}

int64_t DiskQueue::submit(std::vector<DiskSpan> spans, bool urgent) {
    auto made = std::make_unique<Job>();
    made->urgent = urgent;
    for (const DiskSpan& span : spans) {
        check(span);
        const FileRange& r = span.range;
        // Cuts lie on block boundaries, so that only the ends of a span are partial blocks.
        for (int64_t at = r.offset, end = r.offset + r.bytes; at < end;) {
            const int64_t next = std::min(end, at / kBlockBytes * kBlockBytes + piece_bytes_);
            made->pieces.push_back({span.file, {at, next - at, r.destination + (at - r.offset)}});
            at = next;
        }
    }
    const std::lock_guard lock(mutex_);
    const int64_t ticket = ++tickets_;
    if (stop_)
        made->failure = std::make_exception_ptr(std::runtime_error("the disk queue is closed"));
    else if (!made->pieces.empty())
        lines_[urgent ? 0 : 1].push_back(made.get());
    jobs_.emplace(ticket, std::move(made));
    work_.notify_all();
    return ticket;
}

DiskQueue::Job& DiskQueue::job(int64_t ticket) {
    const auto found = jobs_.find(ticket);
    if (found == jobs_.end())
        throw std::invalid_argument("found ticket " + std::to_string(ticket) +
                                    "; expected one that was neither waited for nor dropped");
    return *found->second;
}

void DiskQueue::hurry(int64_t ticket) {
    const std::lock_guard lock(mutex_);
    Job& hurried = job(ticket);
    if (hurried.urgent) return;
    const auto at = std::find(lines_[1].begin(), lines_[1].end(), &hurried);
    hurried.urgent = true;
    if (at == lines_[1].end()) return;
    lines_[1].erase(at);
    lines_[0].push_back(&hurried);
}

bool DiskQueue::wait(int64_t ticket, double seconds) {
    std::unique_lock lock(mutex_);
    Job& waited = job(ticket);
    const auto ended = [&] { return waited.ended(); };
    if (seconds < 0)
        changed_.wait(lock, ended);
    else
        changed_.wait_for(lock, std::chrono::duration<double>(std::min(seconds, 1e9)), ended);
    if (!waited.ended()) return false;
    const std::exception_ptr failure = waited.failure;
    jobs_.erase(ticket);
    if (failure) std::rethrow_exception(failure);
    return true;
}

bool DiskQueue::done(int64_t ticket) {
    const std::lock_guard lock(mutex_);
    return job(ticket).ended();
}

void DiskQueue::drop(int64_t ticket) {
    std::unique_lock lock(mutex_);
    Job& dropped = job(ticket);
    leave(&dropped);
    dropped.next = dropped.pieces.size();
    changed_.wait(lock, [&] { return dropped.reading == 0; });
    jobs_.erase(ticket);
}

void DiskQueue::close() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
        for (Line& line : lines_) {
            for (Job* left : line)
                left->failure =
                    std::make_exception_ptr(std::runtime_error("the disk queue is closed"));
            line.clear();
        }
        work_.notify_all();
        changed_.notify_all();
    }
    for (std::thread& t : threads_)
        if (t.joinable()) t.join();
}

int64_t DiskQueue::busy_ns() {
    const std::lock_guard lock(mutex_);
    return busy_ns_ + (reading_ > 0 ? nanoseconds(Clock::now() - since_) : 0);
}

bool DiskQueue::direct() const {
    return std::all_of(files_.begin(), files_.end(), [](const auto& f) { return f->direct(); });
}

DiskQueue::Job* DiskQueue::front() {
    for (Line& line : lines_)
        if (!line.empty()) return line.front();
    return nullptr;
}

void DiskQueue::leave(Job* job) {
    Line& line = lines_[job->urgent ? 0 : 1];
    const auto at = std::find(line.begin(), line.end(), job);
    if (at != line.end()) line.erase(at);
}

void DiskQueue::finish(Job* job, std::exception_ptr failure) {
    --job->reading;
    if (failure && !job->failure) {
        job->failure = failure;
        leave(job);
    }
    if (--reading_ == 0) busy_ns_ += nanoseconds(Clock::now() - since_);
    if (job->reading == 0) changed_.notify_all();
}

void DiskQueue::work() {
    std::unique_lock lock(mutex_);
    while (true) {
        work_.wait(lock, [this] { return stop_ || front() != nullptr; });
        if (stop_) return;
        Job* job = front();
        const DiskSpan piece = job->pieces[job->next++];
        if (job->next == job->pieces.size()) leave(job);
        ++job->reading;
        if (reading_++ == 0) since_ = Clock::now();
        lock.unlock();
        std::exception_ptr failure;
        try {
            files_[static_cast<size_t>(piece.file)]->read(piece.range);
            bytes_.fetch_add(piece.range.bytes, std::memory_order_relaxed);
        } catch (...) {
            failure = std::current_exception();
        }
        lock.lock();
        finish(job, failure);
    }
}

}  // namespace headrace
