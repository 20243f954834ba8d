"""Stop strings against the obvious definition: look after every character."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.chat.stops import StopScanner

letters = st.text("abc", max_size=24)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


def by_definition(text, stops):
    for end in range(len(text) + 1):
        met = [s for s in stops if text[:end].endswith(s)]
        if met:
            return text[: end - max(map(len, met))], max(met, key=len)
    return text, None


def cut(text, places):
    places = sorted(p % (len(text) + 1) for p in places)
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@given(letters, stop_lists, st.lists(st.integers(0, 30), max_size=6))
@example("abcab", ["bc", "abcd"], [1, 2, 3])
@example("aab", ["ab"], [1, 2])
def test_any_cut_gives_what_the_definition_says(text, stops, places):
    scanner = StopScanner(stops)
    out = "".join(scanner.feed(piece) for piece in cut(text, places))
    if not scanner.stopped:
        out += scanner.finish()
    assert (out, scanner.found) == by_definition(text, stops)


@given(letters, stop_lists)
def test_only_what_may_be_a_stop_string_waits(text, stops):
    scanner = StopScanner(stops)
    given_text = scanner.feed(text)
    if scanner.stopped:
        return
    waiting = text[len(given_text) :]
    assert given_text + waiting == text
    begins = {s[:n] for s in stops for n in range(1, len(s))}
    longest = max((n for n in range(len(text) + 1) if text[len(text) - n :] in begins), default=0)
    assert len(waiting) == longest


def test_nothing_is_delivered_after_the_stop():
    scanner = StopScanner(["END"])
    assert scanner.feed("one EN") == "one "
    assert scanner.feed("D two") == ""
    assert scanner.stopped
    assert scanner.feed("three") == ""
    assert scanner.finish() == ""


def test_an_empty_stop_string_is_our_own_mistake():
    with pytest.raises(ValueError, match="empty"):
        StopScanner(["a", ""])
