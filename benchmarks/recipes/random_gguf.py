"""Writes a random Qwen3-MoE GGUF file that Headrace and llama.cpp both read; needs the package
`gguf`.

    random_gguf.py Q8_0 model.gguf --layers 4 --skew 1

With a skew, experts are used by about rank^-skew, in an order of its own for each layer: the first
number of every state is a constant that no layer touches, so that a router's first column is a
bias. Without tokenizer: both benchmarks make their own token ids.
"""

import argparse
import functools
import math
import os
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from headrace.bench.checkpoint import Shape
from headrace.bench.quantised import gguf_head, gguf_padding, gguf_tensors, gguf_text

NOISE = 1.28  # of router logits, the spread of the noise that makes `rank^-skew` of a choice
CONSTANT = 1.72
LAYER_GAIN = 0.2  # of the residual's variance, what a layer adds: for the bias alone
# Where a block's float16 scales lie, in bytes.
SCALES = {"Q8_0": (0,), "Q4_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
DENSE = {Kind.MXFP4: Kind.Q8_0}  # published MXFP4 files have experts in it alone

Array = np.ndarray


class Tensor(NamedTuple):
    name: str
    shape: tuple[int, ...]
    kind: Kind
    std: float = 1.0
    change: Callable[[Array], None] = lambda raw: None  # of the stored rows, in place


def tensors(shape: Shape, kind: Kind, skew: float) -> Iterator[Tensor]:
    """In file order. Names are those of the format."""
    dense = DENSE.get(kind, kind)
    if skew and dense not in (Kind.BF16, Kind.Q8_0):
        raise SystemExit(f"a skew needs BF16, Q8_0 or MXFP4, not {kind.name}")
    fan = shape.hidden**-0.5

    def constant_first(raw: Array) -> None:
        if dense == Kind.BF16:
            raw[:, 0] = 0x3FDC
        else:
            raw[:, 2] = 127  # codes -128 to 127 have a deviation of 73.9: 127 is 1.72 of them

    def nothing_first(raw: Array) -> None:
        raw[..., 0, :] = 0

    first = constant_first if skew else lambda raw: None
    none = nothing_first if skew else lambda raw: None
    for name, dims in gguf_tensors(shape):
        if "norm" in name:
            yield Tensor(name, dims, Kind.F32, 0)
        elif "ffn_gate_inp" in name:
            change = _bias(int(name.split(".")[1]), skew)
            yield Tensor(name, dims, Kind.F32, NOISE * fan, change)
        elif "token_embd" in name:
            yield Tensor(name, dims, dense, 1.0, first)
        elif "attn_output" in name:
            yield Tensor(name, dims, dense, fan, none)
        elif "ffn_down" in name:
            yield Tensor(name, dims, kind, 2 * fan, none)
        else:
            yield Tensor(name, dims, kind if "_exps" in name else dense, fan)


def _bias(layer: int, skew: float) -> Callable[[Array], None]:
    """Writes -skew * log(rank) into the router's first column, as the constant will meet it."""

    def change(values: Array) -> None:
        if skew:
            order = np.random.default_rng(layer).permutation(len(values))
            first = CONSTANT / np.sqrt(1 + LAYER_GAIN * layer)
            values[:, 0] = -skew * np.log(1 + order) / first

    return change


@functools.cache
def scale(kind: Kind, std: float) -> bytes:
    """The bytes of a block's scale with which random codes have this standard deviation."""
    random = np.random.default_rng(0)
    nbytes = gguf.GGML_QUANT_SIZES[kind][1]
    raw = random.integers(0, 256, (4096, nbytes), np.uint8)
    if kind == Kind.MXFP4:
        raw[:, 0] = 127
        one = gguf.quants.dequantize(raw, kind).std()
        return bytes([int(np.round(127 + np.log2(std / one)))])
    for at in SCALES[kind.name]:
        raw[:, at : at + 2] = np.frombuffer(np.float16(1 / 256).tobytes(), np.uint8)
    one = gguf.quants.dequantize(raw, kind).std() * 256
    return np.float16(std / one).tobytes()


def values(tensor: Tensor, random: np.random.Generator) -> Iterator[Array]:
    """What is stored, in rows of at most 64 MiB or so."""
    *leading, columns = tensor.shape
    if tensor.kind == Kind.F32:
        made = random.standard_normal(tensor.shape, np.float32) * np.float32(tensor.std)
        made = made if tensor.std else np.ones(tensor.shape, np.float32)
        tensor.change(made)
        yield made
        return
    block, nbytes = gguf.GGML_QUANT_SIZES[tensor.kind]
    rows = leading[-1]
    for _ in range(int(np.prod(leading[:-1]))):
        if tensor.kind == Kind.BF16:
            # Random sign and mantissa: 1 to 2 times a power of two, 1.53 times in the mean.
            exponent = 127 + int(np.round(np.log2(tensor.std / 1.53)))
            raw = _words(random, rows * columns).reshape(rows, columns)
            raw &= 0x807F
            raw |= exponent << 7
        else:
            words = _words(random, rows * (columns // block) * nbytes // 2)
            raw = words.view(np.uint8).reshape(rows, columns // block, nbytes)
            code = np.frombuffer(scale(tensor.kind, tensor.std), np.uint8)
            for at in SCALES.get(tensor.kind.name, (0,)):
                raw[:, :, at : at + len(code)] = code
            raw = raw.reshape(rows, -1)
        tensor.change(raw)
        yield raw


def _words(random: np.random.Generator, count: int) -> Array:
    return random.integers(0, 1 << 64, -(-count // 4), np.uint64).view(np.uint16)[:count]


def write(path: Path, kind: Kind, shape: Shape, skew: float) -> None:
    every = list(tensors(shape, kind, skew))
    records = []
    for tensor in every:
        records.append((tensor.name, tensor.shape, int(tensor.kind), stored_bytes(tensor)))
    more = {
        "qwen3moe.vocab_size": struct.pack("<II", 4, shape.vocab),
        "tokenizer.ggml.model": struct.pack("<I", 8) + gguf_text("none"),
    }
    random = np.random.Generator(np.random.SFC64(0))
    with path.open("wb") as out:
        out.write(gguf_head(shape, records, more))
        for tensor, (_, _, _, stored) in zip(every, records, strict=True):
            for rows in values(tensor, random):
                rows.tofile(out)
            out.write(gguf_padding(stored))


def stored_bytes(tensor: Tensor) -> int:
    block, nbytes = gguf.GGML_QUANT_SIZES[tensor.kind]
    return math.prod(tensor.shape) // block * nbytes


def layers_of(kind: str, nbytes: float) -> int:
    """So many layers that a file has about this size; one at least."""
    one, two = (
        sum(stored_bytes(tensor) for tensor in tensors(Shape(layers=n), Kind[kind], 0.0))
        for n in (1, 2)
    )
    return 1 + max(0, round((nbytes - one) / (two - one)))


def made(kind: str, layers: int, skew: float) -> Path:
    """The file of these traits in HEADRACE_HOME, written unless it is there."""
    home = Path(os.environ.get("HEADRACE_HOME", Path.home() / ".cache/headrace"))
    file = home / "bench" / f"random-{kind}-{layers}layers-skew{skew:g}.gguf"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        write(part, Kind[kind], Shape(layers=layers), skew)
        part.rename(file)
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=["BF16", "MXFP4", *SCALES])
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--skew", type=float, default=0.0)
    given = parser.parse_args()
    write(given.out, Kind[given.kind], Shape(layers=given.layers), given.skew)
    sys.stdout.write(f"{given.out}: {given.out.stat().st_size / 1e9:.2f} GB\n")


if __name__ == "__main__":
    main()
