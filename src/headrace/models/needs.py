"""Which tensors a spec is made of, by canonical name and shape. No torch."""

from __future__ import annotations

from headrace.models.spec import (
    Attention,
    ChannelDelta,
    DeltaRule,
    Dense,
    LatentAttention,
    LayerSpec,
    Mixer,
    ModelSpec,
    Moe,
    OutputGate,
    QkNorm,
    ShortConv,
    Ssm,
)

Shapes = dict[str, tuple[int, ...]]


def needs_of(spec: ModelSpec) -> Shapes:
    """Every tensor of the model, each once. Experts are stacked: [E, ...]."""
    needs: Shapes = {"embed": (spec.vocab, spec.hidden), "norm": (spec.hidden,)}
    if not spec.tied:
        needs["head"] = (spec.vocab, spec.hidden)
    for i, layer in enumerate(spec.layers):
        for name, shape in _layer(spec.hidden, layer).items():
            needs[f"layers.{i}.{name}"] = shape
    return needs


def _layer(hidden: int, layer: LayerSpec) -> Shapes:
    mixer, ffn = layer.mixer, layer.ffn
    shapes: Shapes = {name: (hidden,) for name in layer.norms if name is not None}
    if layer.norms_behind:
        shapes |= {"behind_mixer_norm": (hidden,), "behind_ffn_norm": (hidden,)}
    if layer.scaled:
        shapes["scale"] = (1,)
    if mixer is not None:
        shapes |= _mixer(hidden, mixer)
    if ffn is not None:
        shapes |= _mlp("dense", hidden, ffn) if isinstance(ffn, Dense) else _moe(hidden, ffn)
    return shapes


def _mixer(hidden: int, mixer: Mixer) -> Shapes:
    match mixer:
        case Attention():
            return _attention(hidden, mixer)
        case LatentAttention():
            return _latent(hidden, mixer)
        case DeltaRule():
            return _delta(hidden, mixer)
        case ChannelDelta():
            return _channel_delta(hidden, mixer)
        case ShortConv():
            return _short_conv(hidden, mixer)
        case Ssm():
            return _ssm(hidden, mixer)


def _attention(hidden: int, a: Attention) -> Shapes:
    q_rows = a.heads * a.head_dim * (2 if a.gate == OutputGate.WITHIN_QUERY else 1)
    k_rows, v_rows = a.kv_heads * a.head_dim, a.kv_heads * a.value_dim
    shapes: Shapes = {
        "q": (q_rows, hidden),
        "k": (k_rows, hidden),
        "v": (v_rows, hidden),
        "o": (hidden, a.heads * a.value_dim),
    }
    if a.values_of_keys:
        del shapes["v"]
    if a.fused:
        shapes = {"qkv": (q_rows + k_rows + v_rows, hidden), "o": shapes["o"]}
    if a.gate in (OutputGate.APART, OutputGate.SOFTPLUS):
        shapes["gate"] = (a.heads * a.value_dim, hidden)
    if a.gate == OutputGate.SOFTPLUS_HEAD:
        shapes["gate"] = (a.heads, hidden)
    biased = tuple(n for n in ("q", "k", "v", "qkv") if n in shapes) * a.bias + ("o",) * a.out_bias
    shapes |= {f"{name}.bias": shapes[name][:1] for name in biased}
    if a.qk_norm == QkNorm.HEAD:
        shapes |= {"q_norm": (a.head_dim,), "k_norm": (a.head_dim,)}
    if a.qk_norm == QkNorm.WHOLE:
        shapes |= {"q_norm": (a.heads * a.head_dim,), "k_norm": (k_rows,)}
    if a.sinks:
        shapes["sinks"] = (a.heads,)
    return shapes


def _latent(hidden: int, a: LatentAttention) -> Shapes:
    queries = a.heads * a.query_width
    shapes: Shapes = {
        "kv_a": (a.width, hidden),
        "kv_norm": (a.rank,),
        "o": (hidden, a.heads * a.value_dim),
    }
    if a.query_rank:
        shapes |= {"q_a": (a.query_rank, hidden), "q_a_norm": (a.query_rank,)}
        shapes["q_b"] = (queries, a.query_rank)
    else:
        shapes["q"] = (queries, hidden)
    if a.split:
        shapes["k_b"] = (a.heads * a.rank, a.key_dim)
        shapes["v_b"] = (a.heads * a.value_dim, a.rank)
    else:
        shapes["kv_b"] = (a.heads * (a.key_dim + a.value_dim), a.rank)
    biased = ("kv_a", *("q_a",) * bool(a.query_rank)) * a.bias + ("o",) * a.out_bias
    return shapes | {f"{name}.bias": shapes[name][:1] for name in biased}


def _delta(hidden: int, d: DeltaRule) -> Shapes:
    values = d.value_heads * d.value_dim
    rows = {"qkv": d.channels, "z": values, "b": d.value_heads, "a": d.value_heads}
    if d.qkvz_by_head:
        rows["qkvz"] = rows.pop("qkv") + rows.pop("z")
    if d.ba_by_head:
        rows["ba"] = rows.pop("b") + rows.pop("a")
    return {
        **{name: (count, hidden) for name, count in rows.items()},
        "conv": (d.channels, d.kernel),
        "rate" if d.rate else "a_log": (d.value_heads,),
        "dt_bias": (d.value_heads,),
        "delta_norm": (d.value_dim,),
        "o": (hidden, values),
    }


def _channel_delta(hidden: int, d: ChannelDelta) -> Shapes:
    inner, width = d.heads * d.head_dim, d.head_dim
    return {
        **dict.fromkeys("qkv", (inner, hidden)),
        **{f"conv_{name}": (inner, d.kernel) for name in "qkv"},
        "b": (d.heads, hidden),
        **{f"{name}_a": (width, hidden) for name in "fg"},
        **{f"{name}_b": (inner, width) for name in "fg"},
        "a_log": (d.heads,),
        "dt_bias": (inner,),
        "delta_norm": (width,),
        "o": (hidden, inner),
    }


def _short_conv(hidden: int, c: ShortConv) -> Shapes:
    shapes: Shapes = {
        "bcx": (3 * c.channels, hidden),
        "conv": (c.channels, c.kernel),
        "o": (hidden, c.channels),
    }
    return shapes | (
        {f"{name}.bias": shape[:1] for name, shape in shapes.items()} if c.bias else {}
    )


def _ssm(hidden: int, s: Ssm) -> Shapes:
    shapes: Shapes = {
        "zxbcdt": (s.inner + s.channels + s.heads, hidden),
        "conv": (s.channels, s.kernel),
        "rate" if s.rate else "a_log": (s.heads,),
        "dt_bias": (s.heads,),
        "skip": (s.heads,),
        "ssm_norm": (s.inner,),
        "o": (hidden, s.inner),
    }
    biased = ("conv",) * s.conv_bias + ("zxbcdt", "o") * s.bias
    return shapes | {f"{name}.bias": shapes[name][:1] for name in biased}


def _mlp(stem: str, hidden: int, width_of: Dense) -> Shapes:
    width = width_of.width
    ups = ("gate", "up") if width_of.activation.has_up else ("gate",)
    return {**{f"{stem}.{n}": (width, hidden) for n in ups}, f"{stem}.down": (hidden, width)}


def _moe(hidden: int, moe: Moe) -> Shapes:
    n, width = moe.experts, moe.width
    shapes: Shapes = {
        "router": (n, hidden),
        "experts.gate": (n, width, hidden),
        "experts.down": (n, hidden, width),
    }
    if moe.activation.has_up:
        shapes["experts.up"] = shapes["experts.gate"]
    if moe.router_bias:
        shapes["router.bias"] = (n,)
    if moe.correction_bias:
        shapes["correction_bias"] = (n,)
    if moe.expert_bias:
        shapes |= {
            f"experts.{k}.bias": shapes[f"experts.{k}"][:2]
            for k in ("gate", "up", "down")
            if f"experts.{k}" in shapes
        }
    if moe.expert_scales:
        shapes["expert_scales"] = (n,)
    if moe.beside:
        shapes |= _mlp("dense", hidden, moe.beside)
        names = ("router_norm", "dense_norm", "behind_dense_norm", "behind_experts_norm")
        shapes |= dict.fromkeys(names, (hidden,))
    if moe.sum_eps:
        shapes["sum_norm"] = (hidden,)
    if moe.shared:
        shapes |= _mlp("shared", hidden, Dense(moe.shared.width, moe.activation))
        if moe.shared.gated:
            shapes["shared_gate"] = (1, hidden)
    return shapes
