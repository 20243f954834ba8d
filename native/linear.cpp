#include "linear.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "activations.hpp"
#include "mixers.hpp"
#include "split.hpp"

namespace headrace {
namespace {

constexpr std::size_t kPieceNbytes = 256 << 10;  // about 20 us of one core's memory stream
constexpr std::int64_t kMaxSide = 1 << 28;

void require_matrix(bool fits, const std::string& what) {
    if (!fits) throw std::invalid_argument("Matrix: " + what);
}

}  // namespace

Matrix::Matrix(const std::vector<Given>& given, std::int64_t columns_) {
    std::int64_t total = 0;
    for (const Given& part : given) {
        const std::string fault = format_fault(part.format, columns_);
        require_matrix(fault.empty(), fault);
        const auto tile = static_cast<std::int64_t>(tile_nbytes(part.format, columns_));
        const bool floats = part.format < kFloats;
        const auto unit = floats ? static_cast<std::int64_t>(format_nbytes(part.format)) : 1;
        require_matrix(part.stride_bytes >= tile && part.stride_bytes % unit == 0,
                       "row stride " + std::to_string(part.stride_bytes) +
                           "; expected a multiple of the " + "element size, at least " +
                           std::to_string(tile));
        require_matrix(part.address != 0 && part.rows > 0, "a part without rows or address");
        parts.push_back({reinterpret_cast<const std::byte*>(part.address),
                         static_cast<int>(part.rows), static_cast<int>(total),
                         static_cast<std::size_t>(part.stride_bytes), part.format});
        total += part.rows;
        require_matrix(total <= kMaxSide, "too many rows");
        const int tall = tile_rows(part.format);
        nbytes += static_cast<std::size_t>((part.rows + tall - 1) / tall * tile);
    }
    require_matrix(total > 0, "no parts");
    rows = static_cast<int>(total);
    columns = static_cast<int>(columns_);
}

namespace {

// Rows that one piece computes: a bounded read where weights stream, a cached tile where they are
// used again, and always enough pieces for every thread.
int rows_per_piece(const Pool& pool, const DotKernel& kernel, const Matrix& w,
                   const Matrix::Part& part, int tokens) {
    const int share = (w.rows + 4 * pool.threads() - 1) / (4 * pool.threads());
    const int unit = std::max(8, tile_rows(part.format));
    if (tokens > kernel.stream_tokens)
        return std::max(unit, std::min(kernel.tile_rows(w.columns), share) / unit * unit);
    const int rows = static_cast<int>(kPieceNbytes / part.stride) * tile_rows(part.format);
    return std::max(unit, kernel.piece_rows(rows, share, unit));
}

// Where results go: a row a token, `gap` floats left free behind each part's.
struct Output {
    float* y;
    std::int64_t stride;
    const float* bias;
    int gap;
};

class LinearWork final : public Work {
  public:
    LinearWork(Pool& pool, Arena& arena, const InputRows& x, const Matrix& w, const Output& out,
               bool exact);
    std::size_t pieces() const { return pieces_; }
    std::size_t scratch_nbytes() const { return out_nbytes_ + dot_nbytes_; }

    void compute(std::size_t piece, std::byte* scratch) const override;
    void commit(std::size_t piece, const std::byte* scratch) const override;

  private:
    struct Piece {
        const DotKernel* kernel;
        const std::byte* const* x;
        const std::byte* w;
        std::size_t stride;
        int format;
        int first_row, rows;  // of y
    };
    int add_pieces(const Pool& pool, const Matrix& w, const Matrix::Part& part,
                   const DotKernel& kernel, const std::byte* const* x, int shift);

    const KernelTable& kernels_;
    int tokens_;
    int columns_;
    Output out_;
    Piece* piece_ = nullptr;
    std::size_t pieces_ = 0, out_nbytes_ = 0, dot_nbytes_ = 0;
};

LinearWork::LinearWork(Pool& pool, Arena& arena, const InputRows& x, const Matrix& w,
                       const Output& out, bool exact)
    : kernels_(pool.kernels()), tokens_(x.tokens), columns_(w.columns), out_(out) {
    Activations inputs(pool, arena, x, w.columns);
    const auto kernel_of = [&](const Matrix::Part& part) -> const DotKernel& {
        return (exact ? kernels_.exact : kernels_.fast)[kind_of(part.format)];
    };
    std::size_t most = 0;
    for (const Matrix::Part& part : w.parts) {
        const int rows = rows_per_piece(pool, kernel_of(part), w, part, tokens_);
        most += static_cast<std::size_t>((part.rows + rows - 1) / rows);
    }
    piece_ = arena.take<Piece>(most);
    int tallest = 0, shift = 0;
    std::size_t at = 0;
    for (const Matrix::Part& part : w.parts) {
        const DotKernel& kernel = kernel_of(part);
        const std::byte* const* rows = inputs.rows(kernel.input) + at;
        tallest = std::max(tallest, add_pieces(pool, w, part, kernel, rows, shift));
        shift += out.gap;
        if (x.heads > 1) at += static_cast<std::size_t>(tokens_);
    }
    out_nbytes_ =
        (static_cast<std::size_t>(tallest) * static_cast<std::size_t>(tokens_) * sizeof(float) +
         63) /
        64 * 64;
}

// Rows of the tallest piece.
int LinearWork::add_pieces(const Pool& pool, const Matrix& w, const Matrix::Part& part,
                           const DotKernel& kernel, const std::byte* const* x, int shift) {
    const int rows = rows_per_piece(pool, kernel, w, part, tokens_);
    for (int r = 0; r < part.rows; r += rows)
        piece_[pieces_++] = {
            &kernel,
            x,
            part.data + static_cast<std::size_t>(r / tile_rows(part.format)) * part.stride,
            part.stride,
            part.format,
            part.first_row + r + shift,
            std::min(rows, part.rows - r)};
    dot_nbytes_ = std::max(dot_nbytes_, kernel.scratch_nbytes(rows, w.columns, tokens_));
    return rows;
}

void LinearWork::compute(std::size_t piece, std::byte* scratch) const {
    const Piece& p = piece_[piece];
    auto* out = reinterpret_cast<float*>(scratch);
    p.kernel->run({p.w, p.stride, p.rows, columns_, p.x, tokens_, out,
                   static_cast<std::size_t>(p.rows), scratch + out_nbytes_, p.format});
}

void LinearWork::commit(std::size_t piece, const std::byte* scratch) const {
    const Piece& p = piece_[piece];
    const auto* out = reinterpret_cast<const float*>(scratch);
    const auto rows = static_cast<std::size_t>(p.rows);
    for (int t = 0; t < tokens_; ++t) {
        const auto token = static_cast<std::size_t>(t);
        float* y = out_.y + token * static_cast<std::size_t>(out_.stride) + p.first_row;
        std::memcpy(y, out + token * rows, rows * sizeof(float));
        if (out_.bias != nullptr) kernels_.add(y, out_.bias + p.first_row, rows);
    }
}

void multiply(Pool& pool, const InputRows& x, const Matrix& w, const Output& out, bool exact) {
    Arena& arena = pool.begin_call();
    auto* work = new (arena.take<LinearWork>(1)) LinearWork(pool, arena, x, w, out, exact);
    pool.perform(arena, *work, work->pieces(), work->scratch_nbytes(), pool.rescues(x.tokens));
}

// Head by head, with as many tokens as leave their sums in L2.
void multiply_across(Pool& pool, const PerHead& c, const Matrix& w, std::int64_t stride) {
    constexpr int kTokens = 128;
    const MixerTable& kernels = *pool.kernels().mixers;
    const auto heads = static_cast<std::int64_t>(w.parts.size());
    const int rows = w.parts[0].rows, tokens = std::min(c.tokens, kTokens);
    pool.reserve_scratch(kernels.across_scratch_nbytes(w.columns, tokens));
    const std::int64_t blocks = (c.tokens + kTokens - 1) / kTokens;
    const std::int64_t work = static_cast<std::int64_t>(rows) * w.columns * (tokens + 2) / 8;
    split(pool, heads * blocks, work, [&](std::int64_t first, std::int64_t last, int worker) {
        for (std::int64_t unit = first; unit < last; ++unit) {
            const std::int64_t head = unit / blocks, from = unit % blocks * kTokens;
            const Matrix::Part& part = w.parts[static_cast<std::size_t>(head)];
            kernels.across({c.x + from * c.token_stride + head * c.head_stride,
                            c.token_stride,
                            static_cast<int>(std::min<std::int64_t>(kTokens, c.tokens - from)),
                            {part.data, part.stride, w.columns, part.format},
                            rows,
                            pool.kernels().unpack[kind_of(part.format)],
                            c.y + from * stride * heads + head * stride,
                            stride * heads,
                            pool.scratch(worker)});
        }
    });
}

}  // namespace

void linear(Pool& pool, const float* x, int tokens, const Matrix& w, const float* bias, float* y,
            bool exact) {
    if (tokens > 0) multiply(pool, {x, tokens, w.columns}, w, {y, w.rows, bias, 0}, exact);
}

void per_head(Pool& pool, const PerHead& c, const Matrix& w) {
    const int rows = w.parts[0].rows, heads = static_cast<int>(w.parts.size());
    for (const Matrix::Part& part : w.parts)
        require_matrix(part.rows == rows, "heads of " + std::to_string(part.rows) + " and " +
                                              std::to_string(rows) + " rows; expected as many");
    if (c.tokens <= 0) return;
    const int taken = c.across ? rows : w.columns, given = c.across ? w.columns : rows;
    const std::int64_t stride = given + c.keep;
    if (c.across)
        multiply_across(pool, c, w, stride);
    else
        multiply(pool, {c.x, c.tokens, c.token_stride, heads, c.head_stride}, w,
                 {c.y, stride * heads, nullptr, c.keep}, c.exact);
    if (c.keep == 0) return;
    const auto nbytes = static_cast<std::size_t>(c.keep) * sizeof(float);
    split(pool, c.tokens, heads * c.keep, [&](std::int64_t first, std::int64_t last, int) {
        for (std::int64_t t = first; t < last; ++t)
            for (int h = 0; h < heads; ++h)
                std::memcpy(c.y + (t * heads + h) * stride + given,
                            c.x + t * c.token_stride + h * c.head_stride + taken, nbytes);
    });
}

}  // namespace headrace
