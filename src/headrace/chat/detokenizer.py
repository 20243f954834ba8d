"""Token ids to text as they come: a character is delivered once, whole, and as early as possible.

The pieces joined equal `Tokenizer.decode` of all ids, however the ids are cut.
"""

from __future__ import annotations

from headrace.chat.tokenizer import Tokenizer


class Detokenizer:
    """One answer's text. Control tokens give no text.

    Bytes are held back only while they may still become a character; what cannot become one turns
    into U+FFFD as in the one-shot decode. Time is linear in the bytes fed.
    """

    def __init__(self, tokenizer: Tokenizer, *, after_text: bool = False) -> None:
        self._tokenizer = tokenizer
        self._held = b""
        self._lead = 0 if after_text else tokenizer.decoder.strip_lead

    def feed(self, token: int) -> str:
        """The text that became certain with this token; often empty."""
        if token in self._tokenizer.special_ids:
            return ""
        data = self._held + self._tokenizer.token_bytes(token)
        cut = len(data) - _may_become_character(data)
        self._held = data[cut:]
        return self._without_lead(data[:cut].decode("utf-8", "replace"))

    def finish(self) -> str:
        """What is left: U+FFFD if the last character is incomplete."""
        held, self._held = self._held, b""
        return self._without_lead(held.decode("utf-8", "replace"))

    def _without_lead(self, text: str) -> str:
        while self._lead and text:
            if text[0] != " ":
                self._lead = 0
                break
            text = text[1:]
            self._lead -= 1
        return text


# The second byte of a character where it is narrower than 0x80-0xBF (Unicode 15, table 3-7).
_SECOND = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}


def _may_become_character(data: bytes) -> int:
    """How many bytes at the end of `data` are the beginning of a character that is not whole."""
    # Python's incremental decoder waits a byte too long for surrogate halves, so it is not used.
    for n in range(1, min(3, len(data)) + 1):
        lead = data[-n]
        if 0x80 <= lead <= 0xBF:
            continue
        length = 2 if 0xC2 <= lead <= 0xDF else 3 if 0xE0 <= lead <= 0xEF else 4
        if not 0xC2 <= lead <= 0xF4 or n >= length:
            return 0
        low, high = _SECOND.get(lead, (0x80, 0xBF))
        return n if n == 1 or low <= data[-n + 1] <= high else 0
    return 0
