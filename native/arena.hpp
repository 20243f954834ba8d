// Memory of one call: taken piece by piece, given back all at once, kept for the next call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <vector>

namespace headrace {

class Arena {
  public:
    Arena() = default;
    ~Arena() {
        for (const Block& b : blocks_) std::free(b.data);
    }
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    // n uninitialised objects, 64-byte aligned. Throws std::bad_alloc.
    template <class T>
    T* take(std::size_t n) {
        static_assert(std::is_trivially_destructible_v<T>);
        return reinterpret_cast<T*>(bytes(n * sizeof(T)));
    }

    // Everything taken so far is free again.
    void reset() {
        if (blocks_.size() > 1) {  // one block that would have held it all
            const std::size_t all = total_;
            for (const Block& b : blocks_) std::free(b.data);
            blocks_.clear();
            grow(all);
        }
        used_ = total_ = 0;
        first_epoch = last_epoch = 0;
    }

    // The first and last task that a descheduled worker may still read this memory for; 0 = none.
    std::uint32_t first_epoch = 0, last_epoch = 0;

  private:
    struct Block {
        std::byte* data;
        std::size_t nbytes;
    };

    std::byte* bytes(std::size_t n) {
        n = (n + 63) / 64 * 64;
        total_ += n;
        if (blocks_.empty() || used_ + n > blocks_.back().nbytes) grow(n);
        std::byte* at = blocks_.back().data + used_;
        used_ += n;
        return at;
    }

    void grow(std::size_t n) {
        constexpr std::size_t kLeast = 64 << 10;
        n = n < kLeast ? kLeast : (n + 4095) / 4096 * 4096;
        auto* data = static_cast<std::byte*>(std::aligned_alloc(4096, n));
        if (data == nullptr) throw std::bad_alloc();
        blocks_.push_back({data, n});
        used_ = 0;
    }

    std::vector<Block> blocks_;
    std::size_t used_ = 0, total_ = 0;
};

}  // namespace headrace
