"""Answers to events: any cut of the stream gives the same, and thinking is told from text."""

import pytest
from chat_reading import CALL, MARKS, XML, calls, plain_events, read, text_of
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.chat.reader import TurnReader, joined
from headrace.chat.types import ReasoningDelta, TextDelta

# --- cuts -----------------------------------------------------------------------------------------

fragments = st.lists(
    st.sampled_from(
        [
            *MARKS,
            *(mark[:n] for mark in MARKS for n in (1, 4, len(mark) - 1)),
            *("\n", "\n\n", " ", "a", "🙂", "é"),
            *('{"name": "get_weather", "arguments": {', '"city": "Pa', 'ris"', "}}", "}", "{", "["),
            *('"name": "x"', '"arguments": {}', ",", '\\"', "\\u00e", "1.", "true", "null", '"'),
            *("<function=get_weather>", "<parameter=city>", "<parameter=days>", "</parameter>"),
            *("</function>", "\n</parameter>\n", "</para", "<function=", "3", "\n</function>\n"),
            *(CALL, XML),
        ]
    ),
    max_size=14,
).map("".join)


def cut_outside_marks(text, places, marks):
    """Cuts that do not tear a delimiter, where it is one token."""
    inside = set()
    for mark in marks:
        at = text.find(mark)
        while at >= 0:
            inside.update(range(at + 1, at + len(mark)))
            at = text.find(mark, at + 1)
    places = sorted({p % (len(text) + 1) for p in places} - inside)
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


cuts = st.lists(st.integers(0, 400), max_size=12)


@given(text=fragments, places=cuts, thinking=st.booleans())
@example(text="<tool_call><function=get_weather>\n</tool_call>x", places=[20], thinking=False)
@example(
    text="\n<think>\n\na\n</think>\n\nb\n\n" + XML + "\nc",
    places=[9, 11, 40, 70, 71],
    thinking=False,
)
@example(text="<think>a" + CALL, places=[10], thinking=True)
def test_any_cut_gives_the_same_events(
    hermes, xml, hermes_as_text, xml_as_text, text, places, thinking
):
    for renderer, marks in (
        (hermes, MARKS),
        (xml, MARKS),
        (hermes_as_text, ()),
        (xml_as_text, ()),
    ):
        whole = read(renderer, text, in_reasoning=thinking)
        torn = read(renderer, cut_outside_marks(text, places, marks), in_reasoning=thinking)
        assert plain_events(torn) == plain_events(whole)
        single = read(renderer, list(text) if not marks else [text], in_reasoning=thinking)
        assert plain_events(single) == plain_events(whole)


@given(text=fragments, places=cuts, stops=st.lists(st.sampled_from(["a\n", "🙂", "}", "<"])))
def test_stop_strings_do_not_depend_on_the_cut(hermes_as_text, text, places, stops):
    whole = read(hermes_as_text, text, stop=stops)
    torn = read(hermes_as_text, cut_outside_marks(text, places, ()), stop=stops)
    assert plain_events(torn) == plain_events(whole)
    assert not any(stop in text_of([event]) for stop in stops for event in whole)


# --- reasoning ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hermes", "hermes_as_text"])
@pytest.mark.parametrize(
    ("text", "thinking", "events"),
    [
        (
            "<think>\nhm\n\nso\n</think>\n\nYes.",
            False,
            [ReasoningDelta("hm\n\nso"), TextDelta("Yes.")],
        ),
        ("hm\n</think>\n\nYes.\n", True, [ReasoningDelta("hm"), TextDelta("Yes.\n")]),
        ("<think>\nhm\n</think>Yes", True, [ReasoningDelta("hm"), TextDelta("Yes")]),
        ("\n\n<think></think>Yes", False, [TextDelta("Yes")]),
        ("</think>\n\nYes", False, [TextDelta("Yes")]),
        ("  Yes", False, [TextDelta("  Yes")]),
        ("hm, cut off\n", True, [ReasoningDelta("hm, cut off")]),
        ("", True, []),
        (" \n", False, [TextDelta(" \n")]),
        ("a < b </ c", False, [TextDelta("a < b </ c")]),
        ("so <think> it </thin", True, [ReasoningDelta("so <think> it </thin")]),
    ],
)
def test_reasoning(request, name, text, thinking, events):
    renderer = request.getfixturevalue(name)
    assert read(renderer, text, in_reasoning=thinking) == events


def test_a_mark_as_text_in_the_answer_is_text(hermes_as_text):
    text = "Write <think> before and </think> after."
    assert read(hermes_as_text, text) == [TextDelta(text)]


def test_a_call_inside_the_thinking_ends_it(hermes):
    events = read(hermes, "hm\n" + CALL, in_reasoning=True)
    assert events[0] == ReasoningDelta("hm")
    assert calls(events) == [("get_weather", {"city": "Paris", "days": 3})]


def test_line_breaks_stay_where_the_prompt_began_the_turn(hermes):
    for thinking, kind in ((True, ReasoningDelta), (False, TextDelta)):
        events = read(hermes, "\n\nthen", in_reasoning=thinking, after_text=True)
        assert events == [kind("\n\nthen")]


def test_reasoning_tokens_are_counted(hermes):
    tokenizer = hermes.tokenizer
    reader = TurnReader(tokenizer, hermes.style, in_reasoning=True)
    thinking = tokenizer.encode("the wheel</think>", special=True)
    for token in [*thinking, *tokenizer.encode("yes", special=True)]:
        reader.feed(token)
    assert reader.reasoning_tokens == len(thinking)


# --- stop strings ---------------------------------------------------------------------------------


def test_a_stop_string_ends_the_answer(hermes):
    reader = TurnReader(hermes.tokenizer, hermes.style, stop=("the wheel",))
    events = []
    for token in hermes.tokenizer.encode("down to the wheel and on", special=True):
        events += reader.feed(token)
    assert joined(events) == [TextDelta("down to ")]
    assert reader.stopped
    assert reader.stop_text == "the wheel"
    assert reader.finish() == []


def test_stop_strings_apply_to_the_answer_only(hermes):
    text = f"<think>\nParis\n</think>\n\n{CALL}\nParis!"
    events = read(hermes, text, stop=("Paris",))
    assert events[0] == ReasoningDelta("Paris")
    assert calls(events)[0][1]["city"] == "Paris"
    assert text_of(events) == ""
