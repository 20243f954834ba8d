"""Halves of surrogate pairs that a model writes never reach a client, in any family or cut."""

import json

import pytest
from chat_reading import calls, plain_events
from families import EDIT, FAMILIES, renderer_of
from hypothesis import given
from hypothesis import strategies as st

from headrace.chat.reader import TurnReader
from headrace.chat.tools.whole_text import WholeText
from headrace.chat.types import TextDelta

HALF = "\\ud83d"


def read(renderer, text):
    reader = TurnReader(renderer.tokenizer, renderer.style, (EDIT,))
    events = []
    for token in renderer.tokenizer.encode(text, special=True):
        events += reader.feed(token)
    return events + reader.finish()


def without_halves(value):
    """The slow, obvious model: over the value instead of its text."""
    if isinstance(value, str):
        return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in value)
    return {without_halves(key): without_halves(item) for key, item in value.items()}


escapes = st.lists(
    st.sampled_from(
        ["\\ud83d", "\\uDE42", "\\u00e9", "\\\\", '\\"', "\\n", "u", "d83d", "é", "🙂", "x"]
    ),
    max_size=12,
).map("".join)


@given(escapes, escapes, st.lists(st.integers(0, 200)))
def test_json_stays_the_same_but_for_halves(key, text, cuts):
    text = f'{{"{key}": "{text}"}}'
    whole, said, at = WholeText(), [], 0
    for cut in [*sorted(cuts), len(text)]:
        said.append(whole.feed(text[at:cut]))
        at = max(at, cut)
    said.append(whole.finish())
    assert json.loads("".join(said)) == without_halves(json.loads(text))


def test_what_is_no_json_passes():
    whole = WholeText()
    text = "\\u12zz \\" + "\ud83d" + "\\"
    assert "".join([*map(whole.feed, text), whole.finish()]) == "\\u12zz \\\ufffd\\"


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name):
    answer = FAMILIES[name].answer
    assert "🙂" in answer
    (_, arguments), _ = calls(read(renderer_of(FAMILIES[name]), answer.replace("🙂", HALF)))
    assert arguments["path"].endswith(("\ufffd", HALF))  # where there are no escapes, as it is


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", f'<tool_call>{{"name": "a{HALF}", "arguments": {{}}}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "a", "arguments": "{\\"x\\": \\"\\ud83d\\"}"}</tool_call>'),
        ("cohere", f'<|START_ACTION|>[{{"tool_name": "a{HALF}"}}]<|END_ACTION|>'),
        ("apertus", f'<|tools_prefix|>[{{"a{HALF}": {{"{HALF}": 1}}}}]<|tools_suffix|>'),
        ("qwen", "<tool_call><function=edit><parameter=list>['\\ud83d']</parameter></function>"),
    ],
)
def test_names_keys_and_texts_in_texts(name, text):
    ((_, called, arguments),) = plain_events(read(renderer_of(FAMILIES[name]), text))
    assert "\ufffd" in (called + json.dumps(json.loads(arguments), ensure_ascii=False))
    f"{called}{arguments}{json.loads(arguments)}".encode()


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("cohere", '[{"tool_name": "edit", "parameters": {"n": NaN}}]<|END_ACTION|>'),
        ("apertus", '[{"edit": {"n": 1e999}}]<|tools_suffix|>'),
        ("granite", '[{"name": "edit", "arguments": "{\\"n\\": -Infinity}"}]'),
        ("hermes", '{"name": "edit", "arguments": "{\\"n\\": NaN}"}</tool_call>'),
        ("lfm", "[edit(n=1e999)]<|tool_call_end|>"),
    ],
)
def test_numbers_that_json_does_not_have_make_no_call(name, call):
    renderer = renderer_of(FAMILIES[name])
    events = read(renderer, renderer.style.call.open.text + call)
    assert {type(event) for event in events} == {TextDelta}
