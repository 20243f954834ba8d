"""Captured decode steps: the bits of the plain forward pass, and none where torch computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch

import headrace
from headrace.device.cpu import CpuDevice
from headrace.device.tape import CpuGraph
from headrace.engine.engine import Engine
from headrace.engine.graphs import MOST_SEQUENCES, Graphs
from headrace.engine.logits import Logits
from headrace.engine.request import Request, Sampling, TokenEvent
from headrace.models.state import Batch, State
from headrace.ops.choose import ops_for


class Plain(Graphs):
    """Never captures."""

    def forward(self, batch: Batch, state: State) -> Logits:
        return self.plain(batch, state, self.experts)


def graphs_of(engine: Engine) -> Graphs:
    graphs = engine._runner._forward.graphs  # type: ignore[attr-defined]
    assert isinstance(graphs, Graphs)
    return graphs


def serve(engine: Engine, sequences: int) -> list[TokenEvent]:
    """All events of so many sequences, the longer prompts answering for longer."""
    for i in range(sequences):
        how = Sampling(temperature=0, logprobs=4, ignore_eos=True, max_tokens=6 + 5 * i)
        engine.submit(Request(tuple(range(3 + i, 20 + 7 * i)), how))
    events: list[TokenEvent] = []
    while not engine.idle:
        events += engine.step()
    return events


@pytest.mark.parametrize(
    "family",
    ["mixtral", "gpt_oss", "qwen3_moe", "qwen3_moe-dense-tied-linear", "olmoe", "qwen3_5_moe"],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_bits_of_the_plain_pass(family: str, threads: int, tmp_path: Path) -> None:
    tiny.build(family, tmp_path)
    config = headrace.EngineConfig.of(threads=threads, **{"memory.block_tokens": 4})
    engine = headrace.load(tmp_path, config)
    found = serve(engine, MOST_SEQUENCES + 1)
    assert graphs_of(engine).sizes == list(range(1, MOST_SEQUENCES + 1))
    found += serve(engine, 2)  # other blocks, replayed
    engine.close()

    engine = headrace.load(tmp_path, config)
    graphs = graphs_of(engine)
    plain = Plain(graphs._transformer, graphs.experts, graphs._device)
    engine._runner._forward = plain.forward
    expected = serve(engine, MOST_SEQUENCES + 1) + serve(engine, 2)
    engine.close()
    assert graphs.sizes == []
    assert found == expected


def test_what_torch_computes_is_named() -> None:
    with CpuDevice(1) as device:
        ops, x = ops_for(device), torch.randn(2, 8)
        weight = torch.randn(8)
        graph = device.graph()
        with graph.recording():
            y = ops.rms_norm(x, weight, 1e-6)
        assert graph.foreign == ""
        expected = ops.rms_norm(-3 * x, weight, 1e-6)
        x *= -3
        y.fill_(float("nan"))
        graph.replay()
        assert torch.equal(y, expected)

        for compute in (lambda: x.sigmoid(), lambda: x.t().contiguous(), lambda: x.add_(1)):
            graph = CpuGraph(device.pool)
            with graph.recording():
                compute()
            assert graph.foreign
