"""Pieces joined are the one-shot text, and nothing waits that is already certain."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.chat.detokenizer import Detokenizer


def pieces(tokenizer, ids, **options):
    detokenizer = Detokenizer(tokenizer, **options)
    return [detokenizer.feed(i) for i in ids] + [detokenizer.finish()]


@given(data=st.data())
def test_any_token_sequence(marked, fallback, data):
    for tokenizer in (marked, fallback):
        # Some ids beyond the vocabulary too: a padded embedding can produce them.
        one = st.integers(0, tokenizer.vocab_size + 3)
        ids = data.draw(st.lists(one, max_size=40))
        after = data.draw(st.booleans())
        joined = "".join(pieces(tokenizer, ids, after_text=after))
        assert joined == tokenizer.decode(ids, after_text=after)


@given(data=st.data())
def test_byte_level_equals_the_library_for_any_bytes(marked, data):
    ids = data.draw(st.lists(st.integers(0, marked.vocab_size - 1), max_size=40))
    assert "".join(pieces(marked, ids)) == marked.backend.decode(ids)


@given(text=st.text(max_size=30))
def test_any_text_comes_back(marked, fallback, text):
    assert "".join(pieces(marked, marked.encode(text, special=False))) == text
    ids = fallback.encode(text, special=False)
    assert "".join(pieces(fallback, ids)) == text


def byte_token(fallback, byte):
    return fallback.backend.token_to_id(f"<0x{byte:02X}>")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xe2\x82\xac", ["", "", "€"]),
        (b"\xf0\x9f\x99\x82", ["", "", "", "🙂"]),
        (b"\xff\x41", ["�", "A"]),  # can never become a character
        (b"\xe2\x41", ["", "�A"]),
        (b"\xe2\x82\xe2\x82\xac", ["", "", "�", "", "€"]),
        (b"\xed\xa0\x80", ["", "��", "�"]),  # a surrogate half is not UTF-8
        (b"\xc0\x80", ["�", "�"]),  # an overlong form
        (b"\xf4\x90\x80", ["", "��", "�"]),  # beyond U+10FFFF
    ],
)
def test_when_each_byte_is_delivered(fallback, data, expected):
    got = pieces(fallback, [byte_token(fallback, b) for b in data])
    assert got == [*expected, ""]
    assert "".join(got) == data.decode("utf-8", "replace")


def test_an_incomplete_end_becomes_one_replacement(fallback):
    ids = [byte_token(fallback, b) for b in b"\xf0\x9f\x99"]
    assert pieces(fallback, ids) == ["", "", "", "�"]


def test_control_tokens_give_no_text_and_do_not_tear_a_character(marked):
    ids = marked.encode("🙂", special=False)
    assert len(ids) > 1
    torn = [ids[0], marked.id_of("<|im_end|>"), *ids[1:]]
    assert "".join(pieces(marked, torn)) == "🙂"


def test_only_the_first_blank_is_layout(fallback):
    ids = fallback.encode("  the the", special=False)
    assert "".join(pieces(fallback, ids)) == "  the the"
    assert "".join(pieces(fallback, ids, after_text=True)) == "   the the"
