// The state space recurrence of Mamba 2: a state that decays by head, and takes an outer product.

namespace headrace::HEADRACE_ISA {

static_assert(Ssm::kColumns == Delta::kColumns);  // so that both load and store columns alike

inline std::size_t ssm_scratch_nbytes(const Ssm& c) {
    return static_cast<std::size_t>(c.key_dim) * Ssm::kColumns * sizeof(float);
}

// One token on kColumns columns of S (rows `stride` floats apart): S = g S + b v^T; out = c.S.
// Even and odd rows have their own sums, to have enough independent chains.
inline void ssm_token(float* s, std::int64_t stride, int key_dim, const float* b, const float* c,
                      float decay, const F32* v, F32* out) {
    constexpr int V = kDeltaVectors;
    F32 even[V], odd[V];
    for (int u = 0; u < V; ++u) even[u] = odd[u] = F32::zero();
    const F32 g = F32::set1(decay);
    const auto update = [&](int row, F32* sums) {
        float* at = s + row * stride;
        const F32 br = F32::set1(b[row]), cr = F32::set1(c[row]);
        for (int u = 0; u < V; ++u) {
            const F32 now = fma(br, v[u], F32::load(at + u * F32::N) * g);
            now.store(at + u * F32::N);
            sums[u] = fma(cr, now, sums[u]);
        }
    };
    int i = 0;
    for (; i + 2 <= key_dim; i += 2) {
        update(i, even);
        update(i + 1, odd);
    }
    if (i < key_dim) update(i, even);
    for (int u = 0; u < V; ++u) out[u] = even[u] + odd[u];
}

// Tokens of a run on columns [at, at + n) of one head.
inline void ssm_block(const Ssm& c, int sequence, int head, float* state, int at, int n,
                      float* block) {
    const std::int64_t first = c.offsets[sequence], last = c.offsets[sequence + 1];
    const std::int64_t key =
        static_cast<std::int64_t>(head / (c.value_heads / c.groups)) * c.key_dim;
    F32 x[kDeltaVectors], v[kDeltaVectors], out[kDeltaVectors];
    // A single token works on the state in place; a run, or a narrow block, on a dense copy.
    const bool copied = n < Ssm::kColumns || last - first > 1;
    float* s = copied ? block : state + at;
    const std::int64_t stride = copied ? Ssm::kColumns : c.value_dim;
    if (copied)
        for (int i = 0; i < c.key_dim; ++i) {
            load_columns(state + static_cast<std::int64_t>(i) * c.value_dim + at, n, v);
            store_columns(v, Ssm::kColumns, block + i * Ssm::kColumns);
        }
    const F32 skip = F32::set1(c.skip[head]);
    for (std::int64_t t = first; t < last; ++t) {
        const std::int64_t gate = t * c.value_heads + head;
        load_columns(c.x + t * c.x_stride + head * c.value_dim + at, n, x);
        const F32 step = F32::set1(c.step[gate]);
        for (int u = 0; u < kDeltaVectors; ++u) v[u] = step * x[u];
        ssm_token(s, stride, c.key_dim, c.b + t * c.b_stride + key, c.c + t * c.c_stride + key,
                  std::exp(c.decay[gate]), v, out);
        for (int u = 0; u < kDeltaVectors; ++u) out[u] = fma(skip, x[u], out[u]);
        store_columns(out, n, c.out + gate * c.value_dim + at);
    }
    if (copied)
        for (int i = 0; i < c.key_dim; ++i) {
            load_columns(block + i * Ssm::kColumns, Ssm::kColumns, v);
            store_columns(v, n, state + static_cast<std::int64_t>(i) * c.value_dim + at);
        }
}

inline void ssm_piece(const Ssm& c, int sequence, int head, int first, int last,
                      std::byte* scratch) {
    if (c.offsets[sequence] == c.offsets[sequence + 1]) return;
    float* state = c.state + (static_cast<std::int64_t>(c.slots[sequence]) * c.value_heads + head) *
                                 c.key_dim * c.value_dim;
    for (int at = first; at < last; at += Ssm::kColumns)
        ssm_block(c, sequence, head, state, at,
                  last - at < Ssm::kColumns ? last - at : Ssm::kColumns,
                  reinterpret_cast<float*>(scratch));
}

}  // namespace headrace::HEADRACE_ISA
