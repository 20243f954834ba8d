#include "io.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace headrace {
namespace {

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
int64_t round_down(int64_t n, int64_t to) { return n / to * to; }

int64_t mapped_bytes(int64_t nbytes) {
    return round_up(nbytes, nbytes < kHugePageBytes ? kBlockBytes : kHugePageBytes);
}

int64_t number(const char* destination) {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(destination));
}

std::string describe(const FileRange& r) {
    return "(offset " + std::to_string(r.offset) + ", bytes " + std::to_string(r.bytes) +
           ", destination " + std::to_string(number(r.destination)) + ")";
}

int open_again(const std::string& path, int flags) {
    int fd = -1;
    do fd = ::open(path.c_str(), flags | O_RDONLY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    return fd;
}

void check_range(const FileRange& r, size_t i, const DirectFile& file) {
    const std::string found =
        "range " + std::to_string(i) + " " + describe(r) + " of " + file.path();
    if (r.offset < 0 || r.bytes < 0)
        throw std::invalid_argument("found " + found +
                                    "; expected an offset and a size of at least 0");
    if (r.offset > file.size() || r.bytes > file.size() - r.offset)
        throw std::invalid_argument("found " + found + ", which has " +
                                    std::to_string(file.size()) +
                                    " bytes; expected a range inside the file (is it cut short?)");
    if (r.bytes > 0 && r.destination == nullptr)
        throw std::invalid_argument("found " + found + "; expected a destination that is not null");
    if ((number(r.destination) - r.offset) % kBlockBytes != 0)
        throw std::invalid_argument("found " + found +
                                    "; expected offset and destination to agree modulo 4096, got " +
                                    std::to_string(r.offset % kBlockBytes) + " and " +
                                    std::to_string(number(r.destination) % kBlockBytes));
}

// Direct reads fill whole blocks, so two ranges may share a block of memory only where it is the
// same block of the file.
void check_shared_blocks(std::vector<FileRange> ranges, const std::string& path) {
    std::erase_if(ranges, [](const FileRange& r) { return r.bytes == 0; });
    std::sort(ranges.begin(), ranges.end(), [](const FileRange& a, const FileRange& b) {
        return number(a.destination) < number(b.destination);
    });
    const FileRange* last = nullptr;
    for (const FileRange& r : ranges) {
        const int64_t start = round_down(number(r.destination), kBlockBytes);
        if (last != nullptr &&
            start < round_up(number(last->destination) + last->bytes, kBlockBytes) &&
            number(r.destination) - r.offset != number(last->destination) - last->offset)
            throw std::invalid_argument(
                "found ranges " + describe(*last) + " and " + describe(r) + " of " + path +
                " that meet in one 4096-byte block of memory from different places of the file; "
                "expected each to own its blocks");
        if (last == nullptr ||
            number(r.destination) + r.bytes > number(last->destination) + last->bytes)
            last = &r;
    }
}

std::vector<FileRange> cut(const std::vector<FileRange>& ranges, int64_t piece_bytes) {
    std::vector<FileRange> pieces;
    for (const FileRange& r : ranges) {
        const int64_t end = r.offset + r.bytes;
        for (int64_t at = r.offset; at < end;) {
            // Every cut lies on a block boundary, so that only the ends of a range are partial
            // blocks.
            const int64_t next = std::min(end, round_down(at, kBlockBytes) + piece_bytes);
            pieces.push_back({at, next - at, r.destination + (at - r.offset)});
            at = next;
        }
    }
    return pieces;
}

// Fresh memory, made present before the readers meet it. Where several threads fault in the pages
// of one mapping, each under a read, the kernel spends three times as long: 0.6 s for a GiB against
// 0.2 s.
bool populate(const FileRange& first, const FileRange& last) {
#ifdef MADV_POPULATE_WRITE
    const int64_t start = round_down(number(first.destination), kBlockBytes);
    const int64_t end = round_up(number(last.destination) + last.bytes, kBlockBytes);
    return ::madvise(reinterpret_cast<void*>(start), static_cast<size_t>(end - start),
                     MADV_POPULATE_WRITE) == 0;
#else
    static_cast<void>(first), static_cast<void>(last);
    return false;
#endif
}

constexpr int64_t kProvideFrom = int64_t{32} << 20;  // below, readers do it alone
constexpr int64_t kProvideStep = int64_t{4} << 20;
constexpr size_t kAllProvided = ~size_t{0};

}  // namespace

void* alloc_huge(int64_t nbytes) {
    const int64_t size = mapped_bytes(nbytes);
    void* raw = ::mmap(nullptr, static_cast<size_t>(size + kHugePageBytes), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return nullptr;
    char* start = static_cast<char*>(raw);
    char* aligned = start + (round_up(number(start), kHugePageBytes) - number(start));
    char* end = start + size + kHugePageBytes;
    if (aligned > start) ::munmap(start, static_cast<size_t>(aligned - start));
    if (end > aligned + size) ::munmap(aligned + size, static_cast<size_t>(end - aligned - size));
#ifdef MADV_HUGEPAGE
    if (size >= kHugePageBytes) ::madvise(aligned, static_cast<size_t>(size), MADV_HUGEPAGE);
#endif
    return aligned;
}

void free_huge(void* address, int64_t nbytes) {
    ::munmap(address, static_cast<size_t>(mapped_bytes(nbytes)));
}

void discard_huge(void* address, int64_t nbytes) {
    char* start = static_cast<char*>(address);
    char* first = start + (round_up(number(start), kHugePageBytes) - number(start));
    const int64_t whole = round_down(number(start) + nbytes, kHugePageBytes) - number(first);
    if (whole > 0) ::madvise(first, static_cast<size_t>(whole), MADV_DONTNEED);
}

DirectFile::DirectFile(const std::string& path) : path_(path) {
    buffered_fd_ = open_again(path, 0);
    if (buffered_fd_ < 0) {
        const int reason = errno;
        throw FileError(reason, path,
                        std::string(std::strerror(reason)) + "; expected a readable file");
    }
    struct stat status{};
    if (::fstat(buffered_fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
        ::close(buffered_fd_);
        throw FileError(EINVAL, path, "found something else; expected a regular file");
    }
    size_ = status.st_size;
#ifdef O_DIRECT
    direct_fd_ = open_again(path, O_DIRECT);
#endif
    direct_ = direct_fd_ >= 0;
}

DirectFile::~DirectFile() {
    ::close(buffered_fd_);
    if (direct_fd_ >= 0) ::close(direct_fd_);
}

void DirectFile::fail(int reason, const FileRange& range, int64_t got) const {
    const std::string what = reason != 0 ? std::strerror(reason) : "the file ended early";
    throw FileError(reason != 0 ? reason : EIO, path_,
                    what + ": read " + std::to_string(got) + " bytes at offset " +
                        std::to_string(range.offset) + "; expected " + std::to_string(range.bytes) +
                        " (was the file changed or cut short?)");
}

// Reads until `needed` bytes are there and returns how many came; fewer mean an error (errno) or
// the end of the file (errno 0).
int64_t DirectFile::fill(int fd, int64_t offset, int64_t needed, int64_t length,
                         char* destination) {
    int64_t got = 0;
    int64_t best = -1;
    while (got < needed) {
        const ssize_t n =
            ::pread(fd, destination + got, static_cast<size_t>(length - got), offset + got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return got;
        errno = 0;
        got += n;
        if (got >= needed) break;
        if (n == 0 || got <= best) return got;
        best = got;
        // Direct I/O may only go on from a block boundary; at the end of the file that comes to the
        // same count again.
        if (fd == direct_fd_) got = round_down(got, kBlockBytes);
    }
    return got;
}

void DirectFile::read(const FileRange& range) {
    if (direct()) {
        const int64_t lead = range.offset % kBlockBytes;
        const int64_t needed = lead + range.bytes;
        const int64_t got = fill(direct_fd_, range.offset - lead, needed,
                                 round_up(needed, kBlockBytes), range.destination - lead);
        if (got >= needed) return;
        if (errno != EINVAL && errno != EOPNOTSUPP)
            fail(errno, range, std::max<int64_t>(0, got - lead));
        direct_.store(false, std::memory_order_relaxed);
    }
    const int64_t got =
        fill(buffered_fd_, range.offset, range.bytes, range.bytes, range.destination);
    if (got < range.bytes) fail(errno, range, got);
}

FileReader::FileReader(const std::string& path, std::vector<FileRange> ranges, int threads,
                       int64_t piece_bytes)
    : file_(path) {
    if (threads < 1 || threads > 256)
        throw std::invalid_argument("found " + std::to_string(threads) +
                                    " reader threads; expected 1 to 256");
    if (piece_bytes < 1 || piece_bytes > (int64_t{1} << 30))
        throw std::invalid_argument("found pieces of " + std::to_string(piece_bytes) +
                                    " bytes; expected 1 byte to 1 GiB");
    for (size_t i = 0; i < ranges.size(); ++i) check_range(ranges[i], i, file_);
    check_shared_blocks(ranges, path);
    pieces_ = cut(ranges, round_up(piece_bytes, kBlockBytes));
    start(static_cast<int>(std::min<size_t>(static_cast<size_t>(threads), pieces_.size())));
}

void FileReader::start(int threads) {
    int64_t total = 0;
    for (const FileRange& piece : pieces_) total += piece.bytes;
    if (total < kProvideFrom) provided_ = kAllProvided;
    running_ = threads;
    threads_.reserve(static_cast<size_t>(threads) + 1);
    try {
        if (total >= kProvideFrom) threads_.emplace_back([this] { provide(); });
        for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (...) {
        cancel();
        for (std::thread& t : threads_) t.join();
        throw;
    }
}

FileReader::~FileReader() {
    cancel();
    for (std::thread& t : threads_) t.join();
}

// Stays ahead of the readers: pages come at 5 GB/s and more, faster than disks read.
void FileReader::provide() {
    for (size_t i = 0; i < pieces_.size() && !stop_.load(std::memory_order_relaxed);) {
        size_t last = i;
        while (last + 1 < pieces_.size() &&
               pieces_[last].destination + pieces_[last].bytes == pieces_[last + 1].destination &&
               pieces_[last + 1].destination - pieces_[i].destination < kProvideStep)
            ++last;
        if (!populate(pieces_[i], pieces_[last])) break;  // an old kernel: readers do it alone
        i = last + 1;
        provided_.store(i, std::memory_order_release);
        provided_.notify_all();
    }
    provided_.store(kAllProvided, std::memory_order_release);
    provided_.notify_all();
}

void FileReader::work() {
    std::exception_ptr failure;
    size_t finished = 0;
    while (!stop_.load(std::memory_order_relaxed)) {
        const size_t i = next_.fetch_add(1, std::memory_order_relaxed);
        if (i >= pieces_.size()) break;
        for (size_t n = provided_.load(std::memory_order_acquire); n <= i;
             n = provided_.load(std::memory_order_acquire))
            provided_.wait(n, std::memory_order_acquire);
        try {
            file_.read(pieces_[i]);
        } catch (...) {
            failure = std::current_exception();
            stop_ = true;
            break;
        }
        ++finished;
        done_bytes_.fetch_add(pieces_[i].bytes, std::memory_order_relaxed);
    }
    const std::lock_guard lock(mutex_);
    finished_ += finished;
    if (failure && !failure_) failure_ = failure;
    --running_;
    changed_.notify_all();
}

bool FileReader::wait(double seconds) {
    std::unique_lock lock(mutex_);
    const auto ended = [this] { return running_ == 0; };
    if (seconds < 0)
        changed_.wait(lock, ended);
    else
        changed_.wait_for(lock, std::chrono::duration<double>(std::min(seconds, 1e9)), ended);
    if (failure_) std::rethrow_exception(failure_);
    return running_ == 0 && finished_ == pieces_.size();
}

bool FileReader::idle() {
    const std::lock_guard lock(mutex_);
    return running_ == 0;
}

void FileReader::cancel() { stop_ = true; }

}  // namespace headrace
