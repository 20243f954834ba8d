#include "plan.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>

namespace headrace {
namespace {

// DEFAULT_TERMS of planning/policies.py: half-lives of 2 and 16 touches.
constexpr std::int64_t kKeepQ24[2] = {11863283, 16065917};
constexpr std::int64_t kWeights[2] = {10, 1};
constexpr std::int64_t kOneQ32 = std::int64_t{1} << 32;
constexpr std::int32_t kInactive = -2;

// Wraps where it overflows, as the reference does.
std::int64_t scaled(std::int64_t sum, std::int64_t by_q24) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(sum) *
                                     static_cast<std::uint64_t>(by_q24)) >>
           24;
}

std::int64_t plus(std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

std::int64_t times(std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

void check_ids(const Choices& choices, int experts) {
    for (std::size_t i = 0; i < choices.count(); ++i)
        if (choices.ids[i] >= experts)
            throw std::invalid_argument("plan: expert " + std::to_string(choices.ids[i]) +
                                        " in a layer of " + std::to_string(experts));
}

// sums = sums * left + uses[e] * gain for every row of the layer, and the values anew.
void fade(const CacheRows& c, const std::int64_t (&left)[2], const std::int64_t (&gain)[2],
          const std::int64_t* uses) {
    std::int64_t* fast = c.sums + c.base;
    std::int64_t* slow = fast + c.rows;
    for (int e = 0; e < c.experts; ++e) {
        fast[e] = plus(scaled(fast[e], left[0]), times(uses[e], gain[0]));
        slow[e] = plus(scaled(slow[e], left[1]), times(uses[e], gain[1]));
        c.value[c.base + e] = plus(times(kWeights[0], fast[e]), times(kWeights[1], slow[e]));
    }
}

void touch(Arena& arena, const CacheRows& c, const std::int32_t* slot_of_expert) {
    const auto active = [&](int e) { return slot_of_expert[e] != kInactive; };
    if (c.lru) {
        const std::int64_t now = ++*c.clock;
        for (int e = 0; e < c.experts; ++e)
            if (active(e)) c.value[c.base + e] = now;
        return;
    }
    auto* uses = arena.take<std::int64_t>(static_cast<std::size_t>(c.experts));
    for (int e = 0; e < c.experts; ++e) uses[e] = active(e) ? 1 : 0;
    fade(c, kKeepQ24, {kOneQ32, kOneQ32}, uses);
}

int quota_of(const PlanCall& c, int misses) {
    const std::int64_t last = c.quotas - 1;
    const std::int64_t wanted = misses <= last ? c.quota[misses] : misses * c.quota[last] / last;
    return static_cast<int>(std::clamp<std::int64_t>(wanted, 0, misses));
}

struct Miss {
    std::int64_t value;
    std::int32_t expert;
    bool operator<(const Miss& other) const {
        return value != other.value ? value > other.value : expert < other.expert;
    }
};

struct Resident {
    std::int64_t value;
    std::int32_t row, slot;
    bool operator<(const Resident& other) const {
        return value != other.value ? value < other.value : row < other.row;
    }
};

// Sixteen buckets an octave: decayed values span many octaves, and most of them lie low.
constexpr std::size_t kBuckets = 64 * 16 + 2;

// Ascends with the distance from the least value.
std::size_t bucket_of(std::int64_t value, std::int64_t least) {
    constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
    const auto distance = static_cast<std::uint64_t>(value) - static_cast<std::uint64_t>(least);
    const auto d = static_cast<double>(static_cast<std::int64_t>(std::min(distance, kMost)));
    const std::uint64_t top = std::bit_cast<std::uint64_t>(d) >> 48;  // exponent, 4 more bits
    return d == 0.0 ? 0 : top - (std::uint64_t{1023} << 4) + 1;
}

// Moves the `n` least to the front, in order. Buckets leave few to be compared with each other.
void least_first(Arena& arena, Resident* resident, std::size_t count, std::size_t n,
                 std::int64_t least) {
    auto* bucket = arena.take<std::uint16_t>(count);
    auto* filled = arena.take<std::uint32_t>(kBuckets);
    std::fill_n(filled, kBuckets, 0);
    for (std::size_t i = 0; i < count; ++i) {
        bucket[i] = static_cast<std::uint16_t>(bucket_of(resident[i].value, least));
        ++filled[bucket[i]];
    }
    std::size_t last = 0;
    for (std::size_t below = filled[0]; below < n; below += filled[last]) ++last;
    std::size_t low = 0;
    for (std::size_t i = 0; i < count; ++i) {
        resident[low] = resident[i];
        low += bucket[i] <= last ? 1 : 0;
    }
    std::nth_element(resident, resident + n, resident + low);
    std::sort(resident, resident + n);
}

// Writes the slots for up to `wanted` fills and returns how many there are.
int find_slots(Arena& arena, const CacheRows& c, const std::int32_t* slot_of_expert, int wanted,
               std::int32_t* slots) {
    if (wanted == 0) return 0;
    int found = 0;
    std::size_t residents = 0;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    auto* resident = arena.take<Resident>(static_cast<std::size_t>(c.slots));
    for (std::int32_t slot = 0; slot < c.slots; ++slot) {
        const std::int32_t row = c.row_of[slot];
        if (row < 0) {
            slots[found++] = slot;
            if (found == wanted) return found;
            continue;
        }
        const std::int64_t expert = row - c.base;
        if (expert >= 0 && expert < c.experts && slot_of_expert[expert] != kInactive) continue;
        resident[residents++] = {c.value[row], row, slot};
        least = std::min(least, c.value[row]);
    }
    const std::size_t victims = std::min(static_cast<std::size_t>(wanted - found), residents);
    if (victims > 0) least_first(arena, resident, residents, victims, least);
    for (std::size_t i = 0; i < victims; ++i) slots[found++] = resident[i].slot;
    return found;
}

void admit(const CacheRows& c, std::int32_t expert, std::int32_t slot) {
    const std::int32_t evicted = c.row_of[slot];
    if (evicted >= 0) c.slot_of[evicted] = -1;
    c.row_of[slot] = static_cast<std::int32_t>(c.base) + expert;
    c.slot_of[c.base + expert] = slot;
}

}  // namespace

void plan(Pool& pool, const PlanCall& c) {
    const CacheRows& cache = c.cache;
    check_ids(c.choices, cache.experts);
    if (c.quotas < 2) throw std::invalid_argument("plan: a quota needs entries for 0 and 1 miss");
    Arena& arena = pool.begin_call();
    const auto experts = static_cast<std::size_t>(cache.experts);
    auto* slot_of = arena.take<std::int32_t>(experts);
    std::fill_n(slot_of, experts, kInactive);
    for (std::size_t i = 0; i < c.choices.count(); ++i)
        if (c.choices.ids[i] >= 0)
            slot_of[c.choices.ids[i]] = cache.slot_of[cache.base + c.choices.ids[i]];

    auto* missing = arena.take<Miss>(experts);
    int active = 0, misses = 0;
    for (std::int32_t e = 0; e < cache.experts; ++e) {
        if (slot_of[e] == kInactive) continue;
        ++active;
        if (slot_of[e] < 0) missing[misses++] = {cache.value[cache.base + e], e};
    }
    std::sort(missing, missing + misses);

    const int wanted = quota_of(c, misses);
    int fills = std::min(wanted, c.staging);
    if (c.staging > 0) {
        for (int i = 0; i < fills; ++i) c.fill_slots[i] = cache.slots + i;
    } else {
        touch(arena, cache, slot_of);
        fills = find_slots(arena, cache, slot_of, wanted, c.fill_slots);
    }
    for (int i = 0; i < fills; ++i) {
        c.fill_experts[i] = missing[i].expert;
        slot_of[missing[i].expert] = c.fill_slots[i];
        if (c.staging == 0) admit(cache, missing[i].expert, c.fill_slots[i]);
    }

    for (std::size_t i = 0; i < c.choices.count(); ++i) {
        const std::int32_t e = c.choices.ids[i];
        const bool here = e >= 0 && slot_of[e] >= 0;
        c.slot_ids[i] = here ? slot_of[e] + (c.shift == nullptr ? 0 : c.shift[e]) : -1;
        c.host_ids[i] = e < 0 || here ? -1 : e;
    }
    const std::int32_t counts[] = {active, active - misses, fills, misses - fills};
    std::copy_n(counts, 4, c.counts);
}

void observe(Pool& pool, const ObserveCall& c) {
    check_ids(c.choices, c.cache.experts);
    Arena& arena = pool.begin_call();
    auto* uses = arena.take<std::int64_t>(static_cast<std::size_t>(c.cache.experts));
    std::fill_n(uses, c.cache.experts, 0);
    for (std::size_t i = 0; i < c.choices.count(); ++i)
        if (c.choices.ids[i] >= 0) ++uses[c.choices.ids[i]];
    fade(c.cache, c.left_q24, c.gain_q32, uses);
}

}  // namespace headrace
