"""Memory stays bounded: loading takes the weights and little more, converting does not grow with
the model. Sparse files stand for large ones.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterable
from math import prod
from pathlib import Path

import pytest

from headrace.bench.checkpoint import Shape

LOAD = """
import sys
import headrace
keys = {"threads": 1, "context": 512, "schedule.max_sequences": 1}
engine = headrace.load(sys.argv[1], headrace.EngineConfig.of(**keys))
engine.close()
"""
CONVERT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (900 << 20, 900 << 20))
from headrace.cli.main import main
try:
    main(["convert", sys.argv[1], sys.argv[2]])
except SystemExit as end:
    assert end.code == 0, end.code
"""
# Not getrusage: what it tells is at least what the process that started this one took.
PEAK = """
line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(1024 * int(line.split()[1]))
"""


def sparse(folder: Path, config: object, tensors: Iterable[tuple[str, tuple[int, ...]]]) -> int:
    """A BF16 checkpoint of zeros that takes no room on the disk; returns its bytes."""
    header, end = {}, 0
    for name, shape in tensors:
        start, end = end, end + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + end)
    (folder / "config.json").write_text(json.dumps(config))
    return end


def peak(script: str, *arguments: Path) -> int:
    """Of a process of its own, in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", script + PEAK, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


@pytest.mark.slow
def test_loading_takes_the_weights_and_400_mb(tmp_path: Path) -> None:
    shape = Shape(1024, 512, 64, 8, 4, heads=8, kv_heads=2, vocab=2000)
    nbytes = sparse(tmp_path / "model", shape.config(), shape.tensors())
    assert nbytes > 800_000_000
    assert peak(LOAD, tmp_path / "model") < nbytes + 400_000_000


GPT_OSS = {
    "model_type": "gpt_oss",
    "vocab_size": 1000,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 1024,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_local_experts": 64,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "rope_theta": 150000.0,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
}


def gpt_oss_tensors() -> Iterable[tuple[str, tuple[int, ...]]]:
    """All experts of a layer in one tensor, transposed, gate and up in turns."""
    hidden, width, count = 1024, 1024, 64
    yield "model.embed_tokens.weight", (1000, hidden)
    for i in range(3):
        at = f"model.layers.{i}."
        for name, rows in {"q": 512, "k": 128, "v": 128}.items():
            yield f"{at}self_attn.{name}_proj.weight", (rows, hidden)
            yield f"{at}self_attn.{name}_proj.bias", (rows,)
        yield f"{at}self_attn.o_proj.weight", (hidden, 512)
        yield f"{at}self_attn.o_proj.bias", (hidden,)
        yield f"{at}self_attn.sinks", (8,)
        yield f"{at}input_layernorm.weight", (hidden,)
        yield f"{at}post_attention_layernorm.weight", (hidden,)
        yield f"{at}mlp.router.weight", (count, hidden)
        yield f"{at}mlp.router.bias", (count,)
        yield f"{at}mlp.experts.gate_up_proj", (count, hidden, 2 * width)
        yield f"{at}mlp.experts.gate_up_proj_bias", (count, 2 * width)
        yield f"{at}mlp.experts.down_proj", (count, width, hidden)
        yield f"{at}mlp.experts.down_proj_bias", (count, hidden)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (1000, hidden)


@pytest.mark.slow
def test_converting_does_not_grow_with_the_model(tmp_path: Path) -> None:
    nbytes = sparse(tmp_path / "model", GPT_OSS, gpt_oss_tensors())
    assert nbytes > 1_200_000_000
    assert peak(CONVERT, tmp_path / "model", tmp_path / "made") < 600_000_000
    assert sum(f.stat().st_size for f in (tmp_path / "made").glob("*.ftw")) >= nbytes


@pytest.mark.slow
def test_loading_what_must_be_turned_takes_no_more(tmp_path: Path) -> None:
    """A quarter of the model is one tensor whose matrices are transposed while they are loaded."""
    nbytes = sparse(tmp_path / "model", GPT_OSS, gpt_oss_tensors())
    assert peak(LOAD, tmp_path / "model") < nbytes + 400_000_000
