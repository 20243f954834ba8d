"""The metadata of one architecture in a GGUF file, read so that nothing in it is overlooked.
No torch.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

from headrace.errors import CheckpointError
from headrace.weights.checkpoint import StoredTensor

_NO_PART = frozenset(
    ["vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "rope.dimension_sections",
     "expert_shared_count", "nextn_predict_layers", "pooling_type"]
)  # fmt: skip
Config = dict[str, Any]
Tensors = Mapping[str, StoredTensor]
SIGMOID = 2  # of expert_gating_func
_DIVISORS = "rope_freqs.weight"
_MOST_PAIRS = 1 << 14


class Keys:
    """The metadata of one architecture, and the keys read so far."""

    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        self._metadata, self._where = metadata, where
        named = metadata.get("general.architecture")
        if not isinstance(named, str):
            raise CheckpointError(
                f"{where}: general.architecture = {named!r}",
                expected="the name of an architecture",
                fix="use a GGUF file that holds a model",
            )
        self.architecture = named
        self._prefix = f"{self.architecture}."
        self._read: set[str] = set()

    def error(self, key: str, expected: str) -> CheckpointError:
        value = self._metadata.get(self._prefix + key)
        return CheckpointError(
            f"{self._where}: {self._prefix}{key} = {value!r}",
            expected=expected,
            fix="use an unmodified file of a supported architecture",
        )

    def get(self, key: str, default: Any = None) -> Any:
        self._read.add(key)
        return self._metadata.get(self._prefix + key, default)

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number above 0; a list of one value for all layers counts as that value."""
        value = self.get(key, default)
        if isinstance(value, list) and value:
            # 0: a layer without attention; what is no number is below 1.
            used = {n if type(n) is int else -1 for n in value if n != 0}
            value = used.pop() if len(used) == 1 else None
        if type(value) is not int or not 0 < value < 1 << 40:
            raise self.error(key, "one whole number above 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """As short as the float32 that was stored allows."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, "a number")
        if not math.isfinite(value):
            raise self.error(key, "a finite number")
        return next(
            (
                short
                for digits in range(6, 10)
                if (short := float(f"{value:.{digits}g}")) == value or _single(short) == value
            ),
            float(value),
        )

    def finish(self) -> None:
        """Raises CheckpointError if a key with a meaningful value was not read."""
        for full, value in self._metadata.items():
            key = full.removeprefix(self._prefix)
            if key != full and value and key not in self._read and key not in _NO_PART:
                raise CheckpointError(
                    f"{self._where}: {full} = {str(value)[:60]} is not known here",
                    expected="only settings whose arithmetic is implemented",
                    fix="use a file made from the published model",
                )


def _single(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.inf


def normalised(keys: Keys, *, default: bool) -> bool:
    value = keys.get("expert_weights_norm", default)
    if not isinstance(value, bool):
        raise keys.error("expert_weights_norm", "true or false")
    return value


def balanced(keys: Keys) -> Config:
    """Sigmoid scores with a bias for the choice alone, as DeepSeek-V3 has them."""
    if keys.get("expert_gating_func", SIGMOID) != SIGMOID:
        raise keys.error("expert_gating_func", f"{SIGMOID}, sigmoid scores")
    return {
        "n_routed_experts": keys.count("expert_count"),
        "moe_intermediate_size": keys.count("expert_feed_forward_length"),
        "n_shared_experts": keys.get("expert_shared_count", 0),
        "n_group": keys.count("expert_group_count", 1),
        "topk_group": keys.count("expert_group_used_count", 1),
        "routed_scaling_factor": keys.number("expert_weights_scale", 1.0),
    }


def dense_first(keys: Keys) -> Config:
    return {
        "first_k_dense_replace": keys.get("leading_dense_block_count", 0),
        "intermediate_size": keys.count("feed_forward_length"),
    }


def divisors_of(tensors: Tensors, pairs: int) -> list[float] | None:
    """What the frequency of each pair is divided by, read from the file; None where it has none.

    Raises CheckpointError.
    """
    stored = tensors.get(_DIVISORS)
    if stored is None:
        return None
    if stored.shape == (pairs,) and stored.tag == "F32" and pairs <= _MOST_PAIRS:
        with stored.file.open("rb") as file:
            file.seek(stored.offset)
            raw = file.read(4 * pairs)
        found = struct.unpack(f"<{len(raw) // 4}f", raw[: len(raw) // 4 * 4])
        if len(found) == pairs and all(math.isfinite(n) and n > 0 for n in found):
            return [*found]
    raise CheckpointError(
        f"{stored.file}: tensor {_DIVISORS!r} is not that of heads of {2 * pairs} channels",
        expected=f"{pairs} float32 numbers above 0",
        fix="use a newer conversion of the model",
    )
