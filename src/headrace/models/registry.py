"""From the words in config.json to a family. No torch: reading weights starts before it loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import CheckpointError
from headrace.models.families import gpt_oss, mixtral, olmoe, qwen3_5_moe, qwen3_moe
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec
from headrace.weights.checkpoint import GGUF, PUBLISHED, Checkpoint
from headrace.weights.names import NameMap


@dataclass(frozen=True, slots=True)
class Family:
    """How one architecture's config and tensor names are read; `names`: by dialect."""

    spec_from: Callable[[Fields], ModelSpec]
    names: Mapping[str, NameMap]


def _family(spec_from: Callable[[Fields], ModelSpec], published: NameMap, gguf: NameMap) -> Family:
    return Family(spec_from, {PUBLISHED: published, GGUF: gguf})


FAMILIES: Mapping[str, Family] = {
    "gpt_oss": _family(gpt_oss.spec_from, gpt_oss.NAMES, gpt_oss.GGUF_NAMES),
    "mixtral": _family(mixtral.spec_from, mixtral.NAMES, mixtral.GGUF_NAMES),
    "olmoe": _family(olmoe.spec_from, olmoe.NAMES, olmoe.GGUF_NAMES),
    "qwen3_5_moe": _family(qwen3_5_moe.spec_from, qwen3_5_moe.NAMES, qwen3_5_moe.GGUF_NAMES),
    "qwen3_5_moe_text": _family(qwen3_5_moe.spec_from, qwen3_5_moe.NAMES, qwen3_5_moe.GGUF_NAMES),
    "qwen3_moe": _family(qwen3_moe.spec_from, qwen3_moe.NAMES, qwen3_moe.GGUF_NAMES),
}


def family_of(checkpoint: Checkpoint) -> tuple[Family, ModelSpec]:
    """Raises CheckpointError for an architecture that is not supported, naming it and those that
    are.
    """
    config = checkpoint.config
    file = checkpoint.path / "config.json" if checkpoint.dialect != GGUF else checkpoint.path
    where = str(file)
    word = config.get("model_type")
    if not isinstance(word, str) or word not in FAMILIES:
        shown = word if isinstance(word, str) else config.get("architectures")
        raise CheckpointError(
            f"{where}: architecture {shown!r} is not supported",
            expected="one of " + ", ".join(sorted(FAMILIES)),
            fix="choose a model of a supported architecture",
        )
    family = FAMILIES[word]
    fields = Fields(_text_part(config), where)
    spec = family.spec_from(fields)
    fields.finish()
    return family, spec


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's own config: multimodal releases wrap it."""
    text = config.get("text_config")
    if not isinstance(text, dict):
        return config
    outer = {k: config[k] for k in ("tie_word_embeddings", "quantization_config") if k in config}
    return {**text, **outer}
