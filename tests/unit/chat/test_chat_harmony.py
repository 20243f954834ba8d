"""Answers in channels, and grammars for them."""

import json

import pytest
import tokenizers
from chat_masks import FIRST, SCHEMA, USER, accepts
from chat_reading import plain_events
from tiny_chat import byte_level_json

from headrace.chat.harmony import MARKS, HarmonyReader
from headrace.chat.reader import joined
from headrace.chat.renderer import Renderer
from headrace.chat.template import ChatTemplate
from headrace.chat.tokenizer import Tokenizer, TokenizerFiles
from headrace.chat.types import (
    ChatRequest,
    Message,
    OutputFormat,
    ReasoningDelta,
    TextDelta,
    ToolChoice,
)

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.tool_calls %} to=functions."
    "{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>{% else %}<|channel|>final<|message|>"
    "{{ m.content }}{% if loop.last and m.role == 'assistant' %}<|return|>{% else %}<|end|>"
    "{% endif %}{% endif %}"
    "{% endfor %}{% for t in tools or [] %}{{ t.function.name }}"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


@pytest.fixture(scope="module")
def harmony():
    backend = tokenizers.Tokenizer.from_str(byte_level_json(marks=False))
    backend.add_special_tokens(list(MARKS))
    files = TokenizerFiles(generation={"eos_token_id": backend.token_to_id("<|return|>")})
    return Renderer.of(Tokenizer.from_json(backend.to_str(), files), ChatTemplate(TEMPLATE))


def test_a_call_ends_the_turn(harmony):
    ends = {harmony.tokenizer.id_of(mark) for mark in ("<|return|>", "<|call|>")}
    assert harmony.end_ids == ends


def read(renderer, text, *, tools=(FIRST,), **options):
    request = ChatRequest(USER, tools, **options)
    reader = renderer.reader(request, renderer.prompt(request))
    assert isinstance(reader, HarmonyReader)
    events = [
        e for token in renderer.tokenizer.encode(text, special=True) for e in reader.feed(token)
    ]
    return joined(events + reader.finish()), reader


THOUGHT = "<|channel|>analysis<|message|>hm {}\n🙂<|end|><|start|>assistant"
ANSWER = "<|channel|>final<|message|>Yes.\n<|return|>"
CALL = (
    "<|channel|>commentary to=functions.first <|constrain|>json<|message|>"
    '{"n": 3, "kind": "wet"}<|call|>'
)
OTHER_CALL = CALL.replace("<|channel|>commentary to=functions.first <|constrain|>", "").replace(
    "json", " to=functions.first<|channel|>commentary json"
)


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (THOUGHT + ANSWER, [ReasoningDelta("hm {}\n🙂"), TextDelta("Yes.\n")]),
        (ANSWER, [TextDelta("Yes.\n")]),
        (THOUGHT + CALL, [ReasoningDelta("hm {}\n🙂"), (0, "first", '{"n": 3, "kind": "wet"}')]),
        (OTHER_CALL, [(0, "first", '{"n": 3, "kind": "wet"}')]),
        (
            CALL + "<|start|>assistant" + CALL,
            [(i, "first", '{"n": 3, "kind": "wet"}') for i in (0, 1)],
        ),
        (
            "<|channel|>commentary<|message|>First.<|end|><|start|>assistant" + ANSWER,
            [TextDelta("First.Yes.\n")],
        ),
        (THOUGHT.split("<|end|>")[0], [ReasoningDelta("hm {}\n🙂")]),
        ("<|channel|>analysis", []),
        ("", []),
    ],
)
def test_channels(harmony, text, events):
    assert plain_events(read(harmony, text)[0]) == events


def test_without_tools_a_call_is_text(harmony):
    assert read(harmony, CALL, tools=())[0] == [TextDelta('{"n": 3, "kind": "wet"}')]


def test_thinking_is_counted_and_stops_apply_to_the_answer(harmony):
    events, reader = read(harmony, THOUGHT.replace("hm", "Yes") + ANSWER, stop=("es.",))
    assert events[-1] == TextDelta("Y")
    assert reader.stopped
    assert reader.stop_text == "es."
    thought = harmony.tokenizer.encode("Yes {}\n🙂", special=False)
    assert reader.reasoning_tokens == len(thought) + 1


def test_an_answer_gone_on_with(harmony):
    request = ChatRequest((*USER, Message("assistant", "The")), continue_last=True)
    prompt = harmony.prompt(request)
    assert prompt.text.endswith("<|channel|>final<|message|>The")
    reader = harmony.reader(request, prompt)
    tokens = harmony.tokenizer.encode(" wheel<|return|>", special=True)
    assert joined([e for t in tokens for e in reader.feed(t)]) == [TextDelta(" wheel")]


def test_grammars(harmony):
    def outcome(text, **options):
        request = ChatRequest(USER, **options)
        constraint = harmony.constraint(request, harmony.prompt(request))
        done = text.removesuffix("<|return|>").removesuffix("<|call|>")
        return accepts(constraint, harmony.tokenizer, done, special=True)

    required = {"tools": (FIRST,), "tool_choice": ToolChoice("required")}
    assert outcome(THOUGHT + CALL, **required) is True
    assert outcome(CALL, **required) is True
    assert outcome(ANSWER, **required) == "<|channel|>"
    assert outcome(CALL.replace("wet", "hot"), **required).endswith('"kind": "')
    form = {"format": OutputFormat("json_schema", schema=SCHEMA)}
    answer = ANSWER.replace("Yes.\n", '{"n": 1, "kind": "dry"}')
    assert outcome(THOUGHT + answer, **form) is True
    assert outcome(ANSWER, **form).endswith("<|message|>")


def test_half_a_surrogate_pair_in_a_call(harmony):
    body = '{"x": "\\ud83d\\ude42 \\ud83d"}'
    head = CALL[: CALL.index("<|message|>") + len("<|message|>")]
    events, _ = read(harmony, head + body)
    ((_, _, arguments),) = plain_events(events)
    assert json.loads(arguments) == {"x": "🙂 \ufffd"}
