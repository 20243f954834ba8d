#include "bandwidth.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
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

constexpr std::size_t kInCache = 160 << 10;  // rows of one worker: less than half of a small L2
constexpr std::size_t kPass = 8 << 20;       // bytes that a worker gets through between two looks

double median(std::vector<double>& of) {
    const auto middle = of.begin() + static_cast<long>(of.size() / 2);
    std::nth_element(of.begin(), middle, of.end());
    return *middle;
}

// One worker's rows, activations and results.
class Rows {
  public:
    Rows(const KernelTable& kernels, const DotKernel& kernel, int format, int columns)
        : kernel_(kernel), stride_(tile_nbytes(format, columns)) {
        auto unit = static_cast<std::size_t>(std::max(1, kernel.stream_rows / tile_rows(format)));
        while (unit > 1 && unit * stride_ > kInCache) unit /= 2;
        const std::size_t tiles = std::max(unit, kInCache / stride_ / unit * unit);
        const auto n = static_cast<std::size_t>(columns);
        // Of every format these bytes are numbers of moderate size, as codes and as scales.
        weights_.assign(tiles * stride_, std::byte{0x74});
        rows_ = static_cast<int>(tiles) * tile_rows(format);
        const std::vector<float> ones(n, 1.0f);
        x_.resize(std::max(input_nbytes(kernel.input, columns), n * sizeof(float)));
        kernels.put[kernel.input](x_.data(), columns, 0, ones.data(), columns);
        out_.resize(static_cast<std::size_t>(rows_));
        scratch_.resize(kernel.scratch_nbytes(rows_, columns, 1) + 64);
        token_ = x_.data();
        dot_ = {weights_.data(), stride_,     rows_,           columns, &token_, 1,
                out_.data(),     out_.size(), scratch_.data(), format};
    }
    Rows(const Rows&) = delete;
    Rows& operator=(const Rows&) = delete;
    // Bytes of weights that were used.
    std::size_t pass() const {
        const std::size_t times = kPass / weights_.size() + 1;
        for (std::size_t i = 0; i < times; ++i) kernel_.run(dot_);
        return times * weights_.size();
    }

  private:
    const DotKernel& kernel_;
    std::size_t stride_;
    int rows_ = 0;
    std::vector<std::byte> weights_, x_, scratch_;
    std::vector<float> out_;
    const std::byte* token_ = nullptr;
    Dot dot_{};
};

}  // namespace

double measure_product_rate(Pool& pool, int format, int columns, double seconds) {
    const std::string fault = format_fault(format, columns);
    if (!fault.empty()) throw std::invalid_argument("measure_product_rate: " + fault);
    const KernelTable& kernels = pool.kernels();
    const auto workers = static_cast<std::size_t>(pool.threads());
    std::vector<std::unique_ptr<Rows>> rows;
    for (std::size_t i = 0; i < workers; ++i)
        rows.push_back(
            std::make_unique<Rows>(kernels, kernels.fast[kind_of(format)], format, columns));
    std::vector<double> rates;
    std::vector<std::size_t> used(workers);
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    while (rates.size() < 3 || Clock::now() < end) {
        const auto start = Clock::now();
        pool.parallel(workers, [&](std::size_t i, int) { used[i] = rows[i]->pass(); });
        const std::chrono::duration<double> took = Clock::now() - start;
        std::size_t all = 0;
        for (const std::size_t n : used) all += n;
        rates.push_back(static_cast<double>(all) / took.count());
    }
    return median(rates);
}

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
    return median(rates);
}

}  // namespace headrace
