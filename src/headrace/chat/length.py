"""Whether a prompt can fit, told before all of its text is turned into tokens.

Turning 30 MB without a blank into tokens takes minutes and gigabytes; what is found here costs no
more than a prompt that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.errors import RequestError

PART_CHARS = 1 << 16
CHARS_PER_TOKEN = 8  # shorter texts, for the tokens that there may be, are not looked at here
CERTAIN = 1.1  # a cut between parts adds a token or two, which must not refuse what fits


class ContextOverflow(RequestError):
    """The prompt leaves no room for an answer. `tokens` is an estimate where it is far too long."""

    def __init__(self, tokens: int, limit: int, field: str) -> None:
        super().__init__(
            f"prompt is too long: {tokens} tokens > {limit} maximum",
            field=field,
            expected=f"at most {limit - 1} tokens, so that one is left for the answer",
            fix="shorten it, or serve with a larger --context",
        )
        self.tokens = tokens


def check_length(
    text: str, most: int | None, field: str, encode: Callable[[str], Sequence[int]]
) -> None:
    """Raises ContextOverflow when `text` is certain to have more than `most` tokens."""
    if most is None or len(text) <= max(CHARS_PER_TOKEN * most, 4 * PART_CHARS):
        return
    count = 0
    for at in range(0, len(text), PART_CHARS):
        count += len(encode(text[at : at + PART_CHARS]))
        if count > CERTAIN * most:
            read = min(at + PART_CHARS, len(text))
            raise ContextOverflow(count * len(text) // read, most, field)
