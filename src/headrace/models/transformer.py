"""The one forward pass: every family is this code over its spec.

The residual stream is float32 on the CPU. T tokens, N of them with logits, D hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.models.attention import Angles, AttentionBlock
from headrace.models.conv import ConvBlock
from headrace.models.delta import DeltaBlock
from headrace.models.dense import DenseBlock, OneExpert
from headrace.models.kda import ChannelDeltaBlock
from headrace.models.latent import LatentBlock
from headrace.models.moe import MoeBlock
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
)
from headrace.models.ssm import SsmBlock
from headrace.models.state import Batch, Experts, KvPool, LayerState, RecurrentPool, State
from headrace.models.tensors import Scope
from headrace.ops.spans import Spans
from headrace.ops.table import Linear, Ops

MixerBlock = AttentionBlock | LatentBlock | DeltaBlock | ChannelDeltaBlock | ConvBlock | SsmBlock


@dataclass(frozen=True, slots=True)
class Layer:
    """x += mixer(norm(x)); x += ffn(norm(x)), each where it is there."""

    mixer_norm_D: Tensor | None
    mixer: MixerBlock | None
    ffn_norm_D: Tensor | None
    ffn: DenseBlock | MoeBlock | None
    rope: Rope | None


class Transformer:
    """A model of any family. Routed experts are not in here: `forward` is told who runs them."""

    def __init__(self, spec: ModelSpec, tensors: Scope, ops: Ops) -> None:
        self.spec = spec
        self._ops = ops
        self._embed_VD = tensors.matrix("embed")
        self._head = Linear((self._embed_VD,)) if spec.tied else tensors.linear("head")
        self._norm_D = tensors.vector("norm")
        self._everyone = OneExpert()
        count = len(spec.layers)
        self._layers = [_layer(i, spec, tensors, ops, self._everyone) for i in range(count)]
        self._renorms: dict[int, Tensor] = {}  # by MoE layer
        ropes = {layer.rope for layer in self._layers if layer.rope}
        self._turns = {rope: (frequencies(rope), angle_factor(rope)) for rope in ropes}

    def forward(self, batch: Batch, state: State, experts: Experts) -> Tensor:
        """Logits of the tokens `batch.rows_N`, float32 [N, V]. Reads and updates `state`, one entry
        a layer.
        """
        ops = self._ops
        self.prepare(int(batch.tokens_T.shape[0]))
        x_TD = ops.lookup(self._embed_VD, batch.tokens_T)
        angles = {rope: ops.angles(batch.positions_T, *turn) for rope, turn in self._turns.items()}
        for layer, own in zip(self._layers, state, strict=True):
            if layer.mixer_norm_D is not None:
                turned = None if layer.rope is None else angles[layer.rope]
                normed = self._norm(x_TD, layer.mixer_norm_D)
                ops.add(x_TD, self._mix(layer, normed, batch.spans_of(own), own, turned))
            ffn = layer.ffn
            if layer.ffn_norm_D is not None and ffn is not None:
                normed = self._norm(x_TD, layer.ffn_norm_D)
                ops.add(x_TD, ffn(normed) if isinstance(ffn, DenseBlock) else ffn(normed, experts))
        if batch.rows_N.shape[0] == 0:  # a chunk of a prompt that goes on
            return x_TD.new_empty(0, self.spec.vocab)
        x_ND = self._norm(ops.lookup(x_TD, batch.rows_N), self._norm_D)
        return ops.linear(x_ND, self._head)

    def best(self, logits_NV: Tensor) -> Tensor:
        """The best token of each row, int64 [N]; -1 where the row is not finite throughout."""
        return self._ops.best(logits_NV)

    def guess(self, layer: int, x_TD: Tensor) -> Tensor | None:
        """Experts that the next MoE layer would choose, int32 [T, X], were its input what goes
        into this one's experts but for the norm; None behind the last one.
        """
        later = enumerate(self._layers[layer + 1 :], layer + 1)
        to = next((i for i, one in later if isinstance(one.ffn, MoeBlock)), None)
        if to is None:
            return None
        block = self._layers[to].ffn
        assert isinstance(block, MoeBlock)
        if to not in self._renorms:
            own, their = (self._ffn_norm(i) for i in (layer, to))
            self._renorms[to] = torch.where(own == 0, 0.0, their / own)
        return block.route(x_TD * self._renorms[to]).ids_TX

    def _ffn_norm(self, layer: int) -> Tensor:
        """What its norm multiplies by."""
        weight = self._layers[layer].ffn_norm_D
        assert weight is not None
        return weight + int(self.spec.norm_plus_one)

    def prepare(self, tokens: int) -> None:
        """Makes what steps of so many tokens share, so that no capture has to."""
        self._everyone(tokens)

    def _mix(
        self, layer: Layer, x_TD: Tensor, spans: Spans, own: LayerState, angles: Angles | None
    ) -> Tensor:
        mixer = layer.mixer
        if isinstance(mixer, AttentionBlock | LatentBlock):
            assert isinstance(own, KvPool)
            return mixer(x_TD, spans, own, angles)
        assert isinstance(own, RecurrentPool)
        assert mixer is not None
        return mixer(x_TD, spans, own)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._ops.rms_norm(x, weight, self.spec.eps, plus_one=self.spec.norm_plus_one)


def _layer(i: int, model: ModelSpec, tensors: Scope, ops: Ops, everyone: OneExpert) -> Layer:
    spec, scope = model.layers[i], tensors.within(f"layers.{i}")
    mixer, ffn = spec.mixer, spec.ffn
    mixer_norm, ffn_norm = (None if n is None else scope.vector(n) for n in spec.norms)
    return Layer(
        mixer_norm,
        None if mixer is None else _mixer(model, mixer, scope, ops),
        ffn_norm,
        None if ffn is None else _ffn(i, ffn, scope, ops, everyone),
        _rope(mixer),
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
    layer: int, spec: Ffn, scope: Scope, ops: Ops, everyone: OneExpert
) -> DenseBlock | MoeBlock:
    if isinstance(spec, Dense):
        return DenseBlock(spec, scope, ops, everyone)
    return MoeBlock(layer, spec, scope, ops, everyone)
