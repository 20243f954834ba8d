"""The sampling fields that all dialects share, over the checkpoint's own defaults."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.api.fields import Fields, shown
from headrace.engine.request import Sampling
from headrace.errors import CheckpointError
from headrace.files import read_text

MAX_TOKENS = 1 << 30
MAX_STOPS = 64
MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20


def checkpoint_defaults(folder: Path) -> Sampling:
    """Sampling as `generation_config.json` proposes it; the OpenAI defaults where it is silent.

    An explicit `do_sample: false` means greedy. Raises CheckpointError when the file is not JSON.
    """
    path = folder / "generation_config.json"
    if not path.is_file():
        return Sampling()
    try:
        config = json.loads(read_text(path))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}", expected="JSON") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds no object", expected="a JSON object")
    return proposed(config)


def proposed(config: Mapping[str, Any]) -> Sampling:
    """Sampling by the keys of a generation_config.json."""
    if config.get("do_sample") is False:
        return Sampling(temperature=0.0)
    known = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    values: dict[str, Any] = {
        name: config[name]
        for name in known
        if isinstance(config.get(name), int | float) and not isinstance(config[name], bool)
    }
    return dataclasses.replace(Sampling(), **values)


def read_sampling(body: Fields, defaults: Sampling) -> Sampling:
    """Takes every sampling field except logprobs and max_tokens, whose shape differs by dialect."""
    changes: dict[str, Any] = {
        "temperature": body.number("temperature", 0, 2),
        "top_p": body.number("top_p", 0, 1),
        "min_p": body.number("min_p", 0, 1),
        "top_k": body.whole("top_k", -1, 1 << 30),
        "repetition_penalty": body.number("repetition_penalty", 0.01, 100),
        "presence_penalty": body.number("presence_penalty", -2, 2),
        "frequency_penalty": body.number("frequency_penalty", -2, 2),
        "seed": body.whole("seed", -(1 << 63), (1 << 63) - 1),
        "min_tokens": body.whole("min_tokens", 0, MAX_TOKENS),
        "ignore_eos": body.flag("ignore_eos"),
        "stop_ids": _stop_ids(body),
        "logit_bias": _logit_bias(body),
    }
    if changes["top_k"] == -1:
        changes["top_k"] = 0
    if changes["top_p"] == 0:
        changes["top_p"] = 1e-9  # only the best token is left
    if changes["seed"] is not None:
        changes["seed"] &= (1 << 63) - 1
    return dataclasses.replace(defaults, **{k: v for k, v in changes.items() if v is not None})


def _stop_ids(body: Fields) -> frozenset[int] | None:
    values = body.items("stop_token_ids")
    if values is None:
        return None
    if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values):
        raise body.fault("stop_token_ids", f"found {shown(values)}", expected="token ids")
    return frozenset(values)


def _logit_bias(body: Fields) -> dict[int, float] | None:
    values = body.mapping("logit_bias")
    if values is None:
        return None
    bias = {}
    for key, value in values.items():
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not key.isascii() or not key.isdigit() or not good or not -100 <= value <= 100:
            raise body.fault(
                "logit_bias",
                f"found {shown(key)}: {shown(value)}",
                expected="token ids with values from -100 to 100",
            )
        bias[int(key)] = float(value)
    return bias


def read_stop(body: Fields) -> tuple[str, ...]:
    """`stop`: one string or an array of them, none empty."""
    value = body.take("stop")
    stops = [value] if isinstance(value, str) else [] if value is None else value
    good = isinstance(stops, list) and all(isinstance(s, str) and s for s in stops)
    if not good or len(stops) > MAX_STOPS:
        raise body.fault(
            "stop",
            f"found {shown(value)}",
            expected=f"a string or at most {MAX_STOPS} strings, none empty",
        )
    return tuple(stops)
