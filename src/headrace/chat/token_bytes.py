"""The bytes of one vocabulary entry, by the decoder that `tokenizer.json` describes.

Only decoders that treat each token by itself are known, so bytes never depend on the neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import CheckpointError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level BPE (Radford et al. 2019)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in set(shown)]
    alphabet = {chr(b): b for b in shown}
    alphabet.update({chr(256 + n): b for n, b in enumerate(hidden)})
    return alphabet


_ALPHABET = _byte_alphabet()


@dataclass(frozen=True)
class TokenDecoder:
    """How a vocabulary spells its tokens.

    `byte_level`: each character stands for one byte. `pieces`: plain text after `replaces`, with
    `<0xNN>` for single bytes if `byte_fallback`. `strip_lead` blanks are cut from a text's start.
    """

    kind: Literal["byte_level", "pieces"]
    replaces: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    strip_lead: int = 0

    @classmethod
    def from_description(cls, decoder: Mapping[str, Any] | None) -> TokenDecoder:
        """From the `decoder` entry; raises CheckpointError for a kind that is not known."""
        steps = _steps(decoder)
        kinds = {step.get("type") for step in steps}
        if "ByteLevel" in kinds:
            return cls("byte_level")
        replaces: list[tuple[str, str]] = []
        strip = 0
        for step in steps:
            match step:
                case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                    replaces.append((old, new))
                case {"type": "Metaspace"}:
                    replaces.append((step.get("replacement", "▁"), " "))
                    strip = 0 if step.get("prepend_scheme") == "never" else 1
                case {"type": "Strip", "content": " ", "start": int(start)}:
                    strip = start
                case {"type": "ByteFallback" | "Fuse"}:
                    pass
                case _:
                    raise _unknown(str(step.get("type")))
        return cls("pieces", tuple(replaces), "ByteFallback" in kinds, strip)

    def to_bytes(self, text: str) -> bytes:
        """The bytes of the vocabulary entry `text`."""
        if self.kind == "byte_level":
            try:
                return bytes([_ALPHABET[c] for c in text])
            except KeyError:
                return text.encode("utf-8")
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(text)):
            return bytes([int(match[1], 16)])
        for old, new in self.replaces:
            text = text.replace(old, new)
        return text.encode("utf-8")


def _steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        raise _unknown("none")
    if decoder.get("type") == "Sequence":
        return [step for part in decoder.get("decoders", ()) for step in _steps(part)]
    return [decoder]


def _unknown(found: str) -> CheckpointError:
    return CheckpointError(
        f"tokenizer.json has a decoder of kind {found}",
        expected="ByteLevel, Metaspace, or Replace with ByteFallback, Fuse and Strip",
        fix="serve this checkpoint by token ids",
    )
