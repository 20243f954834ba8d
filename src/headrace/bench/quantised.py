"""Random quantised checkpoints of true shapes: published safetensors layouts, or a GGUF file.

Codes are random bits under scales that keep values near 0.02; nothing is quantised.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from headrace.bench.checkpoint import Progress, Shape, ensure, noise, written_once
from headrace.errors import ConfigError
from headrace.formats.format import GGML, Format
from headrace.weights.gguf import TYPES
from headrace.weights.safetensors import head_of

Words = NDArray[Any]
Part = tuple[str, str, tuple[int, ...], Callable[[np.random.Generator], Words]]


def _bits(shape: tuple[int, ...], mask: int = 0xFF) -> Callable[[np.random.Generator], Words]:
    """Random bytes of which only the bits of `mask` are set."""

    def make(rng: np.random.Generator) -> Words:
        count = prod(shape)
        words = rng.integers(0, 1 << 64, size=-(-count // 8), dtype=np.uint64)
        return words.view(np.uint8)[:count] & np.uint8(mask)

    return make


def _filled(shape: tuple[int, ...], value: float, dtype: str) -> Callable[..., Words]:
    return lambda rng: np.full(shape, value, dtype)


def _fp8(n: int, k: int) -> Iterator[Part]:
    blocks = (-(-n // 128), -(-k // 128))
    yield "weight", "F8_E4M3", (n, k), _bits((n, k), 0xBF)  # below 2: no code is no number
    yield "weight_scale_inv", "F32", blocks, _filled(blocks, 0.03, "f4")


def _fp8_row(n: int, k: int) -> Iterator[Part]:
    yield "weight", "F8_E4M3", (n, k), _bits((n, k), 0xBF)
    yield "weight_scale", "F32", (n, 1), _filled((n, 1), 0.03, "f4")


def _mxfp4(n: int, k: int) -> Iterator[Part]:
    yield "weight_packed", "U8", (n, k // 2), _bits((n, k // 2))
    yield "weight_scale", "U8", (n, k // 32), _filled((n, k // 32), 120, "u1")


def _nvfp4(n: int, k: int) -> Iterator[Part]:
    yield "weight", "U8", (n, k // 2), _bits((n, k // 2))
    yield "weight_scale", "F8_E4M3", (n, k // 16), _filled((n, k // 16), 0x3A, "u1")
    yield "weight_scale_2", "F32", (), _filled((), 2.0**-7, "f4")


def _int4(n: int, k: int) -> Iterator[Part]:
    yield "weight_packed", "I32", (n, k // 8), _bits((n, k // 2))
    yield "weight_scale", "BF16", (n, k // 128), _filled((n, k // 128), 0x3B80, "u2")
    yield "weight_shape", "I64", (2,), lambda rng: np.array([n, k], "i8")


def _gptq(n: int, k: int) -> Iterator[Part]:
    """With act-order: columns of a group from anywhere."""
    group = next(g for g in (128, 64, 32) if k % g == 0)
    yield "qweight", "I32", (k // 8, n), _bits((k // 8, n, 4))
    yield "qzeros", "I32", (k // group, n // 8), _filled((k // group, n // 8), 0x77777777, "u4")
    yield "scales", "F16", (k // group, n), _filled((k // group, n), 0.004, "f2")
    yield "g_idx", "I32", (k,), lambda rng: (rng.permutation(k) // group).astype("<i4")


_COMPRESSED = {"quant_method": "compressed-tensors"}
LAYOUTS: dict[str, tuple[Callable[[int, int], Iterator[Part]], dict[str, Any]]] = {
    "FP8": (_fp8, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "FP8-ROW": (_fp8_row, _COMPRESSED | {"format": "float-quantized"}),
    "MXFP4": (_mxfp4, _COMPRESSED | {"format": "mxfp4-pack-quantized"}),
    "NVFP4": (_nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "GPTQ": (_gptq, {"quant_method": "gptq", "bits": 4, "desc_act": True}),
    "INT4": (_int4, _COMPRESSED | {"format": "pack-quantized"}),
}
# Of which a row's columns are a multiple.
_COLUMNS = {"MXFP4": 32, "NVFP4": 16, "GPTQ": 32, "INT4": 128}
# Where the float16 scales of a block lie, in bytes, and what they are.
_SCALES = {
    "Q4_0": ((0,), 0.004), "Q5_0": ((0,), 0.002), "Q8_0": ((0,), 0.0003),
    "Q2_K": ((80, 82), 0.002), "Q3_K": ((108,), 0.0005), "Q4_K": ((0, 2), 0.0002),
    "Q5_K": ((0, 2), 0.0001), "Q6_K": ((208,), 0.00002), "IQ4_NL": ((0,), 0.0003),
    "IQ4_XS": ((0,), 0.00002),
}  # fmt: skip
FILES = {form.tag: form for form in GGML if form.tag in _SCALES}


def ensure_quantised(home: Path, shape: Shape, kind: str, progress: Progress) -> Path:
    """The checkpoint of this shape in `kind`, written under `home` unless it is already there.

    Raises ConfigError for a kind that none of LAYOUTS and FILES names, CapacityError where the
    disk has no room.
    """
    if kind not in LAYOUTS and kind not in FILES:
        known = ", ".join([*LAYOUTS, *FILES])
        raise ConfigError(f"format {kind!r}", expected=f"one of {known}")
    group = FILES[kind].group if kind in FILES else _COLUMNS.get(kind, 1)
    columns = (shape.hidden, shape.width, shape.heads * shape.head_dim)
    if any(count % group for count in columns):
        raise ConfigError(
            f"rows of {', '.join(map(str, columns))} columns in {kind}",
            expected=f"multiples of {group}",
            fix="choose another --hidden or --width",
        )
    folder = home / f"{shape.name()}-{kind.lower()}"
    path = folder / f"{folder.name}.gguf" if kind in FILES else folder

    def write() -> None:
        if kind in FILES:
            _write_gguf(path, shape, FILES[kind], progress)
            return
        layout, told = LAYOUTS[kind]
        _write_safetensors(folder / "model.safetensors", shape, layout, progress)
        config = shape.config() | {"quantization_config": told}
        (folder / "config.json").write_text(json.dumps(config, indent=1))

    written_once(folder, shape, write)
    return path


def random_checkpoint(home: Path, shape: Shape, kind: str | None, progress: Progress) -> Path:
    """As `ensure_quantised`; plain floats of the shape's dtype where `kind` is None."""
    if kind is None:
        return ensure(home / shape.name(), shape, progress)
    return ensure_quantised(home, shape, kind, progress)


def _write_safetensors(
    file: Path, shape: Shape, layout: Callable[[int, int], Iterator[Part]], progress: Progress
) -> None:
    """Projections in the layout, all else in BF16."""
    header: dict[str, Any] = {}
    makers: list[Callable[[np.random.Generator], Words]] = []
    end = 0
    for name, dims in shape.tensors():
        stem, projected = name.removesuffix("weight"), name.endswith("_proj.weight")
        parts = layout(*dims) if projected else _plain(name, dims)
        for suffix, tag, size, make in parts:
            begin, end = end, end + prod(size) * _ITEM[tag]
            header[stem + suffix] = {"dtype": tag, "shape": size, "data_offsets": [begin, end]}
            makers.append(make)
    rng = np.random.Generator(np.random.SFC64(0))
    with file.open("wb") as out:
        out.write(head_of(header))
        done = 0
        for make in makers:
            done += out.write(np.ascontiguousarray(make(rng)).tobytes())
            progress(done, end, "writing a random checkpoint")


_ITEM = {"F8_E4M3": 1, "U8": 1, "BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8}


def _plain(name: str, dims: tuple[int, ...]) -> Iterator[Part]:
    yield "weight", "BF16", dims, lambda rng: noise(rng, dims, "bfloat16", norm="norm" in name)


def gguf_tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes, in file order."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    up, down = (shape.width, shape.hidden), (shape.hidden, shape.width)
    yield "token_embd.weight", (shape.vocab, shape.hidden)
    for i in range(shape.layers):
        at = f"blk.{i}."
        yield at + "attn_norm.weight", (shape.hidden,)
        yield at + "attn_q.weight", (q, shape.hidden)
        yield at + "attn_k.weight", (kv, shape.hidden)
        yield at + "attn_v.weight", (kv, shape.hidden)
        yield at + "attn_output.weight", (shape.hidden, q)
        yield at + "attn_q_norm.weight", (shape.head_dim,)
        yield at + "attn_k_norm.weight", (shape.head_dim,)
        yield at + "ffn_norm.weight", (shape.hidden,)
        yield at + "ffn_gate_inp.weight", (shape.experts, shape.hidden)
        yield at + "ffn_gate_exps.weight", (shape.experts, *up)
        yield at + "ffn_up_exps.weight", (shape.experts, *up)
        yield at + "ffn_down_exps.weight", (shape.experts, *down)
    yield "output_norm.weight", (shape.hidden,)
    yield "output.weight", (shape.vocab, shape.hidden)


_CODES = {name: code for code, (name, _, _) in TYPES.items()}
_ALIGNED = 32


Record = tuple[str, tuple[int, ...], int, int]  # name, shape, ggml type, bytes


def gguf_head(
    shape: Shape, records: Iterable[Record], more: Mapping[str, bytes] = MappingProxyType({})
) -> bytes:
    """All that stands before the tensors, which follow with `gguf_padding` behind each. `more`:
    keys with their type and value as they are stored.
    """
    infos, offset, count = b"", 0, 0
    for name, dims, kind, nbytes in records:
        infos += gguf_text(name) + struct.pack("<I", len(dims))
        infos += struct.pack(f"<{len(dims)}Q", *reversed(dims)) + struct.pack("<IQ", kind, offset)
        offset += nbytes + len(gguf_padding(nbytes))
        count += 1
    pairs = _metadata(shape) + [gguf_text(key) + value for key, value in more.items()]
    head = b"GGUF" + struct.pack("<IQQ", 3, count, len(pairs)) + b"".join(pairs) + infos
    return head + gguf_padding(len(head))


def gguf_padding(nbytes: int) -> bytes:
    """What follows so many bytes."""
    return bytes(-nbytes % _ALIGNED)


def gguf_text(value: str) -> bytes:
    """A string as it is stored."""
    return struct.pack("<Q", len(value)) + value.encode()


def _metadata(shape: Shape) -> list[bytes]:
    counts = {
        "context_length": 32768,
        "embedding_length": shape.hidden,
        "block_count": shape.layers,
        "feed_forward_length": shape.width,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "expert_count": shape.experts,
        "expert_used_count": shape.top_k,
        "expert_feed_forward_length": shape.width,
        "rope.dimension_count": shape.head_dim,
    }
    numbers = {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6}
    out = [gguf_text("general.architecture") + struct.pack("<I", 8) + gguf_text("qwen3moe")]
    out += [gguf_text(f"qwen3moe.{k}") + struct.pack("<II", 4, v) for k, v in counts.items()]
    out += [gguf_text(f"qwen3moe.{k}") + struct.pack("<If", 6, v) for k, v in numbers.items()]
    out += [
        gguf_text(f"tokenizer.ggml.{k}_token_id") + struct.pack("<II", 4, v)
        for k, v in {"bos": 1, "eos": 2}.items()
    ]
    return out


def _write_gguf(file: Path, shape: Shape, form: Format, progress: Progress) -> None:
    """Matrices in the format, router and norms in float32."""
    tensors = []
    for name, dims in gguf_tensors(shape):
        packed = len(dims) > 1 and "ffn_gate_inp" not in name
        nbytes = prod(dims[:-1]) * form.row_nbytes(dims[-1]) if packed else 4 * prod(dims)
        tensors.append((name, dims, nbytes, packed))
    tags = {True: form.tag, False: "F32"}
    head = gguf_head(shape, [(n, dims, _CODES[tags[p]], nbytes) for n, dims, nbytes, p in tensors])
    total = sum(nbytes for _, _, nbytes, _ in tensors)
    rng = np.random.Generator(np.random.SFC64(0))
    with file.open("wb") as out:
        out.write(head)
        done = 0
        for name, dims, nbytes, packed in tensors:
            if packed:
                _write_blocks(out, rng, nbytes, form)
            else:
                values = np.ones(dims) if "norm" in name else 0.02 * rng.standard_normal(dims)
                out.write(values.astype("<f4").tobytes())
            out.write(gguf_padding(nbytes))
            done += nbytes
            progress(done, total, "writing a random checkpoint")


def _write_blocks(out: BinaryIO, rng: np.random.Generator, nbytes: int, form: Format) -> None:
    places, scale = _SCALES[form.tag]
    half = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    block = form.row_nbytes(form.group)
    step = block * (1 << 18)  # blocks that are made at once
    for at in range(0, nbytes, step):
        raw = _bits((min(step, nbytes - at),))(rng).reshape(-1, block)
        for place in places:
            raw[:, place : place + 2] = half
        out.write(raw.tobytes())
