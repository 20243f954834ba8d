"""From the words in config.json to a family. No torch: reading weights starts before it loads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError
from headrace.models.families import (
    afmoe,
    axk1,
    balanced,
    cohere2_moe,
    deepseek,
    deepseek_v2,
    dots1,
    ernie4_5_moe,
    exaone_moe,
    gemma4,
    gemma4_names,
    glm4_moe,
    glm4_moe_lite,
    gpt_oss,
    granitemoe,
    granitemoehybrid,
    hunyuan_v1_moe,
    hy_v3,
    kimi_linear,
    laguna,
    lfm2_moe,
    llama4,
    mellum,
    mimo_v2_flash,
    minimax_m2,
    mistral4,
    mixtral,
    nemotron_h,
    olmoe,
    qwen2_moe,
    qwen3_5_moe,
    qwen3_moe,
    qwen3_next,
    sarvam_mla,
    sarvam_moe,
    solar_open,
)
from headrace.models.families.gguf import GGUF_NAMES
from headrace.models.fields import Fields
from headrace.models.spec import ModelSpec
from headrace.weights.checkpoint import (
    GGUF,
    MAX_CONFIG_BYTES,
    PUBLISHED,
    Checkpoint,
    read_json,
)
from headrace.weights.gguf_config import ARCHITECTURES
from headrace.weights.names import NameMap


@dataclass(frozen=True, slots=True)
class Family:
    """How one architecture's config and tensor names are read; `names`: by dialect."""

    spec_from: Callable[[Fields], ModelSpec]
    names: Mapping[str, NameMap]


def _family(
    spec_from: Callable[[Fields], ModelSpec], published: NameMap, gguf: NameMap | None = None
) -> Family:
    dialects = {PUBLISHED: published} | ({} if gguf is None else {GGUF: gguf})
    return Family(spec_from, dialects)


FAMILIES: Mapping[str, Family] = {
    "afmoe": _family(afmoe.spec_from, afmoe.NAMES),
    "axk1": _family(axk1.spec_from, axk1.NAMES),
    "cohere2_moe": _family(cohere2_moe.spec_from, cohere2_moe.NAMES),
    "deepseek_v2": _family(deepseek_v2.spec_from, deepseek.NAMES, deepseek.GGUF),
    "deepseek_v3": _family(deepseek.spec_from, deepseek.NAMES, deepseek.GGUF),
    "dots1": _family(dots1.spec_from, balanced.NAMES, GGUF_NAMES),
    "ernie4_5_moe": _family(ernie4_5_moe.spec_from, ernie4_5_moe.NAMES),
    "exaone_moe": _family(exaone_moe.spec_from, exaone_moe.NAMES),
    "gemma4": _family(gemma4.spec_from, gemma4_names.NAMES),
    "gemma4_text": _family(gemma4.spec_from, gemma4_names.NAMES, gemma4_names.GGUF_NAMES),
    "glm4_moe": _family(glm4_moe.spec_from, balanced.NAMES, GGUF_NAMES),
    "glm4_moe_lite": _family(glm4_moe_lite.spec_from, deepseek.NAMES),
    "gpt_oss": _family(gpt_oss.spec_from, gpt_oss.NAMES, gpt_oss.GGUF_NAMES),
    "granitemoe": _family(granitemoe.spec_from, granitemoe.NAMES),
    "granitemoehybrid": _family(
        granitemoehybrid.spec_from, granitemoehybrid.NAMES, granitemoehybrid.GGUF_NAMES
    ),
    "granitemoeshared": _family(granitemoe.spec_from, granitemoe.NAMES),
    "hunyuan_v1_moe": _family(hunyuan_v1_moe.spec_from, hunyuan_v1_moe.NAMES),
    "hy_v3": _family(hy_v3.spec_from, hy_v3.NAMES),
    "kimi_k2": _family(deepseek.spec_from, deepseek.NAMES),
    "kimi_k25": _family(deepseek.spec_from, deepseek.NAMES),
    "kimi_linear": _family(kimi_linear.spec_from, kimi_linear.NAMES),
    "laguna": _family(laguna.spec_from, laguna.NAMES),
    "lfm2_moe": _family(lfm2_moe.spec_from, lfm2_moe.NAMES, lfm2_moe.GGUF_NAMES),
    "llama4": _family(llama4.spec_from, llama4.NAMES),
    "llama4_text": _family(llama4.spec_from, llama4.NAMES, llama4.GGUF),
    "mellum": _family(mellum.spec_from, mellum.NAMES),
    "mimo_v2_flash": _family(mimo_v2_flash.spec_from, mimo_v2_flash.NAMES),
    "minimax_m2": _family(minimax_m2.spec_from, minimax_m2.NAMES, GGUF_NAMES),
    "mistral4": _family(mistral4.spec_from, mistral4.NAMES),
    "mixtral": _family(mixtral.spec_from, mixtral.NAMES, mixtral.GGUF_NAMES),
    "nemotron_h": _family(nemotron_h.spec_from, nemotron_h.NAMES, nemotron_h.GGUF_NAMES),
    "olmoe": _family(olmoe.spec_from, olmoe.NAMES, GGUF_NAMES),
    "qwen2_moe": _family(qwen2_moe.spec_from, qwen2_moe.NAMES, GGUF_NAMES),
    "qwen3_5_moe": _family(qwen3_5_moe.spec_from, qwen3_5_moe.NAMES, qwen3_5_moe.GGUF_NAMES),
    "qwen3_5_moe_text": _family(qwen3_5_moe.spec_from, qwen3_5_moe.NAMES, qwen3_5_moe.GGUF_NAMES),
    "qwen3_moe": _family(qwen3_moe.spec_from, qwen3_moe.NAMES, GGUF_NAMES),
    "qwen3_next": _family(qwen3_next.spec_from, qwen3_next.NAMES, qwen3_next.GGUF_NAMES),
    "sarvam_mla": _family(sarvam_mla.spec_from, deepseek.NAMES),
    "sarvam_moe": _family(sarvam_moe.spec_from, sarvam_moe.NAMES),
    "solar_open": _family(solar_open.spec_from, balanced.NAMES),
}


_TEXT = "_text"  # the language model within one whose name is served, too


def family_of(checkpoint: Checkpoint) -> tuple[Family, ModelSpec]:
    """Raises CheckpointError for an architecture that is not supported, naming it and those that
    are.
    """
    config, packed = checkpoint.config, checkpoint.dialect == GGUF
    where = str(checkpoint.path if packed else checkpoint.path / "config.json")
    family = _named(config, where, ARCHITECTURES if packed else FAMILIES)
    fields = Fields(_text_part(config), where)
    spec = family.spec_from(fields)
    fields.finish()
    return family, spec


def check_architecture(folder: Path) -> None:
    """Raises CheckpointError where the folder's config.json, if it has one, names an architecture
    that is not supported: no weights need be there.
    """
    file = folder / "config.json"
    if file.is_file():
        _named(read_json(file, MAX_CONFIG_BYTES), str(file), FAMILIES)


def _named(config: Mapping[str, Any], where: str, served: Iterable[str]) -> Family:
    word = _word(config)
    if isinstance(word, str) and word in FAMILIES:
        return FAMILIES[word]
    shown = f"architecture {word!r}" if isinstance(word, str) else f"model_type = {word!r}"
    raise CheckpointError(
        f"{where}: {shown} is not supported",
        expected="one of " + ", ".join(sorted(n for n in served if not n.endswith(_TEXT))),
        fix="choose a model of a supported architecture",
    )


def _word(config: Mapping[str, Any]) -> Any:
    """The architecture: of the whole, or of its language model where that alone is known."""
    word, text = config.get("model_type"), config.get("text_config")
    within = text.get("model_type") if isinstance(text, dict) else None
    known = [name for name in (word, within) if isinstance(name, str) and name in FAMILIES]
    return known[0] if known else word


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's own config: multimodal releases wrap it."""
    text = config.get("text_config")
    if not isinstance(text, dict):
        return config
    outer = {k: config[k] for k in ("tie_word_embeddings", "quantization_config") if k in config}
    return {**text, **outer}
