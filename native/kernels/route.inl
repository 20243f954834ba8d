// The router: scores, group limits, top-k and weights of one token at a time.

namespace headrace::HEADRACE_ISA {

inline void softmax(const float* x, int n, float* y) {
    float top = x[0];
    for (int i = 1; i < n; ++i) top = x[i] > top ? x[i] : top;
    F32 sums = F32::zero();
    for (int i = 0; i < n; i += F32::N) {
        const int lanes = n - i < F32::N ? n - i : F32::N;
        const F32 e = exp(load_lanes(x + i, lanes) - F32::set1(top));
        store_lanes(e, y + i, lanes);
        sums = sums + load_lanes(y + i, lanes);
    }
    const F32 total = F32::set1(sums.reduce_add());
    for (int i = 0; i < n; i += F32::N) {
        const int lanes = n - i < F32::N ? n - i : F32::N;
        store_lanes(load_lanes(y + i, lanes) / total, y + i, lanes);
    }
}

// The `count` largest of values[0, n), best first, ties to the lower index. A NaN ranks below all.
inline void best_of(const float* values, int n, int count, std::int32_t* ids) {
    const auto rank = [&](std::int32_t i) {
        return values[i] == values[i] ? values[i] : -std::numeric_limits<float>::infinity();
    };
    int held = 0;
    for (std::int32_t i = 0; i < n; ++i) {
        const float value = rank(i);
        if (held == count && !(value > rank(ids[count - 1]))) continue;
        int at = held < count ? held++ : count - 1;
        for (; at > 0 && value > rank(ids[at - 1]); --at) ids[at] = ids[at - 1];
        ids[at] = i;
    }
}

// Leaves -inf in the groups that are not among the best by the sum of their best choices.
inline void limit_groups(const Route& c, float* choice, float* sums, std::int32_t* kept) {
    const int size = c.experts / c.groups;
    const bool both = size > 1 && c.group_best > 1;
    for (int g = 0; g < c.groups; ++g) {
        std::int32_t two[2] = {0, 0};
        best_of(choice + g * size, size, both ? 2 : 1, two);
        sums[g] = choice[g * size + two[0]] + (both ? choice[g * size + two[1]] : 0.0f);
    }
    best_of(sums, c.groups, c.keep_groups, kept);
    for (int g = 0; g < c.groups; ++g) {
        bool keep = false;
        for (int i = 0; i < c.keep_groups; ++i) keep = keep || kept[i] == g;
        for (int i = 0; i < size && !keep; ++i)
            choice[g * size + i] = -std::numeric_limits<float>::infinity();
    }
}

inline std::size_t route_scratch_nbytes(const Route& c) {
    return static_cast<std::size_t>(2 * c.experts + 2 * c.groups + c.top_k) * sizeof(float);
}

inline void route_token(const Route& c, std::int64_t t, float* scratch) {
    const float* logits = c.logits + t * c.experts;
    float* scores = scratch;
    float* choice = scores + c.experts;
    float* sums = choice + c.experts;
    auto* kept = reinterpret_cast<std::int32_t*>(sums + c.groups);
    float* picked = reinterpret_cast<float*>(kept + c.groups);
    std::int32_t* ids = c.ids + t * c.top_k;
    float* weights = c.weights + t * c.top_k;
    if (c.score == 0) {
        softmax(logits, c.experts, scores);
    } else if (c.score == 1) {
        std::memcpy(scores, logits, static_cast<std::size_t>(c.experts) * sizeof(float));
    } else {
        for (int i = 0; i < c.experts; i += F32::N) {
            const int lanes = c.experts - i < F32::N ? c.experts - i : F32::N;
            store_lanes(sigmoid(load_lanes(logits + i, lanes)), scores + i, lanes);
        }
    }
    for (int i = 0; i < c.experts; ++i)
        choice[i] = c.bias == nullptr ? scores[i] : scores[i] + c.bias[i];
    if (c.groups > 1) limit_groups(c, choice, sums, kept);
    best_of(choice, c.experts, c.top_k, ids);
    for (int i = 0; i < c.top_k; ++i) picked[i] = scores[ids[i]];
    if (c.score == 1) {
        softmax(picked, c.top_k, weights);
    } else {
        std::memcpy(weights, picked, static_cast<std::size_t>(c.top_k) * sizeof(float));
    }
    float total = c.renorm_eps;
    for (int i = 0; i < c.top_k; ++i) total += weights[i];
    for (int i = 0; i < c.top_k; ++i)
        weights[i] = (c.renormalize ? weights[i] / total : weights[i]) * c.scale;
    for (int i = 0; c.scales != nullptr && i < c.top_k; ++i) weights[i] *= c.scales[ids[i]];
}

inline void route_tokens(const Route& c, std::int64_t first, std::int64_t last,
                         std::byte* scratch) {
    for (std::int64_t t = first; t < last; ++t)
        route_token(c, t, reinterpret_cast<float*>(scratch));
}

}  // namespace headrace::HEADRACE_ISA
