"""Tokenizer and chat template out of the metadata of a GGUF file, as plain data.

What comes out is what the model's own tokenizer.json says: the file holds the vocabulary and the
name of its pre-tokenizer, whose pattern is looked up here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.chat.tokenizer import Tokenizer, TokenizerFiles
from headrace.errors import CheckpointError

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type

_ENGLISH = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s+(?!\S)|\s+"
_LATER = rf"\s*[\r\n]+|{_SPACES}"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_LLAMA3 = (
    rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LATER}"
)
_QWEN2 = _LLAMA3.replace("{1,3}", "")
_QWEN35 = (
    rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LATER}"
)
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+"
_CASED_TOO = rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"
_GPT4O = (
    rf"{_CASED}{_ENGLISH}?|{_CASED_TOO}{_ENGLISH}?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LATER}"
)
_TEKKEN = rf"{_CASED}|{_CASED_TOO}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LATER}"

_CASES, _MARKS = r"\p{Lu}\p{Ll}\p{Lt}", "!-/:-~！-／：-～‘-‟　-。"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LATER}"
)


@dataclass(frozen=True, slots=True)
class Pretokenizer:
    """How text is cut before pairs are merged. No pattern: GPT-2's own."""

    pattern: str = ""
    digits: bool = False  # each digit by itself first
    before: tuple[str, ...] = ()  # patterns that cut before it, one after another
    nfc: bool = False
    whole_words: bool = False  # a word that is in the vocabulary is not merged up to
    bos: bool = False  # where the file does not say


_PLAIN, _DIGITS = Pretokenizer(), Pretokenizer(digits=True)
_LLAMA = Pretokenizer(_LLAMA3, whole_words=True, bos=True)
PRETOKENIZERS: Mapping[str, Pretokenizer] = {
    "gpt-2": _PLAIN,
    "olmo": Pretokenizer(nfc=True),
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "llama-bpe": _LLAMA,
    "llama3": _LLAMA,
    "llama-v3": _LLAMA,
    "lfm2": _LLAMA,
    "pixtral": _LLAMA,  # Nemotron's, too
    "dbrx": Pretokenizer(_LLAMA3),
    "chatglm-bpe": Pretokenizer(_LLAMA3),
    "glm4": Pretokenizer(_LLAMA3, whole_words=True),
    "qwen2": Pretokenizer(_QWEN2, nfc=True),
    "qwen35": Pretokenizer(_QWEN35, nfc=True),
    "deepseek-llm": Pretokenizer(
        "[一-龥ࠀ-一가-퟿]+",
        digits=True,
        before=(r"[\r\n]", rf"\s?[{_CASES}]+", rf"\s?[{_MARKS}]+", r"\s+$"),
    ),
    "deepseek-v3": Pretokenizer(_DEEPSEEK3, before=(r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+")),
    "gpt-4o": Pretokenizer(_GPT4O, whole_words=True),
    "llama4": Pretokenizer(_GPT4O, whole_words=True),
    "minimax-m2": Pretokenizer(_GPT4O),
    "tekken": Pretokenizer(_TEKKEN, whole_words=True, bos=True),
}
Metadata = Mapping[str, Any]
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def tokenizer_of(metadata: Metadata, config: Mapping[str, Any], name: str) -> Tokenizer:
    """The file's tokenizer. `config`: the checkpoint's, for the size of its vocabulary and the
    tokens that end an answer; `name`: the file, for errors.

    Raises CheckpointError where it holds none, or one of a kind that is not known.
    """
    text = json.dumps(tokenizer_json(metadata, name))
    files = TokenizerFiles(config=_settings(metadata, name), model=dict(config))
    return Tokenizer.from_json(text, files, name=name)


def side_files(metadata: Metadata, name: str) -> dict[str, bytes]:
    """The same as the files that a published folder has, by name. Raises CheckpointError."""
    templates = templates_of(metadata)
    settings = _settings(metadata, name)
    if templates:
        settings["chat_template"] = [{"name": n, "template": t} for n, t in templates.items()]
    made = {
        "tokenizer.json": tokenizer_json(metadata, name),
        "tokenizer_config.json": settings,
        "generation_config.json": sampling_of(metadata),
    }
    return {file: (json.dumps(said) + "\n").encode() for file, said in made.items()}


def sampling_of(metadata: Metadata) -> dict[str, float]:
    """What `general.sampling` keys propose, by the names of generation_config.json."""
    found: dict[str, float] = {}
    for key, name in _SAMPLING.items():
        value = metadata.get(f"general.sampling.{key}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = value
    return found


def _settings(metadata: Metadata, name: str) -> dict[str, Any]:
    tokens = _tokens(metadata, name)
    ids = {"bos": 1, "eos": 2, "unknown": 0} if _kind(metadata, name) == "llama" else {}
    settings: dict[str, Any] = {"add_bos_token": _adds_bos(metadata, name)}
    for kind, word in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")):
        token = metadata.get(f"tokenizer.ggml.{kind}_token_id", ids.get(kind))
        if type(token) is int and 0 <= token < len(tokens):
            settings[f"{word}_token"] = tokens[token]
    return settings


def templates_of(metadata: Metadata) -> dict[str, str]:
    """The chat templates by name, as `default` and `tool_use`."""
    found: dict[str, str] = {}
    stem = "tokenizer.chat_template"
    for key, value in metadata.items():
        if isinstance(value, str) and (key == stem or key.startswith(f"{stem}.")):
            found[key.removeprefix(stem).removeprefix(".") or "default"] = value
    return found


def tokenizer_json(metadata: Metadata, name: str) -> dict[str, Any]:
    """The content of tokenizer.json. Raises CheckpointError."""
    tokens = _tokens(metadata, name)
    kinds = _numbers(metadata, "token_type", len(tokens), name) or [_NORMAL] * len(tokens)
    family = _kind(metadata, name)
    vocab: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if kinds[i] != _UNUSED:
            vocab.setdefault(token, i)
    special = (_CONTROL, _UNKNOWN)
    added = [
        {
            "id": i,
            "content": tokens[i],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind in special,
        }
        for i, kind in enumerate(kinds)
        if (kind in special or kind == _USER) and tokens[i] and vocab.get(tokens[i]) == i
    ]
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    if family == "llama":
        return whole | _pieces(metadata, tokens, kinds, vocab, name)
    if family == "gemma4":
        return whole | _spaced(metadata, tokens, vocab, _merges(metadata, name), prefix=False)
    return whole | _byte_level(metadata, vocab, name)


def _byte_level(metadata: Metadata, vocab: Mapping[str, int], name: str) -> dict[str, Any]:
    pre = _pretokenizer(metadata, name)
    merges = _merges(metadata, name)
    plain = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    steps: list[dict[str, Any]] = []
    if pre.digits:
        steps.append({"type": "Digits", "individual_digits": True})
    for pattern in (*pre.before, pre.pattern):
        cut = {"pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        steps += [{"type": "Split", **cut}] if pattern else []
    steps.append({**plain, "use_regex": not pre.pattern})
    return {
        "normalizer": {"type": "NFC"} if pre.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": {**plain, "use_regex": True},
        "model": _bpe(vocab, merges, ignore_merges=pre.whole_words),
    }


def _merges(metadata: Metadata, name: str) -> list[list[str]]:
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list) or not all(isinstance(m, str) for m in merges):
        raise _broken(name, "tokenizer.ggml.merges is missing", "a list of texts")
    return [_pair(m, name) for m in merges]


def _pieces(
    metadata: Metadata,
    tokens: Sequence[str],
    kinds: Sequence[int],
    vocab: Mapping[str, int],
    name: str,
) -> dict[str, Any]:
    """A SentencePiece vocabulary: pairs are merged by the score of what they become."""
    scores = _numbers(metadata, "scores", len(tokens), name)
    if scores is None:
        raise _broken(name, "tokenizer.ggml.scores is missing", "a number for each token")
    ranked: list[tuple[float, int, str, str]] = []
    for token, i in vocab.items():
        if kinds[i] != _NORMAL:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                ranked.append((-scores[i], -cut, left, right))
    ranked.sort()
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True) is not False
    merges = [[left, right] for _, _, left, right in ranked]
    return _spaced(metadata, tokens, vocab, merges, prefix=prefix)


def _spaced(
    metadata: Metadata,
    tokens: Sequence[str],
    vocab: Mapping[str, int],
    merges: list[list[str]],
    *,
    prefix: bool,
) -> dict[str, Any]:
    """Pairs are merged over whole texts, in which blanks have a sign; what is unknown is bytes."""
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    known = type(unknown) is int and 0 <= unknown < len(tokens)
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    normal = [{"type": "Prepend", "prepend": "▁"}, space] if prefix else [space]
    decode = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if prefix:
        decode.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    model = _bpe(vocab, merges, ignore_merges=False)
    return {
        "normalizer": {"type": "Sequence", "normalizers": normal},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decode},
        "model": model
        | {
            "unk_token": tokens[unknown] if known else None,
            "fuse_unk": True,
            "byte_fallback": True,
        },
    }


def _bpe(
    vocab: Mapping[str, int], merges: list[list[str]], *, ignore_merges: bool
) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": ignore_merges,
        "vocab": vocab,
        "merges": merges,
    }


def _pair(merge: str, name: str) -> list[str]:
    cut = merge.find(" ", 1)
    if cut < 0:
        raise _broken(name, f"the merge {merge!r}", "two tokens with a blank between them")
    return [merge[:cut], merge[cut + 1 :]]


def _kind(metadata: Metadata, name: str) -> str:
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama", "gemma4"):
        raise _broken(name, f"tokenizer.ggml.model = {kind!r}", "gpt2, llama or gemma4")
    return str(kind)


def _pretokenizer(metadata: Metadata, name: str) -> Pretokenizer:
    pre = metadata.get("tokenizer.ggml.pre")
    if not isinstance(pre, str) or pre not in PRETOKENIZERS:
        known = ", ".join(PRETOKENIZERS)
        raise _broken(name, f"tokenizer.ggml.pre = {pre!r}", f"one of {known}")
    return PRETOKENIZERS[pre]


def _adds_bos(metadata: Metadata, name: str) -> bool:
    said = metadata.get("tokenizer.ggml.add_bos_token")
    if isinstance(said, bool):
        return said
    return _kind(metadata, name) != "gpt2" or _pretokenizer(metadata, name).bos


def _tokens(metadata: Metadata, name: str) -> list[str]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(t, str) for t in tokens):
        raise _broken(name, "tokenizer.ggml.tokens is missing", "the texts of all tokens")
    return tokens


def _numbers(metadata: Metadata, key: str, count: int, name: str) -> list[Any] | None:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if values is None:
        return None
    good = isinstance(values, list) and all(type(v) in (int, float) for v in values)
    if not good or len(values) != count:
        raise _broken(name, f"tokenizer.ggml.{key} does not fit the tokens", f"{count} numbers")
    return list(values)


def _broken(name: str, found: str, expected: str) -> CheckpointError:
    return CheckpointError(
        f"{name}: {found}", expected=expected, fix="use a newer conversion of the model"
    )
