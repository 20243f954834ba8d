#include "format.hpp"

#include <algorithm>
#include <cstring>

namespace headrace {
namespace {

// Bytes of a ggml block, and its columns; 0 where the kind is none.
struct GgmlBlock {
    int columns;
    std::size_t nbytes;
};

GgmlBlock ggml_block(int kind) {
    switch (kind) {
        case kNVFP4:
        case kQ4_0:
        case kIQ4_NL:
            return {32, 18};
        case kQ4_1:
            return {32, 20};
        case kQ5_0:
            return {32, 22};
        case kQ5_1:
            return {32, 24};
        case kQ8_0:
            return {32, 34};
        case kQ2_K:
            return {256, 84};
        case kQ3_K:
            return {256, 110};
        case kQ4_K:
            return {256, 144};
        case kQ5_K:
            return {256, 176};
        case kQ6_K:
            return {256, 210};
        case kIQ4_XS:
            return {256, 136};
        case kGgmlMXFP4:
            return {32, 17};
        default:
            return {0, 0};
    }
}

// A row's group into a tile's: r is the row.
template <std::size_t kHead, std::size_t kCodes>
void put_group(const std::byte* head, const std::byte* codes, std::size_t r, std::byte* group) {
    std::memcpy(group + r * kHead, head, kHead);
    std::byte* to = group + kLaneRows * kHead + r * 4;
    for (std::size_t i = 0; i < kCodes; i += 4) std::memcpy(to + i * kLaneRows, codes + i, 4);
}

// fn(row, its place in a tile, group, the tile's group) for all groups of all rows.
template <class Fn>
void each_laned_group(int format, std::size_t rows, std::int64_t columns, std::byte* tiles,
                      std::size_t tile_stride, Fn&& fn) {
    const auto block = static_cast<std::size_t>(ggml_block(kind_of(format)).columns);
    const std::size_t groups = (static_cast<std::size_t>(columns) + block - 1) / block,
                      nbytes = tile_nbytes(format, columns), head = lanes_head_nbytes(format);
    for (std::size_t first = 0; first < rows; first += kLaneRows, tiles += tile_stride) {
        const std::size_t n = std::min<std::size_t>(kLaneRows, rows - first);
        if (n < kLaneRows) std::memset(tiles, 0, nbytes);
        for (std::size_t g = 0; g < groups; ++g)
            for (std::size_t r = 0; r < n; ++r)
                fn(first + r, r, g, tiles + head + (nbytes - head) / groups * g);
    }
}

template <std::size_t kHead, std::size_t kCodes>
void put_blocks(int format, const std::byte* rows, std::size_t stride, std::size_t count,
                std::int64_t columns, std::byte* tiles, std::size_t tile_stride) {
    each_laned_group(format, count, columns, tiles, tile_stride,
                     [&](std::size_t row, std::size_t r, std::size_t g, std::byte* group) {
                         const std::byte* block = rows + row * stride + g * (kHead + kCodes);
                         put_group<kHead, kCodes>(block, block + kHead, r, group);
                     });
}

// The nibbles of four bytes as eight bytes, the low one first.
std::uint64_t eight_nibbles(const std::byte* p) {
    std::uint32_t four;
    std::memcpy(&four, p, sizeof four);
    std::uint64_t v = four;
    v = (v | v << 16) & 0x0000ffff0000ffffu;
    v = (v | v << 8) & 0x00ff00ff00ff00ffu;
    return (v | v << 4) & 0x0f0f0f0f0f0f0f0fu;
}

// What `columns` must be a multiple of.
int multiple_of(int format) {
    const int kind = kind_of(format);
    if (kind < kMXFP8) return 1;
    if (kind == kNVFP4) return 16;
    const GgmlBlock block = ggml_block(kind);
    return block.columns > 0 ? block.columns : group_of(format);
}

}  // namespace

std::string format_fault(int format, std::int64_t columns) {
    const int kind = kind_of(format), group = group_of(format);
    if (format < 0 || kind >= kFormats) return "format " + std::to_string(format);
    const bool grouped = (kind > kFP8Row && kind < kQ4_0 && kind != kNVFP4) || is_ordered(format);
    if (kind == kFP8Block ? group == 0 : grouped && (group % 16 != 0 || group == 0))
        return "a group of " + std::to_string(group);
    const int multiple = multiple_of(format), most = is_ordered(format) ? kMostOrdered : 1 << 28;
    if (columns <= 0 || columns > most || columns % multiple != 0)
        return std::to_string(columns) + " columns; expected a multiple of " +
               std::to_string(multiple) + ", at most " + std::to_string(most);
    return "";
}

std::size_t tile_nbytes(int format, std::int64_t columns) {
    const int kind = kind_of(format);
    const auto n = static_cast<std::size_t>(columns);
    if (kind < kFloats) return n * format_nbytes(format);
    const GgmlBlock block = ggml_block(kind);
    if (block.columns > 0)
        return lanes_head_nbytes(format) + (n + static_cast<std::size_t>(block.columns) - 1) /
                                               static_cast<std::size_t>(block.columns) *
                                               block.nbytes *
                                               static_cast<std::size_t>(tile_rows(format));
    if (is_ordered(format))
        return 2 * n + kOrderedRows * tile_nbytes(plain_format(format), columns);
    if (kind == kFP8Row) return sizeof(float) + n;
    const auto group = static_cast<std::size_t>(group_of(format));
    const std::size_t groups = (n + group - 1) / group;
    switch (kind) {
        case kFP8Block:
            return groups * sizeof(float) + static_cast<std::size_t>(tile_rows(format)) * n;
        case kMXFP8:
            return groups + n;
        case kMXFP4:
            return groups + n / 2;
        default:
            return groups * (has_zeros(format) ? 3 : 2) + n / 2;
    }
}

void put_in_lanes(int format, const std::byte* rows, std::size_t row_stride, std::int64_t count,
                  std::int64_t columns, std::byte* tiles, std::size_t tile_stride) {
    const int kind = kind_of(format);
    const auto put = kind == kQ4_0   ? put_blocks<2, 16>
                     : kind == kQ8_0 ? put_blocks<2, 32>
                     : kind == kQ4_K ? put_blocks<0, 144>
                                     : put_blocks<1, 16>;
    put(format, rows, row_stride, static_cast<std::size_t>(count), columns, tiles, tile_stride);
}

void put_pairs_in_lanes(int format, const std::byte* scales, std::size_t scale_stride,
                        const std::byte* codes, std::size_t code_stride, std::int64_t count,
                        std::int64_t columns, std::byte* tiles, std::size_t tile_stride) {
    const bool two = kind_of(format) == kNVFP4;
    const std::size_t each = two ? 2 : 1, all = static_cast<std::size_t>(columns) / (two ? 16 : 32);
    each_laned_group(format, static_cast<std::size_t>(count), columns, tiles, tile_stride,
                     [&](std::size_t row, std::size_t r, std::size_t g, std::byte* group) {
                         const std::size_t there = std::min(each, all - g * each);
                         std::byte head[2]{}, pairs[16]{};
                         std::memcpy(head, scales + row * scale_stride + g * each, there);
                         std::memcpy(pairs, codes + row * code_stride + g * 16, there * 16 / each);
                         std::uint64_t halves[2];
                         for (int i = 0; i < 2; ++i)
                             halves[i] = eight_nibbles(pairs + i * 4) |
                                         eight_nibbles(pairs + 8 + i * 4) << 4;
                         const auto* words = reinterpret_cast<const std::byte*>(halves);
                         if (two)
                             put_group<2, 16>(head, words, r, group);
                         else
                             put_group<1, 16>(head, words, r, group);
                     });
}

}  // namespace headrace
