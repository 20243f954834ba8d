"""Turns that come back: the prompt goes on from the very tokens that were generated, or says what
the template says."""

import json
import re

import pytest
from chat_reading import MARKS
from hypothesis import given
from hypothesis import strategies as st

from headrace.chat.echo import EchoStore, SpokenTurn, _form, same_arguments, same_value
from headrace.chat.types import ChatRequest, Message, Prompt, Tool, ToolCall

TOOL = Tool(
    "edit",
    "Edits",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "size": {"type": "number"},
            "all": {"type": "boolean", "default": False},
            "deep": {"$ref": "#/$defs/deep"},
        },
        "$defs": {"deep": {"default": [1.0, {"a": None}]}},
    },
)
SPLIT = re.compile("(" + "|".join(map(re.escape, MARKS)) + ")")
ANSWERS = {
    "hermes": "<think>\nSo  é:\n\n 1.\n</think>\n\nI look. \n<tool_call>\n"
    '{"name": "edit", "arguments": {"size":  1000.0,"path": "a\\u00e9/b\\n", "deep": {"z":1}}}\n'
    "</tool_call>",
    "xml": "So  é:\n\n 1.\n</think>\n\nI look. \n<tool_call>\n<function=edit>\n<parameter=size>\n"
    "1000.0\n</parameter>\n<parameter=path>\na é/b\n</parameter>\n<parameter=deep>\n"
    '{"z":1}\n</parameter>\n</function>\n</tool_call>',
}
ANSWERS |= {f"{name}_as_text": text for name, text in ANSWERS.items()}


def generated(renderer, text, cut=3):
    """Tokens as a model may draw them: not those the tokenizer would choose."""
    tokens = []
    for part in SPLIT.split(text):
        step = len(part) if part in MARKS else cut
        for at in range(0, len(part), step or 1):
            tokens += renderer.tokenizer.encode(part[at : at + step], special=False)
    return tokens


def answer(renderer, request, turns, text, *, cut=3, handle="h"):
    """What a request that was answered by `text` leaves: prompt, tokens, the turn."""
    prompt = renderer.prompt(request, turns)
    tokens = generated(renderer, text, cut)
    reader = renderer.reader(request, prompt)
    events = [event for token in tokens for event in reader.feed(token)] + reader.finish()
    turn = SpokenTurn.of(tokens, events, prompt, whole=not reader.stopped)
    turns.keep(handle, turn)
    return prompt, tokens, turn


def echoed(turn, change=lambda arguments: arguments, **fields):
    calls = tuple(ToolCall(c.id, c.name, change(c.arguments)) for c in turn.calls)
    return Message("assistant", turn.content, turn.reasoning or None, calls, **fields)


def results(turn):
    return tuple(Message("tool", "done", tool_call_id=call.id) for call in turn.calls)


def rewritten(arguments):
    data = json.loads(arguments)
    return json.dumps({"all": False, **dict(sorted(data.items()))}, separators=(",", ":"))


WAYS = {
    "as it was": lambda text: text,
    "spaced": lambda text: json.dumps(json.loads(text), indent=2),
    "sorted, with defaults": rewritten,
    "other numbers": lambda text: text.replace("1000.0", "1e3"),
    "unescaped": lambda text: json.dumps(json.loads(text), ensure_ascii=False),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("way", WAYS)
def test_the_next_prompt_goes_on_from_what_was_generated(request, name, way):
    renderer, turns = request.getfixturevalue(name), EchoStore()
    first = ChatRequest((Message("system", "s"), Message("user", "do")), (TOOL,))
    prompt, tokens, turn = answer(renderer, first, turns, ANSWERS[name])
    assert turn.calls
    assert turn.reasoning
    back = echoed(turn, WAYS[way])
    again = ChatRequest((*first.messages, back, *results(turn)), (TOOL,))
    following = renderer.prompt(again, turns)
    assert list(following.tokens[: len(prompt.tokens) + len(tokens)]) == [*prompt.tokens, *tokens]
    assert renderer.tokenizer.decode(following.tokens, skip_special=False) == following.text
    # What follows is what the template writes after such a turn.
    plain = renderer.prompt(again).text
    tail = plain[plain.rindex("</tool_call>") :]
    assert following.text.endswith(tail)


@pytest.mark.parametrize("name", ANSWERS)
def test_other_data_is_rendered_as_it_came(request, name):
    renderer, turns = request.getfixturevalue(name), EchoStore()
    first = ChatRequest((Message("user", "do"),), (TOOL,))
    _, _, turn = answer(renderer, first, turns, ANSWERS[name])
    for back in (
        echoed(turn, lambda text: text.replace("1000.0", "1001")),
        echoed(turn, lambda text: text.replace('"z":1', '"z":true')),
        echoed(turn, lambda text: rewritten(text).replace("false", "true")),
        Message("assistant", turn.content + "!", turn.reasoning, turn.calls, handle="h"),
        Message("assistant", turn.content, "I thought better", turn.calls, handle="h"),
        Message("assistant", turn.content, turn.reasoning, handle="h"),
        Message("assistant", turn.content, None, turn.calls, handle="h"),
    ):
        again = ChatRequest((*first.messages, back, Message("user", "x")), (TOOL,))
        ours, plain = renderer.prompt(again, turns), renderer.prompt(again)
        assert ours.text == plain.text
        assert renderer.tokenizer.decode(ours.tokens, skip_special=False) == plain.text


pieces = st.lists(
    st.sampled_from(["the wheel ", "é", "🙂", " ", "\n", "<|im_end|>", "{", '"', "."]),
    max_size=12,
).map("".join)


@given(said=st.lists(pieces, min_size=1, max_size=4), cut=st.integers(1, 9), edits=st.data())
def test_a_whole_conversation(hermes, hermes_as_text, said, cut, edits):
    """Whatever was said and however it was cut: unchanged turns keep their tokens, and the text of
    every prompt is what the template makes of the conversation."""
    for renderer in (hermes, hermes_as_text):
        turns, messages = EchoStore(), [Message("user", "go")]
        before: list[int] = []
        for n, text in enumerate(said):
            request = ChatRequest(tuple(messages))
            whole = f"<think>\n{n}\n</think>\n\nSay: {text}"
            prompt, tokens, turn = answer(renderer, request, turns, whole, cut=cut, handle=str(n))
            assert list(prompt.tokens[: len(before)]) == before
            assert renderer.tokenizer.decode(prompt.tokens, skip_special=False) == prompt.text
            assert prompt.text == renderer.prompt(request).text
            changed = edits.draw(st.sampled_from(["", "", "", "x"]))
            back = echoed(turn)
            if changed:
                back = Message("assistant", turn.content + changed, back.reasoning)
            messages += [back, Message("user", f"next {n}")]
            before = [] if changed else [*prompt.tokens, *tokens]


def test_a_handle_tells_turns_apart_that_say_the_same(hermes):
    turns = EchoStore()
    first = ChatRequest((Message("user", "do"),))
    made = [
        answer(hermes, first, turns, "The wheel turns the stone.", cut=cut, handle=str(cut))
        for cut in (1, 2, 5)
    ]
    for (prompt, tokens, turn), cut in zip(made, (1, 2, 5), strict=True):
        again = ChatRequest((*first.messages, echoed(turn, handle=str(cut)), Message("user", "x")))
        known = [*prompt.tokens, *tokens]
        assert list(hermes.prompt(again, turns).tokens[: len(known)]) == known


def test_a_call_id_is_found_without_its_signs():
    turns = EchoStore()
    call = ToolCall("call_1-a", "f", "{}")
    turn = SpokenTurn.of((1,), (), _prompt(), whole=True)
    turns.keep("h", SpokenTurn(turn.tokens, "", False, "a", "", (call,), True))
    found = turns.find(Message("assistant", "b", tool_calls=(ToolCall("call1a", "f", "{}"),)))
    assert len(found) == 1


def test_a_sealed_thinking_is_restored(hermes):
    turns = EchoStore()
    first = ChatRequest((Message("user", "do"),))
    prompt, tokens, turn = answer(hermes, first, turns, "<think>\nmy reason\n</think>\n\nYes.")
    back = Message("assistant", turn.content, handle="h", sealed=True)
    again = ChatRequest((*first.messages, back, Message("user", "x")))
    known = [*prompt.tokens, *tokens]
    assert list(hermes.prompt(again, turns).tokens[: len(known)]) == known
    dropped = ChatRequest((*first.messages, Message("assistant", "Yes.", handle="h"), A))
    assert "my reason" not in hermes.prompt(dropped, turns).text


A = Message("user", "a")


def test_a_turn_cut_by_a_stop_string_comes_back_as_it_was_delivered(hermes):
    turns = EchoStore()
    first = ChatRequest((A,), stop=("STOP",))
    _, _, turn = answer(hermes, first, turns, "The wheel turns and turns. STOP")
    assert not turn.whole
    again = ChatRequest((A, echoed(turn), A))
    assert hermes.prompt(again, turns).text == hermes.prompt(again).text


def test_an_answer_gone_on_with_is_not_replaced(hermes):
    turns = EchoStore()
    _, _, turn = answer(hermes, ChatRequest((A,)), turns, "The wheel turns.")
    again = ChatRequest((A, echoed(turn)), continue_last=True)
    assert hermes.prompt(again, turns).tokens == hermes.prompt(again).tokens


# --- the store ------------------------------------------------------------------------------------


def _prompt():
    return Prompt((), "", in_reasoning=False)


def _turn(n, size=10):
    return SpokenTurn.of([n] * size, (), _prompt(), whole=True)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["keep", "find"]), st.integers(0, 9), st.integers(0, 900)),
        max_size=60,
    )
)
def test_the_store_stays_within_its_bounds(steps):
    turns = EchoStore(max_turns=5, max_bytes=9000)
    used: list[str] = []
    for what, n, size in steps:
        handle = str(n)
        if what == "keep":
            turns.keep(handle, _turn(n, size))
            used = [h for h in used if h != handle] + [handle]
        else:
            found = turns.find(Message("assistant", "not said", handle=handle))
            if found:
                assert found[0].tokens[:1] in (_turn(n).tokens[:1], _turn(n, 0).tokens)
                used = [h for h in used if h != handle] + [handle]
        turns.check()
        # Those used last are those that are left.
        left = [h for h in used if turns.find(Message("assistant", "x", handle=h))]
        assert left == used[len(used) - len(left) :]


def test_one_turn_larger_than_the_store_is_not_kept():
    turns = EchoStore(max_bytes=2000)
    turns.keep("a", _turn(1))
    turns.keep("b", _turn(2, 4000))
    assert len(turns) == 1
    turns.check()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text("aé", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_arguments_are_the_same_however_they_are_written(value):
    plain = json.dumps({"a": value})
    assert same_arguments(plain, json.dumps({"a": value}, indent=1, ensure_ascii=False))
    assert not same_arguments(plain, json.dumps({"a": [value]}))
    assert not same_arguments(plain, json.dumps({"a": value, "b": None}))


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (None, False, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ([1, 2], [2, 1], False),
        ("1", 1, False),
    ],
)
def test_what_counts_as_the_same_value(a, b, same):
    assert same_value(a, b) is same


def test_only_stated_defaults_may_be_added():
    ours = '{"path": "a"}'
    assert same_arguments(ours, '{"all": false, "path": "a"}', TOOL)
    assert same_arguments(ours, '{"path": "a", "deep": [1, {"a": null}]}', TOOL)
    assert not same_arguments(ours, '{"all": true, "path": "a"}', TOOL)
    assert not same_arguments(ours, '{"path": "a", "size": 0}', TOOL)
    assert not same_arguments('{"path": "a", "all": true}', '{"path": "a"}', TOOL)
    assert not same_arguments(ours, '{"path": "a"', TOOL)
    assert not same_arguments("[" * 5000, "[" * 5001, TOOL)


@pytest.mark.parametrize("levels", [1, 250, 300, 900, 940, 950, 960, 970, 980, 5000])
def test_calls_however_deep_are_kept(levels):
    deep = '{"a": ' + "[" * levels + "]" * levels + "}"

    def found(further):
        if further:
            return found(further - 1)
        return _form("", [ToolCall("1", "f", deep)])

    assert found(0) == found(300)
    assert found(0) != _form("", [ToolCall("1", "f", deep.replace("[", "[ ", 1) + "x")])
