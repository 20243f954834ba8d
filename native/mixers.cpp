#include "mixers.hpp"

#include <algorithm>
#include <vector>

#include "split.hpp"

namespace headrace {
namespace {

void check_offsets(const std::int32_t* offsets, int sequences) {
    require(sequences >= 0, number(sequences) + " sequences", "at least 0");
    for (int s = 0; s < sequences; ++s)
        require(offsets[s] >= 0 && offsets[s] <= offsets[s + 1],
                "offsets " + number(offsets[s]) + ", " + number(offsets[s + 1]),
                "offsets that never fall");
}

// How many sequences a call has; its `count` runs must be theirs.
int sequences_of(const Runs& runs, int count) {
    if (runs.firsts == nullptr) return count;
    require(runs.sequences >= 0 && runs.firsts[0] == 0 && runs.firsts[runs.sequences] == count,
            number(count) + " runs of " + number(runs.sequences) + " sequences",
            "as many as the sequences have");
    for (int s = 0; s < runs.sequences; ++s)
        require(runs.firsts[s] <= runs.firsts[s + 1], "firsts that fall", "firsts that never fall");
    return runs.sequences;
}

// The runs of one sequence in order: run(r), then kept(r, slot) where a copy is wanted behind it.
template <class Run, class Kept>
void walk(const Runs& runs, int sequence, Run&& run, Kept&& kept) {
    if (runs.firsts == nullptr) return run(sequence);
    for (int r = runs.firsts[sequence]; r < runs.firsts[sequence + 1]; ++r) {
        run(r);
        if (runs.keeps[r] >= 0) kept(r, static_cast<std::int64_t>(runs.keeps[r]));
    }
}

}  // namespace

void add(Pool& pool, const Add& c) {
    require(c.count >= 0, number(c.count) + " elements", "at least 0");
    const Pool::Busy busy(pool);
    const auto kernel = pool.kernels().add;
    split(pool, c.count, 1, [&](std::int64_t first, std::int64_t last, int) {
        kernel(c.x + first, c.y + first, static_cast<std::size_t>(last - first));
    });
}

void rms_norm(Pool& pool, const RmsNorm& c) {
    require(c.width > 0, "a row of " + number(c.width), "at least 1 element");
    const Pool::Busy busy(pool);
    const auto kernel = pool.kernels().mixers->rms_norm;
    split(pool, c.rows, c.width * (c.gate == nullptr ? 1 : 3),
          [&](std::int64_t first, std::int64_t last, int) { kernel(c, first, last); });
}

void rope(Pool& pool, const Rope& c) {
    require(c.rotated >= 0 && c.rotated % 2 == 0 && c.rotated <= c.head_dim,
            number(c.rotated) + " rotated of " + number(c.head_dim),
            "an even number, at most the head's width");
    const Pool::Busy busy(pool);
    const auto kernel = pool.kernels().mixers->rope;
    split(pool, c.tokens, c.heads * c.rotated,
          [&](std::int64_t first, std::int64_t last, int) { kernel(c, first, last); });
}

void store_kv(Pool& pool, const StoreKv& c) {
    require(c.format == kF32 || c.format == kBF16, "KV format " + number(c.format),
            "0 (float32) or 1 (bfloat16)");
    const Pool::Busy busy(pool);
    const auto kernel = pool.kernels().mixers->store_kv;
    split(pool, c.tokens, c.width,
          [&](std::int64_t first, std::int64_t last, int) { kernel(c, first, last); });
}

namespace {

void check_attention(const Attention& c) {
    require(c.format == kF32 || c.format == kBF16, "KV format " + number(c.format),
            "0 (float32) or 1 (bfloat16)");
    require(c.heads > 0 && c.kv_heads > 0 && c.heads % c.kv_heads == 0,
            number(c.heads) + " heads and " + number(c.kv_heads) + " KV heads",
            "a multiple of at least 1 KV head");
    require(c.head_dim > 0 && c.value_dim > 0,
            "heads of " + number(c.head_dim) + " and " + number(c.value_dim), "at least 1");
    require(c.block_size > 0, "blocks of " + number(c.block_size), "at least 1 token");
    check_offsets(c.offsets, c.sequences);
    for (int s = 0; s < c.sequences; ++s) {
        const std::int64_t end = c.contexts[s] + c.offsets[s + 1] - c.offsets[s];
        require(c.contexts[s] >= 0 && end <= c.max_blocks * c.block_size,
                "a context of " + number(c.contexts[s]) + " that grows to " + number(end),
                "at least 0, and no more than its blocks hold");
    }
}

int piece_rows(const Attention& c, const AttentionPiece& p) {
    return (p.last_token - p.first_token) * c.group() * (p.last_head - p.first_head);
}

// What a span costs, in elements touched: loading each key and value, then using it row by row.
std::int64_t span_work(const Attention& c, const AttentionPiece& p) {
    const std::int64_t loads = 2 * (p.last_head - p.first_head);
    return Attention::kSpan * (c.head_dim + c.value_dim) * (piece_rows(c, p) + loads) / 4;
}

struct AttentionPlan {
    std::vector<AttentionPiece> pieces;
    std::vector<AttentionPiece> merges;  // pieces whose spans are computed apart
    std::vector<std::int64_t> partial_at;
    std::int64_t partial_floats = 0;
    std::int64_t work = 0;
    std::int64_t share = 0;  // work that one piece should not exceed by much
    int rows = 0;

    std::int64_t spans_at_once(const Attention& c, const AttentionPiece& p) const {
        return std::max<std::int64_t>(1, share / span_work(c, p));
    }
};

// Tokens tile by tile with all KV heads (the heads of one key lie side by side and are best read
// together), or one by one where a tile has many rows or there is too little to share otherwise.
std::vector<AttentionPiece> whole_pieces(const Pool& pool, const Attention& c) {
    const int tokens = std::max(1, Attention::kRows / c.group());
    std::vector<AttentionPiece> tiles;
    std::int64_t spans = 0;
    for (int s = 0; s < c.sequences; ++s)
        for (int t = c.offsets[s]; t < c.offsets[s + 1]; t += tokens) {
            const int end = std::min(t + tokens, c.offsets[s + 1]);
            const std::int64_t position = c.contexts[s] + t - c.offsets[s];
            const std::int64_t first = c.first_key(position) / Attention::kSpan;
            const std::int64_t last = (position + end - t - 1) / Attention::kSpan + 1;
            tiles.push_back({s, 0, 1, t, end, first, last, nullptr, first, last - first});
            spans += last - first;
        }
    int together = c.kv_heads;
    while (together > 1 && spans * (c.kv_heads / together) < pool.threads() * kPiecesPerThread)
        together = (together + 1) / 2;
    std::vector<AttentionPiece> pieces;
    for (AttentionPiece p : tiles) {
        const int heads = piece_rows(c, p) <= Attention::kFewRows ? together : 1;
        for (int h = 0; h < c.kv_heads; h += heads) {
            p.first_head = h;
            p.last_head = std::min(h + heads, c.kv_heads);
            pieces.push_back(p);
        }
    }
    return pieces;
}

// Where many heads share a key, a few of them make a piece: their rows stay in L2, and a short
// context is work for more than one thread.
Attention cut_groups(const Pool& pool, Attention c) {
    std::int64_t spans = 0;
    for (int s = 0; s < c.sequences; ++s)
        if (c.offsets[s] < c.offsets[s + 1])
            spans += (c.contexts[s] + c.offsets[s + 1] - c.offsets[s] - 1) / Attention::kSpan + 1;
    const auto more = [&] {
        return c.group() > Attention::kGroup ||
               (c.group() > Attention::kFewRows &&
                spans * c.kv_heads < pool.threads() * kPiecesPerThread);
    };
    while (c.group() % 2 == 0 && more()) {
        c.kv_heads *= 2;
        c.shared *= 2;
    }
    return c;
}

AttentionPlan plan_attention(const Pool& pool, const Attention& c) {
    AttentionPlan plan;
    const std::vector<AttentionPiece> whole = whole_pieces(pool, c);
    const std::int64_t entry = pool.kernels().mixers->attention_entry(c);
    for (const AttentionPiece& p : whole) {
        plan.rows = std::max(plan.rows, piece_rows(c, p));
        plan.work += p.spans * span_work(c, p);
    }
    plan.share = std::max(kPieceWork, plan.work / (pool.threads() * kPiecesPerThread));
    for (const AttentionPiece& p : whole) {
        if (pool.threads() == 1 || p.spans < 2 * plan.spans_at_once(c, p)) {
            plan.pieces.push_back(p);
            continue;
        }
        plan.merges.push_back(p);
        plan.partial_at.push_back(plan.partial_floats);
        plan.partial_floats += piece_rows(c, p) * p.spans * entry;
    }
    return plan;
}

void cut_spans(const Attention& c, AttentionPlan& plan, float* partial) {
    for (std::size_t i = 0; i < plan.merges.size(); ++i) {
        AttentionPiece& p = plan.merges[i];
        p.partial = partial + plan.partial_at[i];
        const std::int64_t chunk = plan.spans_at_once(c, p);
        for (std::int64_t at = p.first_span; at < p.last_span; at += chunk) {
            AttentionPiece part = p;
            part.first_span = at;
            part.last_span = std::min(at + chunk, p.last_span);
            plan.pieces.push_back(part);
        }
    }
    // The longest first, so that the last pieces are short.
    const auto length = [&](const AttentionPiece& p) {
        return (p.last_span - p.first_span) * piece_rows(c, p);
    };
    std::stable_sort(
        plan.pieces.begin(), plan.pieces.end(),
        [&](const AttentionPiece& a, const AttentionPiece& b) { return length(a) > length(b); });
}

}  // namespace

void attention(Pool& pool, const Attention& given) {
    check_attention(given);
    const Pool::Busy busy(pool);
    const Attention c = cut_groups(pool, given);
    const MixerTable& kernels = *pool.kernels().mixers;
    AttentionPlan plan = plan_attention(pool, c);
    std::vector<float> partial(static_cast<std::size_t>(plan.partial_floats));
    cut_spans(c, plan, partial.data());
    if (plan.pieces.empty()) return;
    pool.reserve_scratch(kernels.attention_scratch_nbytes(c, plan.rows));
    if (plan.pieces.size() == 1 || plan.work < 2 * kPieceWork) {
        for (const AttentionPiece& p : plan.pieces) kernels.attention(c, p, pool.scratch(0));
    } else {
        pool.parallel(plan.pieces.size(), [&](std::size_t i, int worker) {
            kernels.attention(c, plan.pieces[i], pool.scratch(worker));
        });
    }
    for (const AttentionPiece& p : plan.merges) {
        const int rows = piece_rows(c, p);
        split(pool, rows, p.spans * c.value_dim,
              [&](std::int64_t first, std::int64_t last, int worker) {
                  kernels.attention_merge(c, p, static_cast<int>(first), static_cast<int>(last),
                                          pool.scratch(worker));
              });
    }
}

void conv(Pool& pool, const Conv& c) {
    constexpr std::int64_t kChannels = Conv::kChannels;
    require(c.kernel >= 1 && c.channels >= 1,
            "a kernel of " + number(c.kernel) + " over " + number(c.channels) + " channels",
            "at least 1 of each");
    check_offsets(c.offsets, c.sequences);
    const Pool::Busy busy(pool);
    const MixerTable& kernels = *pool.kernels().mixers;
    pool.reserve_scratch(kernels.conv_scratch_nbytes(c));
    const int sequences = sequences_of(c.runs, c.sequences);
    const std::int64_t groups = (c.channels + kChannels - 1) / kChannels;
    const std::int64_t work =
        (c.tokens + c.sequences) * kChannels * (c.kernel + 4) / std::max(1, sequences);
    const auto state = [&](std::int64_t slot, std::int64_t channel) {
        return c.state + (slot * c.channels + channel) * (c.kernel - 1);
    };
    split(pool, groups * sequences, work, [&](std::int64_t first, std::int64_t last, int worker) {
        for (std::int64_t unit = first; unit < last; ++unit) {
            const std::int64_t at = unit % groups * kChannels;
            const std::int64_t end = std::min(c.channels, at + kChannels);
            walk(
                c.runs, static_cast<int>(unit / groups),
                [&](int run) { kernels.conv(c, run, at, end, pool.scratch(worker)); },
                [&](int run, std::int64_t slot) {
                    const float* from = state(c.slots[run], at);
                    std::copy(from, from + (end - at) * (c.kernel - 1), state(slot, at));
                });
        }
    });
}

namespace {

// Heads of every sequence over the pool, run by run. `kernel` takes columns of one head's state,
// which are independent: a head is cut between them where there are too few heads.
template <class C, class Kernel>
void carry(Pool& pool, const C& c, const Kernel& kernel) {
    const int sequences = sequences_of(c.runs, c.sequences);
    if (sequences == 0) return;
    const std::int64_t heads = static_cast<std::int64_t>(sequences) * c.value_heads;
    const int blocks = (c.value_dim + C::kColumns - 1) / C::kColumns;
    const int cuts = heads >= pool.threads() * kPiecesPerThread ? 1 : blocks;
    const int columns = (blocks + cuts - 1) / cuts * C::kColumns;
    const std::int64_t tokens = c.offsets[c.sequences] - c.offsets[0];
    const std::int64_t work = tokens * c.key_dim * c.value_dim / sequences / cuts;
    const auto state = [&](std::int64_t slot, int head) {
        return c.state + (slot * c.value_heads + head) * c.key_dim * c.value_dim;
    };
    split(pool, heads * cuts, work, [&](std::int64_t first, std::int64_t last, int worker) {
        for (std::int64_t unit = first; unit < last; ++unit) {
            const int head = static_cast<int>(unit / cuts % c.value_heads);
            const int at = static_cast<int>(unit % cuts) * columns;
            const int end = std::min(c.value_dim, at + columns);
            walk(
                c.runs, static_cast<int>(unit / cuts / c.value_heads),
                [&](int run) { kernel(c, run, head, at, end, pool.scratch(worker)); },
                [&](int run, std::int64_t slot) {
                    const float* from = state(c.slots[run], head);
                    float* to = state(slot, head);
                    for (std::int64_t i = 0; i < c.key_dim; ++i)
                        std::copy(from + i * c.value_dim + at, from + i * c.value_dim + end,
                                  to + i * c.value_dim + at);
                });
        }
    });
}

template <class C>
void check_heads(const C& c, int key_heads) {
    require(key_heads > 0 && c.value_heads > 0 && c.value_heads % key_heads == 0,
            number(c.value_heads) + " value heads and " + number(key_heads) + " key heads",
            "a multiple of at least 1 key head");
    require(c.key_dim > 0 && c.value_dim > 0,
            "heads of " + number(c.key_dim) + " and " + number(c.value_dim), "at least 1");
    check_offsets(c.offsets, c.sequences);
}

}  // namespace

void delta(Pool& pool, const Delta& c) {
    check_heads(c, c.key_heads);
    if (c.sequences == 0) return;
    const Pool::Busy busy(pool);
    const MixerTable& kernels = *pool.kernels().mixers;
    pool.reserve_scratch(kernels.delta_scratch_nbytes(c));
    carry(pool, c, kernels.delta);
}

void ssm(Pool& pool, const Ssm& c) {
    check_heads(c, c.groups);
    if (c.sequences == 0) return;
    const Pool::Busy busy(pool);
    const MixerTable& kernels = *pool.kernels().mixers;
    pool.reserve_scratch(kernels.ssm_scratch_nbytes(c));
    carry(pool, c, kernels.ssm);
}

void route(Pool& pool, const Route& c) {
    require(c.score >= 0 && c.score <= 2, "score " + number(c.score), "0, 1 or 2");
    require(c.top_k >= 1 && c.top_k <= c.experts,
            "top " + number(c.top_k) + " of " + number(c.experts) + " experts",
            "at least 1 and no more than there are");
    require(c.groups <= 1 ||
                (c.experts % c.groups == 0 && c.keep_groups >= 1 && c.keep_groups <= c.groups),
            number(c.groups) + " groups, " + number(c.keep_groups) + " kept, of " +
                number(c.experts) + " experts",
            "groups of equal size and at least one kept");
    require(c.group_best == 1 || c.group_best == 2, "the best " + number(c.group_best),
            "1 or 2 of a group");
    const Pool::Busy busy(pool);
    const MixerTable& kernels = *pool.kernels().mixers;
    pool.reserve_scratch(
        static_cast<std::size_t>(2 * c.experts + 2 * std::max(1, c.groups) + c.top_k) * 4);
    split(pool, c.tokens, c.experts * 8, [&](std::int64_t first, std::int64_t last, int worker) {
        kernels.route(c, first, last, pool.scratch(worker));
    });
}

}  // namespace headrace
