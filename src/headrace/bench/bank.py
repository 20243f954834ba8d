"""A bank of random experts in memory: rows of true shapes, without a model around them."""

from __future__ import annotations

import torch

from headrace.bench.checkpoint import Shape
from headrace.experts.bank import ExpertBank
from headrace.ops.table import Activation, ExpertRows
from headrace.planning.facts import ModelFacts
from headrace.weights.arena import Arena

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def random_bank(shape: Shape) -> ExpertBank:
    """Every layer of `shape`, each expert in bytes of its own, on huge pages."""
    dtype = DTYPES[shape.dtype]
    each = shape.hidden * shape.width
    row_bytes = 3 * each * dtype.itemsize
    tile = (torch.randn(1 << 20) * shape.hidden**-0.5).to(dtype)

    def layer() -> ExpertRows:
        nbytes = shape.experts * row_bytes
        flat = torch.frombuffer(Arena(nbytes).buffer(0, nbytes), dtype=dtype)
        for at in range(0, flat.numel(), tile.numel()):
            part = flat[at : at + tile.numel()]
            part.copy_(tile[: part.numel()])
        rows_E3 = flat.view(shape.experts, 3, each)
        up, down = (shape.width, shape.hidden), (shape.hidden, shape.width)
        return ExpertRows(
            [row[0].view(up) for row in rows_E3],
            [row[1].view(up) for row in rows_E3],
            [row[2].view(down) for row in rows_E3],
            Activation.SILU,
        )

    facts = ModelFacts(
        family="random",
        layers=shape.layers,
        hidden=shape.hidden,
        vocab=shape.vocab,
        max_context=1,
        state=(None,) * shape.layers,
        experts=(shape.experts,) * shape.layers,
        top_k=(shape.top_k,) * shape.layers,
        expert_bytes=(row_bytes,) * shape.layers,
        total_bytes=shape.layers * shape.experts * row_bytes,
        dtype=shape.dtype,
    )
    return ExpertBank([layer() for _ in range(shape.layers)], facts)
