"""Text to token ids and back, from the files of a checkpoint.

Every id has fixed bytes (`token_bytes`), and all decoding is their concatenation read as UTF-8:
the same table serves `decode`, the incremental detokeniser and the grammars, so they cannot differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from headrace.chat.token_bytes import TokenDecoder
from headrace.errors import CheckpointError
from headrace.files import read_text

MOST_TOKENIZER_BYTES = 512 << 20
Json = Mapping[str, Any]


def read_json(path: Path) -> Json | None:
    """The JSON object in `path`, or None if there is no such file.

    Raises CheckpointError when it cannot be read or does not hold an object.
    """
    try:
        value = json.loads(read_text(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}", expected="a JSON file", fix="fetch the file again"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{path} holds a JSON {type(value).__name__}",
            expected="an object",
            fix="fetch the file again",
        )
    return value


@dataclass(frozen=True)
class TokenizerFiles:
    """What the small files beside `tokenizer.json` say; every part may be absent."""

    config: Json = field(default_factory=dict)  # tokenizer_config.json
    special: Json = field(default_factory=dict)  # special_tokens_map.json
    generation: Json = field(default_factory=dict)  # generation_config.json
    model: Json = field(default_factory=dict)  # config.json

    @classmethod
    def read(cls, folder: Path) -> TokenizerFiles:
        return cls(
            config=read_json(folder / "tokenizer_config.json") or {},
            special=read_json(folder / "special_tokens_map.json") or {},
            generation=read_json(folder / "generation_config.json") or {},
            model=read_json(folder / "config.json") or {},
        )

    def special_text(self, name: str) -> str | None:
        """The text of `bos_token`, `eos_token`, ...: a string or an object with `content`."""
        for source in (self.config, self.special):
            value = source.get(name)
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str):
                return value
        return None

    @property
    def named(self) -> dict[str, str]:
        """The special tokens a chat template may name, as `bos_token` -> text."""
        names = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
        return {name: text for name in names if (text := self.special_text(name)) is not None}

    def eos_ids(self) -> set[int]:
        """From the generation config or, where that is silent, the model's."""
        text = self.model.get("text_config")
        nested = text.get("eos_token_id") if isinstance(text, dict) else None
        for value in (self.generation.get("eos_token_id"), self.model.get("eos_token_id"), nested):
            ids = value if isinstance(value, list) else [value]
            found = {i for i in ids if isinstance(i, int) and i >= 0}
            if found:
                return found
        return set()

    def model_vocab_size(self) -> int:
        """Rows of the embedding as config.json states them, 0 if it does not."""
        text = self.model.get("text_config")
        nested = text.get("vocab_size") if isinstance(text, dict) else None
        for value in (self.model.get("vocab_size"), nested):
            if isinstance(value, int):
                return value
        return 0


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A checkpoint's vocabulary. Immutable and safe to share between threads.

    `vocab_size` counts the ids the *model* has: it may be larger than the tokenizer's own
    vocabulary, whose missing ids have no bytes. `eos_ids` end an answer. `bos_id` goes in front of
    a plain prompt if the checkpoint asks for that (None otherwise); chat templates write their own.
    """

    backend: tokenizers.Tokenizer
    files: TokenizerFiles
    vocab_size: int
    eos_ids: frozenset[int]
    bos_id: int | None
    special_ids: frozenset[int]  # control tokens: never part of a text
    added: Mapping[str, int]  # every token matched as a whole before the text is split

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read `tokenizer.json` and its companions.

        Raises CheckpointError if there is none, or if a file is corrupt. The caller decides whether
        a checkpoint without a tokenizer can be served by token ids alone.
        """
        path = folder / "tokenizer.json"
        try:
            text = read_text(path, MOST_TOKENIZER_BYTES)
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{folder} has no tokenizer.json",
                expected="the tokenizer of the checkpoint",
                fix="fetch tokenizer.json and tokenizer_config.json",
            ) from error
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path} cannot be read: {error}",
                expected="UTF-8 text",
                fix="fetch the file again",
            ) from error
        return cls.from_json(text, TokenizerFiles.read(folder), name=str(path))

    @classmethod
    def from_json(
        cls, text: str, files: TokenizerFiles | None = None, *, name: str = "tokenizer.json"
    ) -> Tokenizer:
        """From the text of `tokenizer.json`; raises CheckpointError with `name` if it is broken."""
        files = files or TokenizerFiles()
        backend = _load_backend(text, name)
        backend.no_padding()
        backend.no_truncation()
        _add_configured_tokens(backend, files.config)
        known = backend.get_added_tokens_decoder()
        added = {token.content: i for i, token in known.items()}
        special = {i for i, token in known.items() if token.special}
        eos = files.eos_ids()
        eos_text = files.special_text("eos_token")
        eos_id = backend.token_to_id(eos_text) if eos_text is not None else None
        if eos_id is not None:
            eos.add(eos_id)
        size = max(backend.get_vocab_size(with_added_tokens=True), max(known, default=-1) + 1)
        vocab_size = files.model_vocab_size() or size
        eos = {i for i in eos if i < vocab_size}
        return cls(
            backend=backend,
            files=files,
            vocab_size=vocab_size,
            eos_ids=frozenset(eos),
            bos_id=_bos_id(backend, files),
            special_ids=frozenset(special | eos),
            added=added,
        )

    def ending_at(self, ids: Iterable[int]) -> Tokenizer:
        """The same tokenizer with more ids that end an answer."""
        more = self.eos_ids | frozenset(ids)
        return replace(self, eos_ids=more, special_ids=self.special_ids | more)

    def encode(self, text: str, *, special: bool, bos: bool = False) -> list[int]:
        """Token ids of `text`.

        `special` tells whether the text of a control token becomes that token (a rendered prompt)
        or stays ordinary text (what a user wrote). `bos` puts `bos_id` in front where there is one.
        Text must be valid Unicode: a lone surrogate raises UnicodeEncodeError.
        """
        backend = self.backend if special else self._plain_backend
        text.encode("utf-8")
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        if bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def decode(
        self, ids: Iterable[int], *, skip_special: bool = True, after_text: bool = False
    ) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD, ids without bytes nothing.

        `after_text` says that the ids go on from other text: vocabularies that put a blank before
        the first word keep it then.
        """
        skip = self.special_ids if skip_special else frozenset()
        text = b"".join(self.token_bytes(i) for i in ids if i not in skip).decode(
            "utf-8", "replace"
        )
        lead = 0 if after_text else self.decoder.strip_lead
        return text[min(lead, len(text) - len(text.lstrip(" "))) :]

    def token_bytes(self, token: int) -> bytes:
        """The bytes one id stands for; empty for an id outside the tokenizer's vocabulary."""
        known = self._known_bytes.get(token)
        if known is None:
            known = self._known_bytes[token] = self._spell(token)
        return known

    def _spell(self, token: int) -> bytes:
        text = self.backend.id_to_token(token) if 0 <= token < self.vocab_size else None
        if text is None:
            return b""
        return text.encode("utf-8") if text in self.added else self.decoder.to_bytes(text)

    def id_of(self, text: str) -> int | None:
        """The id of a token matched as a whole (`<think>`, `<|im_end|>`), None if there is none."""
        token = self.added.get(text)
        return token if token is not None and token < self.vocab_size else None

    @cached_property
    def decoder(self) -> TokenDecoder:
        decoder = self.backend.decoder
        description = None if decoder is None else json.loads(decoder.__getstate__())
        return TokenDecoder.from_description(description)

    @cached_property
    def _known_bytes(self) -> dict[int, bytes]:
        # Filled as tokens come: the whole table costs half a second, which no first answer waits.
        return {}

    @cached_property
    def byte_table(self) -> tuple[bytes, ...]:
        """`token_bytes` of every id below `vocab_size`."""
        table = [b""] * self.vocab_size
        to_bytes = self.decoder.to_bytes
        for text, i in self.backend.get_vocab(with_added_tokens=False).items():
            if i < self.vocab_size:
                table[i] = to_bytes(text)
        for text, i in self.added.items():
            if i < self.vocab_size:
                table[i] = text.encode("utf-8")
        return tuple(table)

    @cached_property
    def _plain_backend(self) -> tokenizers.Tokenizer:
        # A second instance, not a flag set and reset: other threads encode at the same time.
        plain = tokenizers.Tokenizer.from_str(self.backend.to_str())
        plain.encode_special_tokens = True
        return plain


def _load_backend(text: str, name: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing more specific
        raise CheckpointError(
            f"{name} is not a tokenizer this library can read: {error}",
            expected="a file written by the tokenizers library",
            fix="fetch the file again",
        ) from error


def _add_configured_tokens(backend: tokenizers.Tokenizer, config: Json) -> None:
    """Tokens only `added_tokens_decoder` of the config names, where their ids come out right."""
    listed = config.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        return
    known = backend.get_added_tokens_decoder()
    for key, entry in sorted(listed.items(), key=lambda item: (len(item[0]), item[0])):
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            continue
        if key.isdigit() and int(key) not in known:
            flags = {
                flag: bool(entry.get(flag, default))
                for flag, default in (
                    ("lstrip", False),
                    ("rstrip", False),
                    ("single_word", False),
                    ("normalized", False),
                    ("special", False),
                )
            }
            content = entry["content"]
            existing = backend.token_to_id(content)
            # The library numbers new tokens itself: one that would get another id is left out.
            if existing == int(key) or (
                existing is None and int(key) == backend.get_vocab_size(with_added_tokens=True)
            ):
                backend.add_tokens([tokenizers.AddedToken(content, **flags)])


def _bos_id(backend: tokenizers.Tokenizer, files: TokenizerFiles) -> int | None:
    text = files.special_text("bos_token")
    asked = files.config.get("add_bos_token")
    if text is None or asked is False:
        return None
    bos: int | None = backend.token_to_id(text)
    if asked is True:
        return bos
    # Silent config: the post-processor of the file decides.
    template = backend.encode("", add_special_tokens=True).ids
    return bos if template[:1] == [bos] else None
