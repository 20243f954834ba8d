#include "bandwidth.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <stdexcept>
#include <vector>

namespace headrace {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPiece = 256 << 10;

class Pages {
  public:
    explicit Pages(std::size_t nbytes) : nbytes_(nbytes) {
        void* p = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        madvise(p, nbytes, MADV_HUGEPAGE);
        data_ = static_cast<std::byte*>(p);
    }
    ~Pages() { munmap(data_, nbytes_); }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;
    std::byte* data() { return data_; }

  private:
    std::byte* data_ = nullptr;
    std::size_t nbytes_;
};

}  // namespace

double measure_read_bandwidth(Pool& pool, std::size_t nbytes, double seconds) {
    if (nbytes < kHugePage)
        throw std::invalid_argument(
            "measure_read_bandwidth: fewer than 2 MiB would only show caches");
    nbytes = nbytes / kHugePage * kHugePage;
    Pages pages(nbytes);
    pool.parallel(nbytes / kHugePage, [&](std::size_t i, int) {
        std::memset(pages.data() + i * kHugePage, 1, kHugePage);
    });
    std::vector<double> rates;
    std::vector<float> sums(nbytes / kPiece);
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    while (rates.size() < 3 || Clock::now() < end) {
        const auto start = Clock::now();
        pool.parallel(sums.size(), [&](std::size_t i, int) {
            sums[i] = pool.kernels().read(pages.data() + i * kPiece, kPiece);
        });
        const std::chrono::duration<double> took = Clock::now() - start;
        rates.push_back(static_cast<double>(nbytes) / took.count());
    }
    std::nth_element(rates.begin(), rates.begin() + static_cast<long>(rates.size() / 2),
                     rates.end());
    return rates[rates.size() / 2];
}

}  // namespace headrace
