#include "linear.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "activations.hpp"

namespace headrace {
namespace {

constexpr std::size_t kPieceNbytes = 256 << 10;  // about 20 us of one core's memory stream
constexpr std::int64_t kMaxSide = 1 << 28;

void require(bool fits, const std::string& what) {
    if (!fits) throw std::invalid_argument("Matrix: " + what);
}

}  // namespace

Matrix::Matrix(const std::vector<std::pair<std::uintptr_t, std::int64_t>>& given,
               std::int64_t columns_, std::int64_t row_stride_bytes, int format_) {
    require(
        format_ >= 0 && format_ < kFormats,
        "format " + std::to_string(format_) + "; expected 0 (float32), 1 (bfloat16), 2 (float16)");
    require(columns_ > 0 && columns_ <= kMaxSide, "columns " + std::to_string(columns_));
    const auto row_nbytes = static_cast<std::int64_t>(format_nbytes(format_)) * columns_;
    require(row_stride_bytes >= row_nbytes &&
                row_stride_bytes % static_cast<std::int64_t>(format_nbytes(format_)) == 0,
            "row stride " + std::to_string(row_stride_bytes) + "; expected a multiple of the " +
                "element size, at least " + std::to_string(row_nbytes));
    std::int64_t total = 0;
    for (const auto& [address, part_rows] : given) {
        require(address != 0 && part_rows > 0, "a part without rows or address");
        parts.push_back({reinterpret_cast<const std::byte*>(address), static_cast<int>(part_rows),
                         static_cast<int>(total)});
        total += part_rows;
        require(total <= kMaxSide, "too many rows");
    }
    require(total > 0, "no parts");
    rows = static_cast<int>(total);
    columns = static_cast<int>(columns_);
    row_stride = static_cast<std::size_t>(row_stride_bytes);
    format = format_;
    nbytes = static_cast<std::size_t>(total) * static_cast<std::size_t>(row_nbytes);
}

namespace {

// Rows that one piece computes: a bounded read where weights stream, a cached tile where they are
// used again, and always enough pieces for every thread.
int rows_per_piece(const Pool& pool, const DotKernel& kernel, const Matrix& w, int tokens) {
    int rows = kernel.tile_rows(w.columns);
    if (tokens <= kernel.stream_tokens) rows = static_cast<int>(kPieceNbytes / w.row_stride);
    const int share = (w.rows + 4 * pool.threads() - 1) / (4 * pool.threads());
    rows = std::min(rows, share);
    return std::max(8, rows / 8 * 8);
}

class LinearWork final : public Work {
  public:
    LinearWork(Pool& pool, Arena& arena, const float* x, int tokens, const Matrix& w,
               const float* bias, float* y, bool exact);
    std::size_t pieces() const { return pieces_; }
    std::size_t scratch_nbytes() const { return out_nbytes_ + dot_nbytes_; }

    void compute(std::size_t piece, std::byte* scratch) const override;
    void commit(std::size_t piece, const std::byte* scratch) const override;

  private:
    struct Piece {
        const std::byte* w;
        int first_row, rows;  // of y
    };

    const KernelTable& kernels_;
    const DotKernel& kernel_;
    const std::byte* const* x_;
    int tokens_;
    int columns_, stride_rows_;
    std::size_t row_stride_;
    const float* bias_;
    float* y_;
    Piece* piece_ = nullptr;
    std::size_t pieces_ = 0, out_nbytes_ = 0, dot_nbytes_ = 0;
};

LinearWork::LinearWork(Pool& pool, Arena& arena, const float* x, int tokens, const Matrix& w,
                       const float* bias, float* y, bool exact)
    : kernels_(pool.kernels()),
      kernel_(exact ? kernels_.exact[w.format] : kernels_.fast[w.format]),
      x_(activation_rows(pool, arena, kernel_, x, tokens, w.columns)),
      tokens_(tokens),
      columns_(w.columns),
      stride_rows_(w.rows),
      row_stride_(w.row_stride),
      bias_(bias),
      y_(y) {
    const int rows = rows_per_piece(pool, kernel_, w, tokens);
    std::size_t most = 0;
    for (const Matrix::Part& part : w.parts)
        most += static_cast<std::size_t>((part.rows + rows - 1) / rows);
    piece_ = arena.take<Piece>(most);
    for (const Matrix::Part& part : w.parts)
        for (int r = 0; r < part.rows; r += rows)
            piece_[pieces_++] = {part.data + static_cast<std::size_t>(r) * w.row_stride,
                                 part.first_row + r, std::min(rows, part.rows - r)};
    out_nbytes_ =
        (static_cast<std::size_t>(rows) * static_cast<std::size_t>(tokens) * sizeof(float) + 63) /
        64 * 64;
    dot_nbytes_ = kernel_.scratch_nbytes(rows, w.columns, tokens);
}

void LinearWork::compute(std::size_t piece, std::byte* scratch) const {
    const Piece& p = piece_[piece];
    auto* out = reinterpret_cast<float*>(scratch);
    kernel_.run({p.w, row_stride_, p.rows, columns_, x_, tokens_, out,
                 static_cast<std::size_t>(p.rows), scratch + out_nbytes_});
}

void LinearWork::commit(std::size_t piece, const std::byte* scratch) const {
    const Piece& p = piece_[piece];
    const auto* out = reinterpret_cast<const float*>(scratch);
    const auto rows = static_cast<std::size_t>(p.rows);
    for (int t = 0; t < tokens_; ++t) {
        const auto token = static_cast<std::size_t>(t);
        float* y = y_ + token * static_cast<std::size_t>(stride_rows_) + p.first_row;
        std::memcpy(y, out + token * rows, rows * sizeof(float));
        if (bias_ != nullptr) kernels_.add(y, bias_ + p.first_row, rows);
    }
}

}  // namespace

void linear(Pool& pool, const float* x, int tokens, const Matrix& w, const float* bias, float* y,
            bool exact) {
    if (tokens <= 0) return;
    Arena& arena = pool.begin_call();
    auto* work =
        new (arena.take<LinearWork>(1)) LinearWork(pool, arena, x, tokens, w, bias, y, exact);
    pool.perform(arena, *work, work->pieces(), work->scratch_nbytes(), pool.rescues(tokens));
}

}  // namespace headrace
