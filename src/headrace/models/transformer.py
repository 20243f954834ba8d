"""The one forward pass: every family is this code over its spec.

The residual stream is float32 on the CPU. T tokens, N of them with logits, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.models.attention import Angles, AttentionBlock
from headrace.models.conv import ConvBlock
from headrace.models.delta import DeltaBlock
from headrace.models.dense import DenseBlock, OneExpert
from headrace.models.kda import ChannelDeltaBlock
from headrace.models.latent import LatentBlock
from headrace.models.moe import BesideBlock, MoeBlock
from headrace.models.norms import Norm
from headrace.models.rope import angle_factor, frequencies
from headrace.models.spec import (
    Attention,
    ChannelDelta,
    DeltaRule,
    Dense,
    Ffn,
    LatentAttention,
    Mixer,
    ModelSpec,
    Rope,
    ShortConv,
    Ssm,
    Temperature,
)
from headrace.models.ssm import SsmBlock
from headrace.models.state import Batch, Experts, KvPool, LayerState, RecurrentPool, State
from headrace.models.tensors import Scope
from headrace.ops.spans import Spans
from headrace.ops.table import Linear, Ops

MixerBlock = AttentionBlock | LatentBlock | DeltaBlock | ChannelDeltaBlock | ConvBlock | SsmBlock
FfnBlock = DenseBlock | MoeBlock | BesideBlock


@dataclass(frozen=True, slots=True)
class ByPlace:
    """What follows from positions alone, once a step."""

    angles: Mapping[Rope, Angles]
    heats: Mapping[Temperature, Tensor]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's blocks and norms; see LayerSpec. `heat`: of its queries; `scale`: of its sum. A
    feed-forward part without a norm in front has the mixer's.
    """

    mixer_norm: Norm | None
    mixer: MixerBlock | None
    ffn_norm: Norm | None
    ffn: FfnBlock | None
    rope: Rope | None
    heat: Temperature | None
    behind_mixer: Norm | None
    behind_ffn: Norm | None
    scale: float

    @property
    def moe(self) -> MoeBlock | None:
        """The experts of this layer."""
        if isinstance(self.ffn, BesideBlock):
            return self.ffn.moe
        return self.ffn if isinstance(self.ffn, MoeBlock) else None

    @property
    def into_experts_D(self) -> Tensor:
        """What the norm in front of the experts multiplies by."""
        norm = self.ffn_norm or self.mixer_norm
        assert norm is not None
        return norm.weight_D

    @property
    def into_router_D(self) -> Tensor:
        """What the norm in front of the router multiplies by."""
        ffn = self.ffn
        return ffn.into_router_D if isinstance(ffn, BesideBlock) else self.into_experts_D


class Transformer:
    """A model of any family. Routed experts are not in here: `forward` is told who runs them."""

    def __init__(self, spec: ModelSpec, tensors: Scope, ops: Ops) -> None:
        self.spec = spec
        self._ops = ops
        self._embed_VD = tensors.matrix("embed")
        self._head = Linear((self._embed_VD,)) if spec.tied else tensors.linear("head")
        self._norm = Norm(spec, "norm", tensors, ops)
        self._everyone = OneExpert()
        count = len(spec.layers)
        self._layers = [_layer(i, spec, tensors, ops, self._everyone) for i in range(count)]
        self._renorms: dict[int, Tensor] = {}  # by MoE layer
        ropes = {layer.rope for layer in self._layers if layer.rope}
        self._turns = {rope: (frequencies(rope), angle_factor(rope)) for rope in ropes}
        self._heats = {layer.heat for layer in self._layers if layer.heat}

    def forward(self, batch: Batch, state: State, experts: Experts) -> Tensor:
        """Logits of the tokens `batch.rows_N`, float32 [N, V]. Reads and updates `state`, one entry
        a layer.
        """
        ops, spec, at = self._ops, self.spec, batch.positions_T
        self.prepare(int(batch.tokens_T.shape[0]))
        x_TD = ops.lookup(self._embed_VD, batch.tokens_T)
        if spec.embed_scale != 1.0:
            ops.scale(x_TD, spec.embed_scale)
        by_place = ByPlace(
            {rope: ops.angles(at, *turn) for rope, turn in self._turns.items()},
            {
                heat: ops.temperature(at, heat.span, heat.strength, ahead=heat.ahead)
                for heat in self._heats
            },
        )
        for layer, own in zip(self._layers, state, strict=True):
            fed_TD = None
            if layer.mixer_norm is not None:
                normed_TD = layer.mixer_norm(x_TD)
                mixed_TD = self._mix(layer, normed_TD, batch.spans_of(own), own, by_place)
                if layer.ffn_norm is None and layer.ffn is not None:
                    fed_TD = self._feed(layer.ffn, x_TD, normed_TD, experts)
                self._join(x_TD, mixed_TD, layer.behind_mixer)
            if layer.ffn_norm is not None and layer.ffn is not None:
                fed_TD = self._feed(layer.ffn, x_TD, layer.ffn_norm(x_TD), experts)
            if fed_TD is not None:
                self._join(x_TD, fed_TD, layer.behind_ffn)
            if layer.scale != 1.0:
                ops.scale(x_TD, layer.scale)
        if batch.rows_N.shape[0] == 0:  # a chunk of a prompt that goes on
            return x_TD.new_empty(0, spec.vocab)
        x_ND = self._norm(ops.lookup(x_TD, batch.rows_N))
        logits_NV = ops.linear(x_ND, self._head)
        if spec.logit_scale != 1.0 or spec.logit_cap:
            ops.scale(logits_NV, spec.logit_scale, cap=spec.logit_cap)
        return logits_NV

    def best(self, logits_NV: Tensor) -> Tensor:
        """The best token of each row, int64 [N]; -1 where the row is not finite throughout."""
        return self._ops.best(logits_NV)

    def guess(self, layer: int, x_TD: Tensor) -> Tensor | None:
        """Experts that the next MoE layer would choose, int32 [T, X], were its input what goes
        into this one's experts but for the norm; None behind the last one.
        """
        later = enumerate(self._layers[layer + 1 :], layer + 1)
        to = next((i for i, one in later if one.moe), None)
        if to is None:
            return None
        block = self._layers[to].moe
        assert block is not None
        if to not in self._renorms:
            own, their = self._layers[layer].into_experts_D, self._layers[to].into_router_D
            self._renorms[to] = torch.where(own == 0, 0.0, their / own)
        return block.route(x_TD * self._renorms[to]).ids_TX

    def prepare(self, tokens: int) -> None:
        """Makes what steps of so many tokens share, so that no capture has to."""
        self._everyone(tokens)

    def _mix(
        self, layer: Layer, x_TD: Tensor, spans: Spans, own: LayerState, by_place: ByPlace
    ) -> Tensor:
        mixer = layer.mixer
        if isinstance(mixer, AttentionBlock | LatentBlock):
            assert isinstance(own, KvPool)
            angles = by_place.angles[layer.rope] if layer.rope else None
            heat_T1 = by_place.heats[layer.heat] if layer.heat else None
            return mixer(x_TD, spans, own, angles, heat_T1)
        assert isinstance(own, RecurrentPool)
        assert mixer is not None
        return mixer(x_TD, spans, own)

    def _feed(self, ffn: FfnBlock, x_TD: Tensor, normed_TD: Tensor, experts: Experts) -> Tensor:
        if isinstance(ffn, BesideBlock):
            return ffn(x_TD, normed_TD, experts)
        return ffn(normed_TD) if isinstance(ffn, DenseBlock) else ffn(normed_TD, experts)

    def _join(self, x_TD: Tensor, y_TD: Tensor, behind: Norm | None) -> None:
        """Adds what a part of a layer yields."""
        if behind is not None:
            y_TD = behind(y_TD)
        if self.spec.residual_scale != 1.0:
            self._ops.scale(y_TD, self.spec.residual_scale)
        self._ops.add(x_TD, y_TD)


def _layer(i: int, model: ModelSpec, tensors: Scope, ops: Ops, everyone: OneExpert) -> Layer:
    spec, scope = model.layers[i], tensors.within(f"layers.{i}")
    mixer = spec.mixer

    def norm(name: str | None, *, there: bool = True) -> Norm | None:
        return Norm(model, name, scope, ops) if name is not None and there else None

    mixer_norm, ffn_norm = map(norm, spec.norms)
    return Layer(
        mixer_norm,
        None if mixer is None else _mixer(model, mixer, scope, ops),
        ffn_norm,
        None if spec.ffn is None else _ffn(i, model, spec.ffn, scope, ops, everyone),
        _rope(mixer),
        mixer.temperature if isinstance(mixer, Attention | LatentAttention) else None,
        norm("behind_mixer_norm", there=spec.norms_behind),
        norm("behind_ffn_norm", there=spec.norms_behind),
        float(scope.vector("scale")) if spec.scaled else 1.0,
    )


def _rope(spec: Mixer | None) -> Rope | None:
    if isinstance(spec, LatentAttention):
        return spec.rope if spec.turned else None
    return spec.rope if isinstance(spec, Attention) else None


def _mixer(model: ModelSpec, spec: Mixer, scope: Scope, ops: Ops) -> MixerBlock:
    match spec:
        case Attention():
            return AttentionBlock(model, spec, scope, ops)
        case LatentAttention():
            return LatentBlock(spec, scope, ops)
        case DeltaRule():
            return DeltaBlock(model, spec, scope, ops)
        case ChannelDelta():
            return ChannelDeltaBlock(model, spec, scope, ops)
        case ShortConv():
            return ConvBlock(spec, scope, ops)
        case Ssm():
            return SsmBlock(model, spec, scope, ops)


def _ffn(
    layer: int, model: ModelSpec, spec: Ffn, scope: Scope, ops: Ops, everyone: OneExpert
) -> FfnBlock:
    if isinstance(spec, Dense):
        return DenseBlock(spec, scope, ops, everyone)
    if spec.beside:
        return BesideBlock(layer, model, spec, scope, ops, everyone)
    return MoeBlock(layer, spec, scope, ops, everyone)
