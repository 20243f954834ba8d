"""How large a step may be while some stream waits for its next token. No torch.

A prompt is computed fastest in large pieces, and a reader waits for each of them.
"""

from __future__ import annotations

WAIT_S = 0.5  # what a reader hardly notices
SLOWDOWN = 2.0  # of a machine whose decode steps alone take longer than a quarter of a second
FEWEST = 32
FIRST = 128  # before anything is known; it doubles with each step that is fast


class Pace:
    """Follows the time of steps; `tokens` is the bound it found."""

    def __init__(self, step_tokens: int) -> None:
        self._most = step_tokens
        self.tokens = min(FIRST, step_tokens)
        self._decode_s = 0.0

    def observe(self, seconds: float, *, decode: int, prefill: int) -> None:
        """A step of so many tokens of either kind took so long."""
        if prefill == 0:
            self._decode_s += 0.2 * (seconds - self._decode_s) if self._decode_s else seconds
            return
        wait_s = max(WAIT_S, SLOWDOWN * self._decode_s)
        full = decode + prefill >= 0.9 * self.tokens
        if seconds > 1.2 * wait_s:
            # Where nobody waited, the next one that does must not find out what is known.
            of = self.tokens if decode else prefill
            self._bound(min(self.tokens, int(of * max(0.25, wait_s / seconds))))
        elif decode and full and seconds < 0.8 * wait_s:
            factor = min(2.0, wait_s / seconds) if seconds > 0 else 2.0
            self._bound(int(self.tokens * factor))

    def _bound(self, tokens: int) -> None:
        self.tokens = max(min(FEWEST, self._most), min(self._most, tokens))
