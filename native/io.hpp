// Huge-page memory, and parallel aligned reads of file ranges straight into it.
// A read either fills every byte that was asked for or fails with file, offset, bytes read and
// bytes expected.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace headrace {

constexpr int64_t kBlockBytes = 4096;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// Zeroed anonymous memory, 2 MiB aligned; nullptr with errno set when the system has none.
void* alloc_huge(int64_t nbytes);
void free_huge(void* address, int64_t nbytes);
// Gives back the huge pages that lie whole in a part of such memory: what they held is gone.
void discard_huge(void* address, int64_t nbytes);

// A failed system call on a file: the reason and the whole sentence for the user.
class FileError : public std::runtime_error {
  public:
    FileError(int reason, std::string path, const std::string& message)
        : std::runtime_error(message), reason(reason), path(std::move(path)) {}
    int reason;
    std::string path;
};

struct FileRange {
    int64_t offset = 0;
    int64_t bytes = 0;
    char* destination = nullptr;
};

// A file opened twice: for direct I/O where the file system takes it, and through the page cache.
class DirectFile {
  public:
    explicit DirectFile(const std::string& path);
    ~DirectFile();
    DirectFile(const DirectFile&) = delete;
    DirectFile& operator=(const DirectFile&) = delete;

    // Reads `range`; while direct, whole blocks of 4096 bytes around it (offset and destination
    // agree modulo 4096).
    void read(const FileRange& range);
    bool direct() const { return direct_.load(std::memory_order_relaxed); }
    int64_t size() const { return size_; }
    const std::string& path() const { return path_; }

  private:
    int64_t fill(int fd, int64_t offset, int64_t needed, int64_t length, char* destination);
    [[noreturn]] void fail(int reason, const FileRange& range, int64_t got) const;

    std::string path_;
    int buffered_fd_ = -1;
    int direct_fd_ = -1;
    int64_t size_ = 0;
    std::atomic<bool> direct_{false};
};

class FileReader {
  public:
    // Throws std::invalid_argument for ranges that cannot be read and FileError where the file
    // cannot be opened.
    FileReader(const std::string& path, std::vector<FileRange> ranges, int threads,
               int64_t piece_bytes);
    ~FileReader();
    FileReader(const FileReader&) = delete;
    FileReader& operator=(const FileReader&) = delete;

    int64_t done_bytes() const { return done_bytes_.load(std::memory_order_relaxed); }
    bool direct() const { return file_.direct(); }
    // True when all is read; false after `seconds` (negative: no limit) or once cancelled. Throws
    // the first FileError.
    bool wait(double seconds);
    bool idle();  // no thread reads any more: finished, failed or cancelled
    void cancel();

  private:
    void work();
    void provide();
    void start(int threads);

    DirectFile file_;
    std::vector<FileRange> pieces_;
    std::atomic<size_t> provided_{0};  // pieces whose memory is there
    std::atomic<size_t> next_{0};
    std::atomic<int64_t> done_bytes_{0};
    std::atomic<bool> stop_{false};
    std::mutex mutex_;
    std::condition_variable changed_;
    int running_ = 0;
    size_t finished_ = 0;
    std::exception_ptr failure_;
    std::vector<std::thread> threads_;
};

}  // namespace headrace
