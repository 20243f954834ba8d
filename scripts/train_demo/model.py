"""The upcycled model for training: the parent frozen, routers and low-rank deltas learned.

Experts share the parent's matrices, so W x is computed once per token and only the low-rank part
and the activation differ between experts; a step costs little more than the dense model.
Shapes: T tokens, H hidden, F expert width, E experts, R rank, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from headrace.demo.source import DenseParent

EXPERTS, TOP_K = 8, 2


class Deltas(nn.Module):
    """Learned parameters of one layer; `up_*` starts at zero, so experts start equal.

    router [E, H]; in_gate, in_up [E*R, H]; out_gate, out_up [E*R, F]; in_down [E*R, F];
    out_down [E*R, H]. Expert e's gate delta is out_gate[e].T @ in_gate[e] of shape [F, H].
    """

    def __init__(self, hidden: int, width: int, rank: int) -> None:
        super().__init__()
        rows = EXPERTS * rank
        self.router = nn.Parameter(torch.zeros(EXPERTS, hidden))
        self.in_gate = nn.Parameter(torch.randn(rows, hidden) * hidden**-0.5)
        self.in_up = nn.Parameter(torch.randn(rows, hidden) * hidden**-0.5)
        self.in_down = nn.Parameter(torch.randn(rows, width) * width**-0.5)
        self.out_gate = nn.Parameter(torch.zeros(rows, width))
        self.out_up = nn.Parameter(torch.zeros(rows, width))
        self.out_down = nn.Parameter(torch.zeros(rows, hidden))


@dataclass
class Block:
    """Frozen weights of one layer, [out, in]."""

    attn_norm: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    ffn_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


class Upcycled(nn.Module):
    """SmolLM2 with its MLPs read as eight experts, top-2, weights renormalised (as in Mixtral)."""

    def __init__(self, parent: DenseParent, rank: int) -> None:
        super().__init__()
        dims = self.dims = parent.dims
        self.rank = rank

        def load(name: str) -> Tensor:
            return torch.from_numpy(parent.tensor(name).copy())

        parts = ("input_layernorm", *(f"self_attn.{x}_proj" for x in "qkvo"))
        parts += ("post_attention_layernorm", *(f"mlp.{x}_proj" for x in ("gate", "up", "down")))
        self.blocks = [
            Block(*(load(f"model.layers.{i}.{part}.weight") for part in parts))
            for i in range(dims.layers)
        ]
        self.embedding = load("model.embed_tokens.weight")
        self.norm = load("model.norm.weight")
        self.deltas = nn.ModuleList(
            Deltas(dims.hidden, dims.width, rank) for _ in range(dims.layers)
        )

    def forward(self, ids_BS: Tensor, tap: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Final hidden states [B, S, H] after the last norm, and the load-balance loss.

        `tap` receives each layer's router input [B*S, H].
        """
        rope = self._rope(ids_BS.shape[1])
        x = nnf.embedding(ids_BS, self.embedding)
        balance = torch.zeros(())
        for block, learned in zip(self.blocks, self.deltas, strict=True):
            x = x + self._attention(self._rms(x, block.attn_norm), block, rope)
            flat = self._rms(x, block.ffn_norm).flatten(0, 1)
            if tap is not None:
                tap.append(flat)
            out, layer_balance = self._experts(flat, block, learned)
            x = x + out.view_as(x)
            balance = balance + layer_balance
        return self._rms(x, self.norm), balance / self.dims.layers

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Mean next-token loss over targets that are not -100; hidden [T, H], targets [T]."""
        keep = targets >= 0
        return nnf.cross_entropy(hidden[keep] @ self.embedding.T, targets[keep])

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return nnf.rms_norm(x, (x.shape[-1],), weight, self.dims.rms_eps)

    def _rope(self, length: int) -> tuple[Tensor, Tensor]:
        half = torch.arange(0, self.dims.head_dim, 2) / self.dims.head_dim
        angle = torch.arange(length)[:, None] * self.dims.rope_theta**-half
        return torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()

    def _attention(self, x: Tensor, block: Block, rope: tuple[Tensor, Tensor]) -> Tensor:
        batch, length, _ = x.shape

        def heads(weight: Tensor) -> Tensor:
            return (x @ weight.T).view(batch, length, -1, self.dims.head_dim).transpose(1, 2)

        def turn(y: Tensor) -> Tensor:
            a, b = y.chunk(2, -1)
            return y * rope[0] + torch.cat((-b, a), -1) * rope[1]

        q, k, v = turn(heads(block.q)), turn(heads(block.k)), heads(block.v)
        y = nnf.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return y.transpose(1, 2).reshape(batch, length, -1) @ block.o.T

    def _experts(self, x: Tensor, block: Block, d: Deltas) -> tuple[Tensor, Tensor]:
        probs = (x @ d.router.T).softmax(-1)
        top, chosen = probs.topk(TOP_K, -1)
        top = top / top.sum(-1, keepdim=True)
        gate, up = x @ block.gate.T, x @ block.up.T
        low_gate, low_up = x @ d.in_gate.T, x @ d.in_up.T
        mixed, correction = torch.zeros(()), torch.zeros(())
        for slot in range(TOP_K):
            expert = nnf.one_hot(chosen[:, slot], EXPERTS)
            rows = expert.repeat_interleave(self.rank, -1).to(x.dtype)
            h = nnf.silu(torch.addmm(gate, low_gate * rows, d.out_gate))
            h = h * torch.addmm(up, low_up * rows, d.out_up) * top[:, slot, None]
            mixed = mixed + h
            correction = correction + ((h @ d.in_down.T) * rows) @ d.out_down
        used = nnf.one_hot(chosen, EXPERTS).sum(1).float().mean(0) / TOP_K
        return mixed @ block.down.T + correction, EXPERTS * (used * probs.mean(0)).sum()
