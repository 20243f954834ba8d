// Python face of mixers.hpp. Addresses come as integers; every call releases the GIL.
#include "bind.hpp"
#include "mixers.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using headrace::Pool;

void add(Pool& pool, Address x, Address y, std::int64_t count) {
    make(pool, headrace::add, {at<float>(x), at<float>(y), count});
}

void rms_norm(Pool& pool, Address x, std::int64_t rows, std::int64_t width, std::int64_t x_stride,
              Address weight, float eps, bool plus_one, Address y, std::int64_t y_stride,
              std::int64_t group, std::int64_t group_stride) {
    make(pool, headrace::rms_norm,
         {at<float>(x), nullptr, rows, width, x_stride, at<float>(weight), eps, plus_one,
          at<float>(y), y_stride, group, group_stride});
}

void gated_rms_norm(Pool& pool, Address x, Address gate, std::int64_t rows, std::int64_t width,
                    Address weight, float eps, Address y, std::int64_t gate_group,
                    std::int64_t gate_stride, int gating, std::int64_t weight_rows) {
    make(pool, headrace::rms_norm,
         {at<float>(x), at<float>(gate), rows, width, width, at<float>(weight), eps, false,
          at<float>(y), width, 0, 0, gate_group, gate_stride, gating, weight_rows});
}

void rope(Pool& pool, Address x, std::int64_t tokens, std::int64_t heads, std::int64_t token_stride,
          std::int64_t head_dim, Address cos, Address sin, std::int64_t rotated, bool interleaved) {
    make(pool, headrace::rope,
         {at<float>(x), tokens, heads, token_stride, head_dim, at<float>(cos), at<float>(sin),
          rotated, interleaved});
}

void store_kv(Pool& pool, Address x, std::int64_t tokens, std::int64_t token_stride,
              std::int64_t width, Address slots, Address kv, int format, std::int64_t step) {
    make(pool, headrace::store_kv,
         {at<float>(x), tokens, token_stride, width, at<std::int64_t>(slots), at<std::byte>(kv),
          format, step});
}

void attention(Pool& pool, Address q, std::int64_t q_stride, Address k, Address v, int format,
               Address out, int sequences, Address offsets, Address contexts, Address blocks,
               std::int64_t max_blocks, std::int64_t block_size, int heads, int kv_heads,
               int head_dim, int value_dim, float scale, int window, bool chunked, Address sinks,
               std::int64_t value_step) {
    make(pool, headrace::attention,
         {at<float>(q),
          q_stride,
          at<std::byte>(k),
          at<std::byte>(v),
          format,
          at<float>(out),
          sequences,
          at<std::int32_t>(offsets),
          at<std::int32_t>(contexts),
          at<std::int32_t>(blocks),
          max_blocks,
          block_size,
          heads,
          kv_heads,
          head_dim,
          value_dim,
          scale,
          window,
          chunked,
          at<float>(sinks),
          value_step});
}

void conv(Pool& pool, Address x, std::int64_t tokens, std::int64_t x_stride, std::int64_t channels,
          int kernel, Address weight, Address bias, int sequences, Address offsets, Address slots,
          Address state, bool silu, Address y, int runs_of, Address firsts, Address keeps) {
    make(pool, headrace::conv,
         {at<float>(x),
          tokens,
          x_stride,
          channels,
          kernel,
          at<float>(weight),
          at<float>(bias),
          sequences,
          at<std::int32_t>(offsets),
          at<std::int32_t>(slots),
          at<float>(state),
          silu,
          at<float>(y),
          {runs_of, at<std::int32_t>(firsts), at<std::int32_t>(keeps)}});
}

void delta(Pool& pool, Address q, Address k, Address v, std::int64_t q_stride,
           std::int64_t k_stride, std::int64_t v_stride, Address decay, Address beta, Address out,
           int sequences, Address offsets, Address slots, Address state, int key_heads,
           int value_heads, int key_dim, int value_dim, bool normalize, float scale, bool tiled,
           bool decay_rows, int runs_of, Address firsts, Address keeps) {
    make(pool, headrace::delta,
         {at<float>(q),
          at<float>(k),
          at<float>(v),
          q_stride,
          k_stride,
          v_stride,
          at<float>(decay),
          at<float>(beta),
          at<float>(out),
          sequences,
          at<std::int32_t>(offsets),
          at<std::int32_t>(slots),
          at<float>(state),
          key_heads,
          value_heads,
          key_dim,
          value_dim,
          normalize,
          scale,
          tiled,
          decay_rows,
          {runs_of, at<std::int32_t>(firsts), at<std::int32_t>(keeps)}});
}

void ssm(Pool& pool, Address x, Address b, Address c, std::int64_t x_stride, std::int64_t b_stride,
         std::int64_t c_stride, Address decay, Address step, Address skip, Address out,
         int sequences, Address offsets, Address slots, Address state, int groups, int heads,
         int key_dim, int value_dim, int runs_of, Address firsts, Address keeps) {
    make(pool, headrace::ssm,
         {at<float>(x),
          at<float>(b),
          at<float>(c),
          x_stride,
          b_stride,
          c_stride,
          at<float>(decay),
          at<float>(step),
          at<float>(skip),
          at<float>(out),
          sequences,
          at<std::int32_t>(offsets),
          at<std::int32_t>(slots),
          at<float>(state),
          groups,
          heads,
          key_dim,
          value_dim,
          {runs_of, at<std::int32_t>(firsts), at<std::int32_t>(keeps)}});
}

void route(Pool& pool, Address logits, std::int64_t tokens, int experts, int top_k, int score,
           Address bias, int groups, int keep_groups, bool renormalize, float renorm_eps,
           float scale, Address scales, Address ids, Address weights, int group_best) {
    make(pool, headrace::route,
         {at<float>(logits), tokens, experts, top_k, score, at<float>(bias), groups, keep_groups,
          renormalize, renorm_eps, scale, at<float>(scales), at<std::int32_t>(ids),
          at<float>(weights), group_best});
}

}  // namespace

void bind_mixers(nb::module_&, nb::class_<Pool>& pool) {
    pool.def("rms_norm", &rms_norm, "x"_a, "rows"_a, "width"_a, "x_stride"_a, "weight"_a, "eps"_a,
             "plus_one"_a, "y"_a, "y_stride"_a, "group"_a = 0, "group_stride"_a = 0, Released())
        .def("gated_rms_norm", &gated_rms_norm, "x"_a, "gate"_a, "rows"_a, "width"_a, "weight"_a,
             "eps"_a, "y"_a, "gate_group"_a = 0, "gate_stride"_a = 0, "gating"_a = 0,
             "weight_rows"_a = 1, Released())
        .def("add", &add, "x"_a, "y"_a, "count"_a, Released())
        .def("rope", &rope, "x"_a, "tokens"_a, "heads"_a, "token_stride"_a, "head_dim"_a, "cos"_a,
             "sin"_a, "rotated"_a, "interleaved"_a, Released())
        .def("store_kv", &store_kv, "x"_a, "tokens"_a, "token_stride"_a, "width"_a, "slots"_a,
             "pool"_a, "format"_a, "step"_a = 0, Released())
        .def("attention", &attention, nb::kw_only(), "q"_a, "q_stride"_a, "k"_a, "v"_a, "format"_a,
             "out"_a, "sequences"_a, "offsets"_a, "contexts"_a, "blocks"_a, "max_blocks"_a,
             "block_size"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "value_dim"_a, "scale"_a,
             "window"_a, "chunked"_a, "sinks"_a, "value_step"_a = 0, Released())
        .def("conv", &conv, "x"_a, "tokens"_a, "x_stride"_a, "channels"_a, "kernel"_a, "weight"_a,
             "bias"_a, "sequences"_a, "offsets"_a, "slots"_a, "state"_a, "silu"_a, "y"_a,
             "runs_of"_a = 0, "firsts"_a = 0, "keeps"_a = 0, Released())
        .def("delta", &delta, nb::kw_only(), "q"_a, "k"_a, "v"_a, "q_stride"_a, "k_stride"_a,
             "v_stride"_a, "decay"_a, "beta"_a, "out"_a, "sequences"_a, "offsets"_a, "slots"_a,
             "state"_a, "key_heads"_a, "value_heads"_a, "key_dim"_a, "value_dim"_a, "normalize"_a,
             "scale"_a, "tiled"_a = false, "decay_rows"_a = false, "runs_of"_a = 0, "firsts"_a = 0,
             "keeps"_a = 0, Released())
        .def("ssm", &ssm, nb::kw_only(), "x"_a, "b"_a, "c"_a, "x_stride"_a, "b_stride"_a,
             "c_stride"_a, "decay"_a, "step"_a, "skip"_a, "out"_a, "sequences"_a, "offsets"_a,
             "slots"_a, "state"_a, "groups"_a, "heads"_a, "key_dim"_a, "value_dim"_a,
             "runs_of"_a = 0, "firsts"_a = 0, "keeps"_a = 0, Released())
        .def("route", &route, nb::kw_only(), "logits"_a, "tokens"_a, "experts"_a, "top_k"_a,
             "score"_a, "bias"_a, "groups"_a, "keep_groups"_a, "renormalize"_a, "renorm_eps"_a,
             "scale"_a, "scales"_a, "ids"_a, "weights"_a, "group_best"_a = 2, Released());
}
