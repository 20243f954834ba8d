"""Reading a published config so that nothing in it is overlooked. No torch.

Every key is either read by the family, or known to have no part in inference, or inert (null,
false, 0, empty); any other is an error: an unknown flag may change the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headrace.errors import CheckpointError
from headrace.models.spec import Divided, LinearScaling, Llama3Scaling, Proportional, Rope, Yarn
from headrace.ops.table import Activation

# Of training, of generation, of the files themselves, or repeated elsewhere.
_NO_PART = frozenset(
    [
        "_name_or_path", "architectures", "attention_dropout", "auto_map", "bos_token_id",
        "chunk_size_feed_forward", "compression_config", "dtype", "eos_token_id",
        "hidden_dropout", "id2label",
        "initializer_range", "is_encoder_decoder", "label2id", "mamba_ssm_dtype",
        "max_window_layers", "model_type", "mtp_num_hidden_layers",
        "mtp_use_dedicated_embeddings", "num_nextn_predict_layers", "output_attentions",
        "output_hidden_states", "output_router_logits", "pad_token_id", "pretraining_tp",
        "quantization_config",
        "return_dict", "router_aux_loss_coef", "router_jitter_noise", "tokenizer_class",
        "torch_dtype", "transformers_version", "unsloth_fixed", "unsloth_version", "use_cache",
        "use_mtp",
    ]
)  # fmt: skip
_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}


class Fields:
    """A config (or a table inside it) and the keys read so far."""

    def __init__(self, table: Mapping[str, Any], where: str) -> None:
        self._table = table
        self._where = where
        self._read: set[str] = set()
        self._spelled: Mapping[str, str] = {}

    def respell(self, spelled: Mapping[str, str]) -> None:
        """By the usual name of a key, how this family spells it."""
        self._spelled = {k: v for k, v in spelled.items() if k not in self._table}

    def error(self, key: str, expected: str) -> CheckpointError:
        """For a key whose value cannot be right."""
        key = self._spelled.get(key, key)
        return CheckpointError(
            f"{self._where}: {key} = {self._table.get(key)!r}",
            expected=expected,
            fix="use an unmodified config.json of a supported architecture",
        )

    def get(self, key: str, default: Any = None) -> Any:
        """The raw value, or `default` where the key is absent or null."""
        key = self._spelled.get(key, key)
        self._read.add(key)
        value = self._table.get(key)
        return default if value is None else value

    def skip(self, *keys: str) -> None:
        """Passes over keys that change no result."""
        self._read.update(self._spelled.get(key, key) for key in keys)

    def fixed(self, known: Mapping[str, Any]) -> None:
        """Raises CheckpointError for a key that is there with another value than `known` has: such
        a model is not the one whose arithmetic is implemented.
        """
        for key, value in known.items():
            if self.get(key, value) != value:
                shown = str(value).lower() if isinstance(value, bool) else value
                raise self.error(key, f"{shown}, as published")

    def count(
        self, key: str, default: int | None = None, *, low: int = 1, high: int = 1 << 40
    ) -> int:
        """A whole number from `low` to `high`."""
        value = self.get(key, default)
        if type(value) is not int or not low <= value <= high:
            limit = f" and at most {high}" if high < 1 << 40 else ""
            raise self.error(key, f"a whole number of at least {low}{limit}")
        return value

    def divisor(self, key: str, of: int, default: int | None = None) -> int:
        """A whole number that divides `of`."""
        value = self.count(key, default, high=of)
        if of % value:
            raise self.error(key, f"a divisor of {of}")
        return value

    def counts(self, key: str) -> list[int]:
        """A list of whole numbers, empty where it is absent."""
        value = self.get(key, [])
        if not isinstance(value, list) or any(type(n) is not int or n < 0 for n in value):
            raise self.error(key, "a list of whole numbers")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise self.error(key, "a number above 0")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def words(self, key: str, count: int, allowed: tuple[str, ...]) -> tuple[str, ...] | None:
        """A list of `count` of the allowed words, or None where it is absent."""
        value = self.get(key)
        if value is None:
            return None
        if (
            not isinstance(value, list)
            or len(value) != count
            or any(w not in allowed for w in value)
        ):
            raise self.error(key, f"{count} of " + ", ".join(allowed))
        return tuple(value)

    def activation(self, key: str = "hidden_act") -> Activation:
        value = self.get(key)
        if not isinstance(value, str) or value not in _ACTIVATIONS:
            raise self.error(key, "one of " + ", ".join(_ACTIVATIONS))
        return _ACTIVATIONS[value]

    def table(self, key: str) -> Fields | None:
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, "a table")
        return Fields(value, f"{self._where}, {key}")

    def finish(self, *ignored: str) -> None:
        """Raises CheckpointError if a key with a meaningful value was not read.

        `ignored`: more keys without a part in inference."""
        left = [
            key
            for key, value in self._table.items()
            if value and key not in self._read and key not in _NO_PART and key not in ignored
        ]
        if left:
            raise CheckpointError(
                f"{self._where}: {left[0]} = {self._table[left[0]]!r} is not known here",
                expected="only settings whose arithmetic is implemented",
                fix="check that config.json is the published one",
            )


def read_rope(
    fields: Fields,
    head_dim: int,
    *,
    theta: float,
    partial: float = 1.0,
    known: tuple[str, ...] = (),
) -> Rope:
    """From `rope_parameters`, or the older `rope_theta` with `rope_scaling`. `theta`, `partial`:
    where absent. `known`: more keys of the table, which the family reads.
    """
    table = fields.table("rope_parameters") or fields.table("rope_scaling") or Fields({}, "rope")
    for key in known:
        table.get(key)
    fields.get("rope_scaling")
    theta = fields.number("rope_theta", theta)
    partial = fields.number("partial_rotary_factor", partial)
    return _rope(fields, table, head_dim, theta, partial)


def read_ropes(fields: Fields, kinds: Mapping[str, tuple[int, float, float]]) -> dict[str, Rope]:
    """From a `rope_parameters` with a table for each kind of layer. `kinds`: the width of a head,
    and theta and share where absent.
    """
    tables = fields.table("rope_parameters") or Fields({}, "rope")
    found = {
        kind: _rope(fields, tables.table(kind) or Fields({}, "rope"), *numbers)
        for kind, numbers in kinds.items()
    }
    tables.finish()
    return found


def _rope(fields: Fields, table: Fields, head_dim: int, theta: float, partial: float) -> Rope:
    theta = table.number("rope_theta", theta)
    if theta <= 1:
        at = fields if table.get("rope_theta") is None else table
        raise at.error("rope_theta", "a number above 1")
    share = table.number("partial_rotary_factor", partial)
    kind_key = "rope_type" if table.get("rope_type") else "type"
    table.get("type")
    proportional = table.get(kind_key) == "proportional"
    rotated = head_dim if proportional else int(head_dim * share)
    if rotated < 2 or rotated % 2 or rotated > head_dim or share > 1:
        raise table.error("partial_rotary_factor", f"an even share of {head_dim} channels")
    context = fields.count("max_position_embeddings")
    turning = Proportional(int(share * head_dim // 2)) if proportional else None
    divided = _divided(table, rotated // 2) if table.get(kind_key) == "divided" else None
    scaling = turning or divided or _scaling(table, kind_key, context)
    if table.get(kind_key) == "dynamic":  # with an alpha it is the same for every context
        if head_dim == 2:
            raise table.error(kind_key, "another rotation for heads of 2 channels")
        theta *= table.number("alpha") ** (head_dim / (head_dim - 2))
        for key in ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"):
            table.get(key)
    # With text alone the three position axes of multimodal rope are one, which makes it plain rope.
    table.finish("mrope_section", "mrope_interleaved")
    return Rope(theta, rotated, scaling, fields.flag("rope_interleave", default=False))


def _divided(table: Fields, pairs: int) -> Divided:
    """As a GGUF file has it."""
    found = table.get("divisors")
    good = isinstance(found, list) and all(type(n) in (int, float) and 0 < n < 1e300 for n in found)
    if not good or len(found) != pairs:
        raise table.error("divisors", f"{pairs} numbers above 0")
    return Divided(tuple(map(float, found)))


def _scaling(
    table: Fields, kind_key: str, context: int
) -> LinearScaling | Yarn | Llama3Scaling | None:
    kind = table.get(kind_key, "default")
    if kind == "default" or (kind == "dynamic" and table.get("alpha") is not None):
        return None
    if kind == "linear":
        return LinearScaling(table.number("factor"))
    if kind == "llama3":
        return Llama3Scaling(
            factor=table.number("factor"),
            low_factor=table.number("low_freq_factor"),
            high_factor=table.number("high_freq_factor"),
            original_context=table.count("original_max_position_embeddings", context),
        )
    if kind in ("yarn", "deepseek_yarn"):
        return _yarn(table, context)
    raise table.error(kind_key, "one of default, linear, llama3, yarn, dynamic with alpha")


def _yarn(table: Fields, context: int) -> Yarn:
    original = table.count("original_max_position_embeddings", context)
    factor = table.number("factor", context / original)
    if table.get("attention_factor") is not None:
        attention = table.number("attention_factor")
    elif table.get("mscale") and table.get("mscale_all_dim"):
        attention = yarn_mscale(factor, table.number("mscale"))
        attention /= yarn_mscale(factor, table.number("mscale_all_dim"))
    else:
        attention = yarn_mscale(factor, 1.0)
    return Yarn(
        factor=factor,
        original_context=original,
        beta_fast=table.number("beta_fast", 32.0),
        beta_slow=table.number("beta_slow", 1.0),
        attention_factor=attention,
        truncate=table.flag("truncate", default=True),
    )


def yarn_mscale(factor: float, mscale: float) -> float:
    """arXiv 2309.00071, equation 22."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
