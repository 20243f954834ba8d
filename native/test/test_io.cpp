// Direct reads under the sanitizers: whole, partial, cut short, cancelled.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "../io.hpp"

namespace {

using namespace headrace;

void check(bool ok, const char* what) {
    if (ok) return;
    std::fprintf(stderr, "failed: %s\n", what);
    std::exit(1);
}

class TemporaryFile {
  public:
    explicit TemporaryFile(const std::vector<char>& content) {
        const int fd = ::mkstemp(path.data());
        check(fd >= 0, "a temporary file");
        check(::write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()),
              "writing it");
        ::close(fd);
    }
    ~TemporaryFile() { ::unlink(path.c_str()); }
    std::string path = "./headrace_io_XXXXXX";
};

std::vector<char> noise(size_t bytes) {
    std::vector<char> content(bytes);
    uint32_t state = 1;
    for (char& c : content) c = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
    return content;
}

void reads_every_byte(const TemporaryFile& file, const std::vector<char>& content, char* memory) {
    const int64_t size = static_cast<int64_t>(content.size());
    // Ranges that share a block are read by one thread here: two would write it twice, with the
    // same bytes.
    for (const auto& [threads, middle] :
         {std::pair{1, int64_t{5000}}, std::pair{4, int64_t{8192}}}) {
        std::memset(memory, 0, content.size());
        FileReader reader(file.path,
                          {{0, middle, memory}, {middle, size - middle, memory + middle}}, threads,
                          64 << 10);
        check(reader.wait(-1), "reading all");
        check(reader.done_bytes() == size, "counting all");
        check(std::memcmp(memory, content.data(), content.size()) == 0, "the same bytes");
    }
}

void reports_a_short_read(const TemporaryFile& file, int64_t size, char* memory) {
    DirectFile opened(file.path);
    check(::truncate(file.path.c_str(), 10000) == 0, "cutting the file");
    try {
        opened.read({4096, size - 4096, memory + 4096});
        check(false, "a short read must throw");
    } catch (const FileError& e) {
        const std::string message = e.what();
        check(message.find("read 5904 bytes at offset 4096") != std::string::npos, e.what());
        check(message.find("expected " + std::to_string(size - 4096)) != std::string::npos,
              e.what());
    }
}

void stops_when_cancelled(const TemporaryFile& file, char* memory) {
    std::vector<FileRange> ranges;
    for (int64_t i = 0; i < 300; ++i) ranges.push_back({0, 8192, memory + i * 8192});
    FileReader reader(file.path, ranges, 1, 4096);
    reader.cancel();
    check(!reader.wait(-1), "a cancelled reader is not done");
    FileReader abandoned(file.path, ranges, 3, 4096);
}

}  // namespace

int main() {
    const std::vector<char> content = noise((3 << 20) + 777);
    const int64_t size = static_cast<int64_t>(content.size());
    const TemporaryFile file(content);
    char* memory = static_cast<char*>(alloc_huge(size));
    check(memory != nullptr && reinterpret_cast<uintptr_t>(memory) % kHugePageBytes == 0,
          "aligned memory");
    reads_every_byte(file, content, memory);
    stops_when_cancelled(file, memory);
    reports_a_short_read(file, size, memory);
    free_huge(memory, size);
    std::puts("ok");
}
