// The state space recurrence of Mamba 2: a state that decays by head, and takes an outer product.

namespace headrace::HEADRACE_ISA {

static_assert(Ssm::kColumns == Delta::kColumns);  // so that both load and store columns alike

inline std::size_t ssm_scratch_nbytes(const Ssm& c) {
    return static_cast<std::size_t>(c.key_dim) * Ssm::kColumns * sizeof(float);
}

// One token on V vectors of columns of S (rows `stride` floats apart): S = g S + b v^T; out = c.S.
// A column has one chain of sums, so that its bits do not depend on which are taken together.
template <int V>
inline void ssm_token(float* s, std::int64_t stride, int key_dim, const float* b, const float* c,
                      float decay, const F32* v, F32* out) {
    for (int u = 0; u < V; ++u) out[u] = F32::zero();
    const F32 g = F32::set1(decay);
    for (int row = 0; row < key_dim; ++row) {
        float* at = s + row * stride;
        const F32 br = F32::set1(b[row]), cr = F32::set1(c[row]);
        for (int u = 0; u < V; ++u) {
            const F32 now = fma(br, v[u], F32::load(at + u * F32::N) * g);
            now.store(at + u * F32::N);
            out[u] = fma(cr, now, out[u]);
        }
    }
}

// Where a head's b and c begin in those of a token.
inline std::int64_t group_at(const Ssm& c, int head) {
    return static_cast<std::int64_t>(head / (c.value_heads / c.groups)) * c.key_dim;
}

// Tokens of a run on columns [at, at + n) of one head.
inline void ssm_block(const Ssm& c, int sequence, int head, float* state, int at, int n,
                      float* block) {
    const std::int64_t first = c.offsets[sequence], last = c.offsets[sequence + 1];
    const std::int64_t key = group_at(c, head);
    F32 x[kDeltaVectors], v[kDeltaVectors], out[kDeltaVectors];
    // A single token works on the state in place; a run, or a narrow block, on a dense copy.
    const bool copied = n < Ssm::kColumns || last - first > 1;
    float* s = copied ? block : state + at;
    const std::int64_t stride = copied ? Ssm::kColumns : c.value_dim;
    if (copied) take_block(state, c.key_dim, c.value_dim, at, n, block);
    const F32 skip = F32::set1(c.skip[head]);
    for (std::int64_t t = first; t < last; ++t) {
        const std::int64_t gate = t * c.value_heads + head;
        load_columns(c.x + t * c.x_stride + head * c.value_dim + at, n, x);
        const F32 step = F32::set1(c.step[gate]);
        for (int u = 0; u < kDeltaVectors; ++u) v[u] = step * x[u];
        ssm_token<kDeltaVectors>(s, stride, c.key_dim, c.b + t * c.b_stride + key,
                                 c.c + t * c.c_stride + key, std::exp(c.decay[gate]), v, out);
        for (int u = 0; u < kDeltaVectors; ++u) out[u] = fma(skip, x[u], out[u]);
        store_columns(out, n, c.out + gate * c.value_dim + at);
    }
    if (copied) put_block(block, c.key_dim, c.value_dim, at, n, state);
}

// The one token of a run on twice as many columns: rows of a state are then read as they lie.
inline void ssm_wide(const Ssm& c, std::int64_t t, int head, float* state, int at) {
    constexpr int V = 2 * kDeltaVectors;
    const std::int64_t gate = t * c.value_heads + head;
    const std::int64_t key = group_at(c, head);
    const float* from = c.x + t * c.x_stride + head * c.value_dim + at;
    float* to = c.out + gate * c.value_dim + at;
    F32 v[V], out[V];
    for (int u = 0; u < V; ++u) v[u] = F32::set1(c.step[gate]) * F32::load(from + u * F32::N);
    ssm_token<V>(state + at, c.value_dim, c.key_dim, c.b + t * c.b_stride + key,
                 c.c + t * c.c_stride + key, std::exp(c.decay[gate]), v, out);
    const F32 skip = F32::set1(c.skip[head]);
    for (int u = 0; u < V; ++u)
        fma(skip, F32::load(from + u * F32::N), out[u]).store(to + u * F32::N);
}

inline void ssm_piece(const Ssm& c, int sequence, int head, int first, int last,
                      std::byte* scratch) {
    if (c.offsets[sequence] == c.offsets[sequence + 1]) return;
    float* state = state_of(c, sequence, head);
    const std::int64_t t = c.offsets[sequence];
    int at = first;
    if (c.offsets[sequence + 1] - t == 1)
        for (; at + 2 * Ssm::kColumns <= last; at += 2 * Ssm::kColumns)
            ssm_wide(c, t, head, state, at);
    for (; at < last; at += Ssm::kColumns)
        ssm_block(c, sequence, head, state, at,
                  last - at < Ssm::kColumns ? last - at : Ssm::kColumns,
                  reinterpret_cast<float*>(scratch));
}

}  // namespace headrace::HEADRACE_ISA
