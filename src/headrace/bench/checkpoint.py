"""Random checkpoints of true shapes, in a published layout: what a benchmark reads.

Values are cheap noise of the right magnitude; the file is an ordinary Qwen3-MoE checkpoint.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from headrace.errors import CapacityError, ConfigError
from headrace.weights.safetensors import head_of

Progress = Callable[[int, int, str], None]
SHARD_BYTES = 2 << 30
# Bit masks that turn uniform words into floats of random sign and mantissa and magnitude 2^-7 to
# 2^-5, that is about 1/sqrt(2048), so activations neither vanish nor blow up.
_NOISE = {
    "bfloat16": ("BF16", np.uint16, 0x80FF, 0x3C00),
    "float16": ("F16", np.uint16, 0x87FF, 0x2000),
    "float32": ("F32", np.uint32, 0x80FFFFFF, 0x3C000000),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen3-MoE model. The defaults: 30B-A3B with 4 of its 48 layers, 5.2 GB in BF16."""

    hidden: int = 2048
    width: int = 768
    experts: int = 128
    top_k: int = 8
    layers: int = 4
    heads: int = 32
    kv_heads: int = 4
    head_dim: int = 128
    vocab: int = 32000
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        if self.dtype not in _NOISE:
            raise ConfigError(f"dtype {self.dtype!r}", expected="one of " + ", ".join(_NOISE))
        for name, value in asdict(self).items():
            if name != "dtype" and not 1 <= value <= 1 << 20:
                raise ConfigError(f"{name} = {value}", expected="1 to 1048576")
        if self.top_k > self.experts or self.heads % self.kv_heads:
            raise ConfigError(
                f"top_k {self.top_k} of {self.experts} experts, "
                f"{self.heads} heads over {self.kv_heads}",
                expected="top_k at most the experts, heads a multiple of kv_heads",
            )

    def name(self) -> str:
        """Tells shapes apart, for people and as a folder."""
        return (
            f"random-{self.hidden}x{self.width}x{self.experts}-top{self.top_k}"
            f"-{self.layers}layers-{self.dtype}"
        )

    def config(self) -> dict[str, object]:
        """The published configuration of such a model."""
        return {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "hidden_size": self.hidden,
            "moe_intermediate_size": self.width,
            "intermediate_size": self.width,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "hidden_act": "silu",
            "attention_bias": False,
            "use_sliding_window": False,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": False,
            "torch_dtype": self.dtype,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes, in file order."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "model.embed_tokens.weight", (self.vocab, self.hidden)
        for i in range(self.layers):
            at = f"model.layers.{i}."
            yield at + "input_layernorm.weight", (self.hidden,)
            yield at + "self_attn.q_proj.weight", (q, self.hidden)
            yield at + "self_attn.k_proj.weight", (kv, self.hidden)
            yield at + "self_attn.v_proj.weight", (kv, self.hidden)
            yield at + "self_attn.o_proj.weight", (self.hidden, q)
            yield at + "self_attn.q_norm.weight", (self.head_dim,)
            yield at + "self_attn.k_norm.weight", (self.head_dim,)
            yield at + "post_attention_layernorm.weight", (self.hidden,)
            yield at + "mlp.gate.weight", (self.experts, self.hidden)
            for e in range(self.experts):
                yield at + f"mlp.experts.{e}.gate_proj.weight", (self.width, self.hidden)
                yield at + f"mlp.experts.{e}.up_proj.weight", (self.width, self.hidden)
                yield at + f"mlp.experts.{e}.down_proj.weight", (self.hidden, self.width)
        yield "model.norm.weight", (self.hidden,)
        yield "lm_head.weight", (self.vocab, self.hidden)

    def nbytes(self) -> int:
        item = np.dtype(_NOISE[self.dtype][1]).itemsize
        return sum(int(np.prod(shape)) for _, shape in self.tensors()) * item


def ensure(folder: Path, shape: Shape, progress: Progress) -> Path:
    """The checkpoint of this shape in `folder`, written unless it is already there, whole.

    Raises CapacityError when the disk has no room for it.
    """

    def write() -> None:
        for old in folder.glob("*.safetensors"):
            old.unlink()
        index = _write_shards(folder, shape, progress)
        total = {"total_size": shape.nbytes()}
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": total, "weight_map": index})
        )
        (folder / "config.json").write_text(json.dumps(shape.config(), indent=1))

    written_once(folder, shape, write)
    return folder


def written_once(folder: Path, shape: Shape, write: Callable[[], None]) -> None:
    """Calls `write` unless `folder` holds a checkpoint of this shape, whole.

    Raises CapacityError when the disk has no room for it.
    """
    stamp = folder / "shape.json"
    wanted = json.dumps(asdict(shape), sort_keys=True)
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    folder.mkdir(parents=True, exist_ok=True)
    free, need = shutil.disk_usage(folder).free, shape.nbytes() + (1 << 30)
    if free < need:
        raise CapacityError(
            f"{free / 1e9:.1f} GB free at {folder}",
            expected=f"{need / 1e9:.1f} GB for a checkpoint of this shape",
            fix="free some disk space or choose fewer --layers",
        )
    write()
    stamp.write_text(wanted)


def _write_shards(folder: Path, shape: Shape, progress: Progress) -> dict[str, str]:
    item = np.dtype(_NOISE[shape.dtype][1]).itemsize
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    size = 0
    for name, dims in shape.tensors():
        nbytes = int(np.prod(dims)) * item
        if size + nbytes > SHARD_BYTES and shards[-1]:
            shards.append([])
            size = 0
        shards[-1].append((name, dims))
        size += nbytes
    rng = np.random.Generator(np.random.SFC64(0))
    index: dict[str, str] = {}
    done, total = 0, shape.nbytes()
    for i, tensors in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        header, offset = {}, 0
        for name, dims in tensors:
            end = offset + int(np.prod(dims)) * item
            header[name] = {
                "dtype": _NOISE[shape.dtype][0],
                "shape": dims,
                "data_offsets": [offset, end],
            }
            offset, index[name] = end, file
        with (folder / file).open("wb") as out:
            out.write(head_of(header))
            for name, dims in tensors:
                done += out.write(noise(rng, dims, shape.dtype, norm="norm" in name).data)
                progress(done, total, "writing a random checkpoint")
    return index


def noise(rng: np.random.Generator, dims: tuple[int, ...], dtype: str, *, norm: bool) -> np.ndarray:
    """Words of the dtype, flat: ones for a norm, else random values near 0.02."""
    _, word, mask, base = _NOISE[dtype]
    count = int(np.prod(dims))
    if norm:
        one = {"bfloat16": 0x3F80, "float16": 0x3C00, "float32": 0x3F800000}[dtype]
        return np.full(count, one, dtype=word)
    nbytes = count * np.dtype(word).itemsize
    words = rng.integers(0, 1 << 64, size=-(-nbytes // 8), dtype=np.uint64).view(word)[:count]
    made: np.ndarray = (words & word(mask)) | word(base)
    return made
