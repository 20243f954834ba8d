// The activations of one call, where a descheduled worker may still read them: in its Arena.
#pragma once

#include "pool.hpp"

namespace headrace {

// Where the rows of one call's activations lie: of each of `heads`, in order, those of all tokens.
struct InputRows {
    const float* x;
    int tokens;
    std::int64_t token_stride;  // in floats
    int heads = 1;
    std::int64_t head_stride = 0;

    int count() const { return tokens * heads; }
    const float* row(std::size_t i) const {
        const auto at = static_cast<std::int64_t>(i);
        return x + at % tokens * token_stride + at / tokens * head_stride;
    }
};

// Rows of x as the kernels of one call take them; each kind is made once, when it is first asked
// for.
class Activations {
  public:
    Activations(Pool& pool, Arena& arena, const InputRows& from, int columns)
        : pool_(pool), arena_(arena), from_(from), columns_(columns) {}

    // A pointer to each row.
    const std::byte* const* rows(Input input) {
        if (made_[input] == nullptr) made_[input] = make(input);
        return made_[input];
    }

  private:
    const std::byte* const* make(Input input) {
        const auto n = static_cast<std::size_t>(from_.count());
        auto** rows = arena_.take<const std::byte*>(n);
        if (input == kFloatInput && !pool_.rescues(from_.tokens)) {
            for (std::size_t t = 0; t < n; ++t)
                rows[t] = reinterpret_cast<const std::byte*>(from_.row(t));
            return rows;
        }
        const std::size_t nbytes = input_nbytes(input, columns_);
        auto* made = arena_.take<std::byte>(n * nbytes);
        for (std::size_t t = 0; t < n; ++t) rows[t] = made + t * nbytes;
        // A few tokens make one piece, which runs on the submitter: decode has no barrier here.
        constexpr std::size_t kPieceTokens = 8;
        const auto put = pool_.kernels().put[input];
        pool_.parallel((n + kPieceTokens - 1) / kPieceTokens, [&](std::size_t piece, int) {
            const std::size_t first = piece * kPieceTokens;
            const std::size_t end = n - first < kPieceTokens ? n : first + kPieceTokens;
            for (std::size_t t = first; t < end; ++t)
                put(made + t * nbytes, columns_, 0, from_.row(t), columns_);
        });
        return rows;
    }

    Pool& pool_;
    Arena& arena_;
    const InputRows from_;
    int columns_;
    const std::byte* const* made_[kInputs] = {};
};

}  // namespace headrace
