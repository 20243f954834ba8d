"""A turn that comes back through a session goes on from the tokens that were generated."""

import asyncio
import json

import pytest
from serving import Script, ScriptedClient, byte_tokenizer

from headrace.api.call import Call, RawPrompts
from headrace.api.reading import Delta
from headrace.api.session import Session
from headrace.chat.renderer import Renderer
from headrace.chat.template import ChatTemplate
from headrace.chat.types import (
    ChatRequest,
    Message,
    ReasoningDelta,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
)

TEMPLATE = """{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{%- for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
ANSWER = (
    '<think>So: é</think>I look.<tool_call>\n{"name": "f", "arguments": {"b":  1.0,"a":"x"}}\n'
    "</tool_call>"
)
TOOL = Tool("f", "", {"type": "object", "properties": {"c": {"default": 3}}})


@pytest.fixture
def session():
    renderer = Renderer.of(byte_tokenizer(), ChatTemplate(TEMPLATE))
    client = ScriptedClient(renderer.tokenizer)
    client.script = Script(text=ANSWER)
    return Session(renderer, client, context=10_000)


def answered(session, ask, n=1):
    """What a client is told by the first choice, and its handle."""

    async def run():
        turn = await session.open(Call(ask, n=n))
        events = [
            e async for event in turn.events() if isinstance(event, Delta) for e in event.events
        ]
        return events, turn.handles

    return asyncio.run(run())


def came_back(events, handle):
    text = "".join(e.text for e in events if isinstance(e, TextDelta))
    thought = "".join(e.text for e in events if isinstance(e, ReasoningDelta))
    ids = [e.id for e in events if isinstance(e, ToolCallStart)]
    arguments = json.loads("".join(e.arguments for e in events if isinstance(e, ToolCallDelta)))
    rewritten = json.dumps({"c": 3, **dict(sorted(arguments.items())), "b": 1})
    return Message("assistant", text, thought, (ToolCall(ids[0], "f", rewritten),), handle=handle)


@pytest.mark.parametrize("by_handle", [True, False])
def test_a_turn_that_comes_back_keeps_its_tokens(session, by_handle):
    first = ChatRequest((Message("user", "do"),), (TOOL,))
    events, handles = answered(session, first)
    back = came_back(events, handles[0] if by_handle else None)
    result = Message("tool", "42", tool_call_id=back.tool_calls[0].id)
    answered(session, ChatRequest((*first.messages, back, result), (TOOL,)))
    before, after = session.client.requests
    known = [*before.tokens, *session.client.tokenizer.encode(ANSWER, special=True)]
    assert list(after.tokens[: len(known)]) == known


def test_every_answer_has_a_handle_of_its_own(session):
    _, handles = answered(session, ChatRequest((Message("user", "do"),)), n=3)
    assert len(set(handles)) == 3
    assert all(handle.isalnum() for handle in handles)
    assert len(session.spoken) == 3


def test_plain_completions_are_not_kept(session):
    answered(session, RawPrompts(("do",)))
    assert len(session.spoken) == 0
