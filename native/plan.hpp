// One layer of one step: which routed experts are read from device slots, which are filled, which
// are left to the host. `ops/plan/reference.py` is the meaning, bit for bit.
//
// Invariant: one pass over the slots, however many rows are filled; integers only.
#pragma once

#include <cstdint>

#include "pool.hpp"

namespace headrace {

struct CacheRows {
    std::int32_t* slot_of;  // [rows], -1 = not resident
    std::int64_t rows;
    std::int32_t* row_of;  // [slots], -1 = free
    int slots;
    std::int64_t* sums;  // [2, rows], Q32
    std::int64_t* value;
    std::int64_t* clock;
    bool lru;
    // The layer at hand: rows base..base+experts-1.
    std::int64_t base;
    int experts;
};

struct Choices {
    const std::int32_t* ids;  // [tokens, top_k], negative ones are skipped
    int tokens, top_k;

    std::size_t count() const {
        return static_cast<std::size_t>(tokens) * static_cast<std::size_t>(top_k);
    }
};

struct PlanCall {
    Choices choices;
    CacheRows cache;
    const std::int32_t* quota;  // [quotas]
    int quotas;
    std::int32_t *slot_ids, *host_ids, *fill_experts, *fill_slots, *counts;
    int staging;
    const std::int32_t* shift = nullptr;  // [experts], added to the slot of each; null = nothing
};

struct ObserveCall {
    Choices choices;
    CacheRows cache;  // row_of, slot_of and clock are not looked at
    std::int64_t left_q24[2], gain_q32[2];
};

// Both throw std::invalid_argument for an expert that the layer does not have.
void plan(Pool& pool, const PlanCall& c);
void observe(Pool& pool, const ObserveCall& c);

}  // namespace headrace
