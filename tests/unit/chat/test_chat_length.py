"""A prompt that cannot fit is refused before all of it is read, and one that fits never is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.chat.length import CERTAIN, PART_CHARS, ContextOverflow, check_length


class Counting:
    """A token per `each` characters of what it is given, the rest of a part another one."""

    def __init__(self, each: int) -> None:
        self.each, self.chars = each, 0

    def __call__(self, text: str) -> range:
        self.chars += len(text)
        return range(-(-len(text) // self.each))


@given(st.integers(1, 40), st.integers(1, 200_000), st.integers(0, 3_000_000))
def test_only_what_is_certain_to_be_too_long_is_refused_after_a_bounded_part(each, most, chars):
    count, exact, cuts = Counting(each), -(-chars // each), chars // PART_CHARS + 1
    found = None
    try:
        check_length("x" * chars, most, "messages", count)
    except ContextOverflow as error:
        found = error
    if found is not None:
        assert exact > most
        assert abs(found.tokens - exact) <= cuts + 1
    else:
        # What is let through has at most eight characters a token that fits, or fits.
        assert chars <= max(8 * most, 4 * PART_CHARS) or exact <= CERTAIN * most
    assert count.chars <= CERTAIN * most * each + PART_CHARS


def test_without_a_limit_nothing_is_read():
    check_length("x" * 1_000_000, None, "prompt", lambda text: pytest.fail("read"))
