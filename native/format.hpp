// How weights of every number format lie in memory: as tiles of whole rows, scales among them.
//
// A format is a word: its kind, above it the columns that share a scale, and a flag for zero
// points. headrace/formats/format.py makes these words; both compute the same sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace headrace {

enum Format : int {
    kF32 = 0,
    kBF16,
    kF16,
    kFloats,              // below: rows of plain floats
    kFP8Block = kFloats,  // tile of 8 rows: float32 scale per group; then rows of E4M3
    kFP8Row,              // float32 scale; E4M3
    kMXFP8,               // E8M0 per group; E4M3
    kMXFP4,               // E8M0 per group; E2M1, even column in the low nibble
    kNVFP4,               // tile of 16 rows in lanes (kLaneRows): two E4M3 for 32 columns; E2M1
    kInt4F16,             // float16 per group; zero points (a byte each) if any; nibbles likewise
    kInt4BF16,            // the same with bfloat16
    kQ4_0,                // from here on: ggml's own blocks, one after another, but see kLaneRows
    kQ5_0,
    kQ8_0,
    kQ2_K,
    kQ3_K,
    kQ4_K,
    kQ5_K,
    kQ6_K,
    kIQ4_NL,
    kIQ4_XS,
    kGgmlMXFP4,
    kInt4F16Ordered,  // tile of 64 rows: uint16 per column, which it is; then rows of kInt4F16
    kInt4BF16Ordered,
    kQ4_1,  // ggml's own again
    kQ5_1,
    kFormats
};

inline constexpr int kind_of(int format) { return format & 0xff; }
inline constexpr int group_of(int format) { return (format >> 8) & 0xffff; }
inline constexpr bool has_zeros(int format) { return ((format >> 24) & 1) != 0; }
inline constexpr bool is_ordered(int format) {
    return kind_of(format) == kInt4F16Ordered || kind_of(format) == kInt4BF16Ordered;
}
// Tile of 16 rows: for each block the scale of every row, then of every row four bytes of codes,
// and the next four. A block of kQ4_K is such words from its first byte on. A tile of kNVFP4 begins
// with a float32 of every row, and columns that its last 32 lack are zeros.
inline constexpr bool is_laned(int format) {
    const int kind = kind_of(format);
    return kind == kQ4_0 || kind == kQ8_0 || kind == kQ4_K || kind == kGgmlMXFP4 || kind == kNVFP4;
}
inline constexpr int kOrderedRows = 64, kMostOrdered = 1 << 16;  // of a tile; columns
inline constexpr int kLaneRows = 16;
inline constexpr std::size_t lanes_head_nbytes(int format) {
    return kind_of(format) == kNVFP4 ? kLaneRows * sizeof(float) : 0;
}
inline constexpr int tile_rows(int format) {
    if (is_laned(format)) return kLaneRows;
    return kind_of(format) == kFP8Block ? 8 : is_ordered(format) ? kOrderedRows : 1;
}
// Of the rows behind an order.
inline constexpr int plain_format(int format) {
    return (format & ~0xff) | (kind_of(format) == kInt4F16Ordered ? kInt4F16 : kInt4BF16);
}

inline constexpr std::size_t format_nbytes(int format) { return format == kF32 ? 4 : 2; }

// "" where `columns` of this format can be, else what is wrong.
std::string format_fault(int format, std::int64_t columns);
// Bytes of a tile of `columns`, without what may lie between tiles.
std::size_t tile_nbytes(int format, std::int64_t columns);
// Rows of blocks, as GGUF has them, into tiles of a laned format. The last tile is filled up with
// zeros.
void put_in_lanes(int format, const std::byte* rows, std::size_t row_stride, std::int64_t count,
                  std::int64_t columns, std::byte* tiles, std::size_t tile_stride);
// The same for kGgmlMXFP4 and kNVFP4 from scales and codes that lie apart, of which the even column
// is in the low nibble. The rows' float32 are not written.
void put_pairs_in_lanes(int format, const std::byte* scales, std::size_t scale_stride,
                        const std::byte* codes, std::size_t code_stride, std::int64_t count,
                        std::int64_t columns, std::byte* tiles, std::size_t tile_stride);

// Rows of one matrix where they lie.
struct Tiles {
    const std::byte* w;
    std::size_t stride;  // bytes from one tile to the next
    int columns;
    int format;

    const std::byte* tile(int row) const {
        return w + static_cast<std::size_t>(row / tile_rows(format)) * stride;
    }
};

}  // namespace headrace
