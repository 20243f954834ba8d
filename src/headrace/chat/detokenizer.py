"""Token ids to text as they come: a character is delivered once, whole, and as early as possible.

The pieces joined equal `Tokenizer.decode` of all ids, however the ids are cut.
"""

from __future__ import annotations

import codecs

from headrace.chat.tokenizer import Tokenizer


class Detokenizer:
    """One answer's text. Control tokens give no text.

    Bytes are held back only while they may still become a character; what cannot become one turns
    into U+FFFD as in the one-shot decode. Time is linear in the bytes fed.
    """

    def __init__(self, tokenizer: Tokenizer, *, after_text: bool = False) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._lead = 0 if after_text else tokenizer.decoder.strip_lead

    def feed(self, token: int) -> str:
        """The text that became certain with this token; often empty."""
        if token in self._tokenizer.special_ids:
            return ""
        return self._without_lead(self._utf8.decode(self._tokenizer.token_bytes(token)))

    def finish(self) -> str:
        """What is left: U+FFFD if the last character is incomplete."""
        return self._without_lead(self._utf8.decode(b"", final=True))

    def _without_lead(self, text: str) -> str:
        while self._lead and text:
            if text[0] != " ":
                self._lead = 0
                break
            text = text[1:]
            self._lead -= 1
        return text
