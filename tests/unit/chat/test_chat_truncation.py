"""What is left of a conversation that is too long."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.chat.length import ContextOverflow
from headrace.chat.truncation import fitted, without_oldest
from headrace.chat.types import ChatRequest, Message, ToolCall


@st.composite
def conversations(draw):
    messages, open_calls = [], []
    for i in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["system", "user", "assistant", "call", "result"]))
        text = f"{i}:" + "x" * draw(st.integers(0, 50))
        if kind == "call":
            ids = [f"c{i}.{n}" for n in range(draw(st.integers(1, 2)))]
            open_calls += ids
            calls = tuple(ToolCall(id, "f", "{}") for id in ids)
            messages.append(Message("assistant", text, tool_calls=calls))
        elif kind == "result" and open_calls:
            at = draw(st.integers(0, len(open_calls) - 1))
            messages.append(Message("tool", text, tool_call_id=open_calls.pop(at)))
        else:
            role = "user" if kind == "result" else kind
            messages.append(Message(role, text))
    return tuple(messages)


@given(conversations(), st.floats(0, 2))
def test_the_oldest_goes_and_nothing_is_torn(messages, share):
    left = without_oldest(messages, share)
    users = [m for m in messages if m.role == "user"]
    if left is None:
        pairs = {c.id for m in messages for c in m.tool_calls}
        last = messages[-1]
        for m in messages:  # what there is must stay
            torn = m.tool_calls or m.tool_call_id in pairs
            assert m.role == "system" or m in (*users[-1:], last) or torn
        return
    assert len(left) < len(messages)
    assert [m for m in messages if m in left] == list(left)
    assert [m for m in left if m.role == "system"] == [m for m in messages if m.role == "system"]
    assert users[-1:] == [m for m in left if m.role == "user"][-1:]
    assert left[-1] == messages[-1]
    calls = {c.id for m in left for c in m.tool_calls}
    answered = {m.tool_call_id for m in messages if m.role == "tool"}
    assert {m.tool_call_id for m in left if m.role == "tool"} == calls & answered
    first = next((m for m in left if m.role != "system"), None)
    if users and first is not None and first.role != "user":
        assert without_oldest(left, 0) is None


@given(conversations(), st.integers(20, 400), st.integers(0, 100))
def test_it_fits_or_what_must_stay_does_not(messages, context, room):
    tries = []

    def attempt(request, most):
        tries.append(len(request.messages))
        tokens = sum(len(m.content) + 2 for m in request.messages)
        if tokens >= context or tokens > most:
            raise ContextOverflow(tokens, context, "messages")
        return request.messages

    asked = ChatRequest(messages, truncate=True)
    try:
        left = fitted(asked, context, min(room, context // 4), attempt)
    except ContextOverflow:
        left = None
    assert tries == sorted(set(tries), reverse=True)
    assert left == messages if len(tries) == 1 and left else True
    if left is not None and without_oldest(left, 0) is not None:
        assert sum(len(m.content) + 2 for m in left) + min(room, context // 4) <= context
    if left is None:
        smallest = messages
        while (less := without_oldest(smallest, 1)) is not None:
            smallest = less
        assert sum(len(m.content) + 2 for m in smallest) >= context


def test_a_growing_conversation_keeps_its_beginning_for_many_turns():
    """Else each turn would have another prefix, and all of it would be computed again."""
    messages = [Message("system", "s" * 50)]
    beginnings = []
    for n in range(60):
        messages += [
            Message("user", f"{n:3}" + "u" * 20),
            Message("assistant", f"{n:3}" + "a" * 20),
        ]

        def attempt(request, most):
            tokens = sum(len(m.content) for m in request.messages)
            if tokens > most:
                raise ContextOverflow(tokens, 1000, "messages")
            return request.messages

        asked = ChatRequest((*messages, Message("user", "now")), truncate=True)
        beginnings.append(fitted(asked, 1000, 125, attempt)[1].content)
    changes = sum(a != b for a, b in itertools.pairwise(beginnings))
    assert 10 <= changes <= 20


@pytest.mark.parametrize("role", ["system", "user"])
def test_one_message_that_is_too_long_is_refused(role):
    def attempt(request, most):
        raise ContextOverflow(2000, 1000, "messages")

    with pytest.raises(ContextOverflow):
        fitted(ChatRequest((Message(role, "x" * 2000),), truncate=True), 1000, 100, attempt)
