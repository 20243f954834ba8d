// Norms, rotary embedding, KV, attention, convolution, delta rule, state space and router: what one
// call means, and the kernels of one instruction set that compute pieces of it.
//
// Invariant: a token's bits depend on its own inputs and state only, not on who shares the call,
// how a prompt was cut, or how the work was split among threads. The meaning of every field is in
// _native.pyi; strides are in floats unless named otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pool.hpp"
#include "table.hpp"

namespace headrace {

// x += y, elementwise.
struct Add {
    float* x;
    const float* y;
    std::int64_t count;
};

// What a row is multiplied by, and where. The numbers are those of _native.pyi.
enum Gating : int { kSiluBehind = 0, kSiluBefore = 1, kSigmoidBehind = 2 };

struct RmsNorm {
    const float* x;
    const float* gate;  // nullptr: no gate
    std::int64_t rows;
    std::int64_t width;
    std::int64_t x_stride;
    const float* weight;  // nullptr: ones
    float eps;
    bool plus_one;
    float* y;
    std::int64_t y_stride;
    std::int64_t group = 0;  // rows that lie x_stride apart, groups of them group_stride; 0: all do
    std::int64_t group_stride = 0;
    std::int64_t gate_group = 0;  // dense rows of the gate, groups of them gate_stride apart
    std::int64_t gate_stride = 0;
    int gating = kSiluBehind;
    std::int64_t weight_rows = 1;  // row i has weight row i % weight_rows

    // Always inlined: a copy compiled for a newer instruction set must not be linked in for all.
    [[gnu::always_inline]] const float* row(std::int64_t i) const {
        return group == 0 ? x + i * x_stride : x + i / group * group_stride + i % group * x_stride;
    }
    [[gnu::always_inline]] const float* gate_row(std::int64_t i) const {
        if (gate_group == 0) return gate + i * width;
        return gate + i / gate_group * gate_stride + i % gate_group * width;
    }
};

struct Rope {
    float* x;
    std::int64_t tokens;
    std::int64_t heads;
    std::int64_t token_stride;
    std::int64_t head_dim;
    const float* cos;
    const float* sin;
    std::int64_t rotated;
    bool interleaved;
};

struct StoreKv {
    const float* x;
    std::int64_t tokens;
    std::int64_t token_stride;
    std::int64_t width;
    const std::int64_t* slots;
    std::byte* pool;
    int format;
    std::int64_t step = 0;  // elements from one slot to the next; 0: width
};

struct Attention {
    // Keys are taken in tiles of kTile and the tiles in spans of kSpan, both by absolute position:
    // sums run within a span, and spans are merged in order, whoever computed them.
    static constexpr int kTile = 64;
    static constexpr int kSpan = 256;
    static constexpr int kRows = 96;     // query rows (tokens x heads of a group) that share a tile
    static constexpr int kFewRows = 16;  // up to here reading keys costs more than using them
    static constexpr int kGroup = 32;    // query heads of one key that a piece should have at most

    const float* q;
    std::int64_t q_stride;
    const std::byte* k;
    const std::byte* v;
    int format;
    float* out;
    int sequences;
    const std::int32_t* offsets;
    const std::int32_t* contexts;
    const std::int32_t* blocks;
    std::int64_t max_blocks;
    std::int64_t block_size;
    int heads;
    int kv_heads;
    int head_dim;
    int value_dim;
    float scale;
    int window;
    bool chunked;  // the window is what lies behind the last multiple of its size
    const float* sinks;
    std::int64_t value_step = 0;  // elements from one head's values to the next; 0: value_dim
    int shared = 1;               // so many of `kv_heads`, side by side, are one in K and V

    [[gnu::always_inline]] int group() const { return heads / kv_heads; }
    [[gnu::always_inline]] int stored_heads() const { return kv_heads / shared; }
    [[gnu::always_inline]] std::int64_t value_row() const {
        return value_step == 0 ? value_dim : value_step;
    }
    [[gnu::always_inline]] std::int64_t first_key(std::int64_t position) const {
        if (window <= 0 || position < window) return 0;
        return chunked ? position - position % window : position - window + 1;
    }
};

// The queries of tokens [first_token, last_token) of one sequence with KV heads
// [first_head, last_head), against the keys of spans [first_span, last_span).
struct AttentionPiece {
    int sequence;
    int first_head;
    int last_head;
    int first_token;
    int last_token;
    std::int64_t first_span;
    std::int64_t last_span;
    // nullptr: the piece sees all its spans and writes `out`. Otherwise row r (KV head by KV head,
    // token by token, the group's heads in order) of span s goes to
    // partial[(r * spans + s - base_span) * entry].
    float* partial;
    std::int64_t base_span;
    std::int64_t spans;
};

// Sequences that are computed run by run, in order, so that states within them can be kept:
// `offsets` and `slots` of a call are then those of runs.
struct Runs {
    int sequences = 0;
    const std::int32_t* firsts = nullptr;  // [sequences + 1]; nullptr: each run is a sequence
    const std::int32_t* keeps = nullptr;   // by run: the slot that gets a copy behind it, or -1
};

struct Conv {
    static constexpr int kChannels = 512;  // channels that one pass over the tokens takes

    const float* x;
    std::int64_t tokens;
    std::int64_t x_stride;
    std::int64_t channels;
    int kernel;
    const float* weight;
    const float* bias;  // nullptr: zeros
    int sequences;
    const std::int32_t* offsets;
    const std::int32_t* slots;
    float* state;
    bool silu;
    float* y;  // apart from x
    Runs runs = {};
};

struct Delta {
    static constexpr int kColumns = 32;  // state columns that stay in L1 over a run of tokens
    static constexpr int kTokens = 32;   // tokens whose q and k are normalised together

    const float* q;
    const float* k;
    const float* v;
    std::int64_t q_stride;
    std::int64_t k_stride;
    std::int64_t v_stride;
    const float* decay;  // [tokens, heads], or [tokens, heads, key_dim]
    const float* beta;
    float* out;
    int sequences;
    const std::int32_t* offsets;
    const std::int32_t* slots;
    float* state;
    int key_heads;
    int value_heads;
    int key_dim;
    int value_dim;
    bool normalize;
    float scale;
    bool tiled = false;       // value head i uses key head i % key_heads
    bool decay_rows = false;  // each row of the state has a decay of its own
    Runs runs = {};
};

// S = exp(decay) S + b (step x)^T; out = c.S + skip x, per head.
struct Ssm {
    static constexpr int kColumns = 32;  // state columns that stay in L1 over a run of tokens

    const float* x;
    const float* b;
    const float* c;
    std::int64_t x_stride;
    std::int64_t b_stride;
    std::int64_t c_stride;
    const float* decay;
    const float* step;
    const float* skip;
    float* out;
    int sequences;
    const std::int32_t* offsets;
    const std::int32_t* slots;
    float* state;
    int groups;
    int value_heads;
    int key_dim;    // rows of the state
    int value_dim;  // its columns
    Runs runs = {};
};

struct Route {
    const float* logits;
    std::int64_t tokens;
    int experts;
    int top_k;
    int score;
    const float* bias;
    int groups;
    int keep_groups;
    bool renormalize;
    float renorm_eps;
    float scale;
    const float* scales;  // by expert, times the weights; nullptr: ones
    std::int32_t* ids;
    float* weights;
    int group_best = 2;  // scores of a group that are summed: its best one, or its two best
};

// y[t] = sum over i of x[t][i] * row i of w, in ascending i.
struct Across {
    const float* x;
    std::int64_t x_stride;
    int tokens;
    Tiles w;
    int rows;
    void (*unpack)(const Tiles& tiles, int row, float* to);
    float* y;
    std::int64_t y_stride;
    std::byte* scratch;
};

struct MixerTable {
    // Rows or tokens [first, last).
    void (*rms_norm)(const RmsNorm& c, std::int64_t first, std::int64_t last);
    void (*rope)(const Rope& c, std::int64_t first, std::int64_t last);
    void (*store_kv)(const StoreKv& c, std::int64_t first, std::int64_t last);
    std::size_t (*attention_scratch_nbytes)(const Attention& c, int rows);
    std::int64_t (*attention_entry)(const Attention& c);  // floats of one row of one span
    void (*attention)(const Attention& c, const AttentionPiece& p, std::byte* scratch);
    // Merges the spans of rows [first, last) of a piece whose spans were computed apart.
    void (*attention_merge)(const Attention& c, const AttentionPiece& p, int first, int last,
                            std::byte* scratch);
    std::size_t (*conv_scratch_nbytes)(const Conv& c);
    void (*conv)(const Conv& c, int sequence, std::int64_t first, std::int64_t last,
                 std::byte* scratch);
    std::size_t (*delta_scratch_nbytes)(const Delta& c);
    // Columns [first, last) of the state of one value head; `first` is a multiple of kColumns.
    void (*delta)(const Delta& c, int sequence, int head, int first, int last, std::byte* scratch);
    std::size_t (*ssm_scratch_nbytes)(const Ssm& c);
    // As `delta`.
    void (*ssm)(const Ssm& c, int sequence, int head, int first, int last, std::byte* scratch);
    void (*route)(const Route& c, std::int64_t first, std::int64_t last, std::byte* scratch);
    std::size_t (*across_scratch_nbytes)(int columns, int tokens);
    void (*across)(const Across& c);
};

// Each checks its arguments (std::invalid_argument: found; expected), splits the work over the
// pool where it is worth a barrier, and returns when the result is written.
void add(Pool& pool, const Add& c);
void rms_norm(Pool& pool, const RmsNorm& c);
void rope(Pool& pool, const Rope& c);
void store_kv(Pool& pool, const StoreKv& c);
void attention(Pool& pool, const Attention& c);
void conv(Pool& pool, const Conv& c);
void delta(Pool& pool, const Delta& c);
void ssm(Pool& pool, const Ssm& c);
void route(Pool& pool, const Route& c);

}  // namespace headrace
