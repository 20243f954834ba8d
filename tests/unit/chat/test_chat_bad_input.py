"""Hostile and absurd requests: refused by name, and with bounded work."""

import contextlib
import dataclasses

import pytest
from chat_masks import USER

from headrace.chat import grammar, splice
from headrace.chat.echo import EchoStore, SpokenTurn
from headrace.chat.length import ContextOverflow
from headrace.chat.tools import lark_tree, regex_text
from headrace.chat.types import (
    ChatRequest,
    Message,
    OutputFormat,
    Prompt,
    TextInput,
    Tool,
    ToolCall,
    ToolChoice,
)
from headrace.errors import RequestError


def nested(levels):
    schema = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        nested(5000),
        {"$ref": "#/nowhere"},
        {"$ref": "http://example.org/schema"},
        {"type": "strange"},
        {"not": {"type": "string"}},
        {"enum": list(range(20_000))},
        {"type": "object", "description": "x" * (1 << 18)},
        {"type": "integer", "minimum": 3, "maximum": 2},
    ],
)
def test_schemas_that_cannot_be_compiled(hermes, schema):
    prompt = hermes.prompt(ChatRequest(USER))
    asked = ChatRequest(USER, format=OutputFormat("json_schema", schema=schema))
    with pytest.raises(RequestError) as caught:
        hermes.constraint(asked, prompt)
    assert caught.value.field.startswith("response_format")
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    tool = Tool("f", "", parameters, strict=True)
    forced = ChatRequest(USER, (tool,), tool_choice=ToolChoice("required"))
    with pytest.raises(RequestError) as caught:
        hermes.constraint(forced, prompt)
    assert caught.value.field.startswith("tools")


def test_a_conversation_that_cannot_fit_is_not_read_to_its_end(hermes):
    small = dataclasses.replace(hermes, most_tokens=1000)
    with pytest.raises(ContextOverflow, match=r"^prompt is too long: \d+ tokens > 1000 maximum"):
        small.prompt(ChatRequest((Message("user", "ab " * 2_000_000),)))
    with pytest.raises(ContextOverflow):
        small.completion_prompt("x" * 5_000_000)
    assert small.prompt(ChatRequest(USER)) == hermes.prompt(ChatRequest(USER))


def test_a_turn_of_too_many_calls_is_refused(hermes):
    calls = tuple(ToolCall(f"c{i}", "f", "{}") for i in range(20_000))
    with pytest.raises(RequestError, match="20000 calls"):
        hermes.prompt(ChatRequest((*USER, Message("assistant", tool_calls=calls))))


@pytest.mark.parametrize("kind", ["regex", "lark"])
@pytest.mark.parametrize("pattern", ["", "(?=x)y", "(", "a" * (1 << 17), "(" * 3000 + ")" * 3000])
def test_patterns_that_cannot_be_compiled(hermes, kind, pattern):
    asked = ChatRequest(USER, format=OutputFormat(kind, pattern=pattern))
    with pytest.raises(RequestError):
        hermes.constraint(asked, hermes.prompt(asked))


@pytest.mark.parametrize(("mode", "most"), [("auto", 2), ("none", 1), ("required", 2)])
def test_the_grammars_of_a_request_share_one_budget(hermes, monkeypatch, mode, most):
    """However many they are, they are compiled together: by themselves, and with what is around."""
    compiled, compile_all = [], grammar._constraint
    monkeypatch.setattr(
        grammar, "_constraint", lambda *args: compiled.append(args) or compile_all(*args)
    )
    tools = tuple(
        Tool(f"f{k}", "", input=TextInput("regex", f"({chr(97 + k)}{{99}}){{9}}{mode}", f"t{k}"))
        for k in range(12)
    )
    asked = ChatRequest(USER, tools, tool_choice=ToolChoice(mode))
    hermes.constraint(asked, hermes.prompt(ChatRequest(USER)))
    assert len(compiled) == most


@pytest.mark.parametrize(
    "text", ['"\\"' + '\\"' * 30_000, "/\\" + "/\\" * 30_000, "/" + '"' * 60_001]
)
def test_literals_that_do_not_end_are_refused_at_once(text):
    """A search that begins again at each quotation mark runs into the tests' time limit."""
    with pytest.raises(RequestError) as caught:
        lark_tree.checked_lark("start: " + text, "here")
    assert caught.value.field == "here"
    assert len(str(caught.value)) < 300


def test_a_long_repetition_that_does_not_end_is_read_once():
    assert regex_text.regex_in_json("{" + "1" * 50_000, "", "here").endswith("1")


@pytest.mark.parametrize("pattern", ["(a{999}){999}", "((a*)*)*b", "(x+x+)+y", r"\p{L}{1,3000}"])
def test_a_hostile_pattern_does_bounded_work(hermes, pattern):
    """It ends in an error, at the start or later, or every mask is small work; what were not
    bounded would run into the tests' time limit."""
    asked = ChatRequest(USER, format=OutputFormat("regex", pattern=pattern))
    constraint = hermes.constraint(asked, hermes.prompt(asked))
    token = hermes.tokenizer.id_of("a") or hermes.tokenizer.encode("a", special=False)[0]
    with contextlib.suppress(RequestError):
        for _ in range(50):
            words = constraint.mask()
            if not words[token // 32] >> (token % 32) & 1:
                break
            constraint.accept(token)


def test_too_many_messages(hermes):
    many = (Message("user", "a"), Message("assistant", "b")) * 50_000
    with pytest.raises(RequestError, match="100000 messages") as caught:
        hermes.prompt(ChatRequest(many))
    assert caught.value.field == "messages"


def test_results_without_calls_are_rendered(hermes, xml):
    orphan = (Message("user", "q"), Message("tool", "42", tool_call_id="never"))
    for renderer in (hermes, xml):
        assert "42" in renderer.prompt(ChatRequest(orphan)).text


def test_many_turns_that_are_nearly_known_do_bounded_work(hermes, monkeypatch):
    monkeypatch.setattr(splice, "MAX_LOOKS", 300)
    turns = EchoStore()
    opening = "<|im_start|>assistant\n"
    said = "The wheel turns the stone and "
    for i in range(200):
        turn = SpokenTurn.of(
            hermes.tokenizer.encode(f"{said}{i}", special=False),
            (),
            Prompt((), "", in_reasoning=False, opening=opening),
            whole=True,
        )
        turns.keep(str(i), turn)
    talk = tuple(
        message
        for i in range(200)
        for message in (Message("user", "q"), Message("assistant", f"{said}not", handle=str(i)))
    )
    request = ChatRequest((*talk, Message("user", "q")))
    ours, plain = hermes.prompt(request, turns), hermes.prompt(request)
    assert ours.text == plain.text
    assert hermes.tokenizer.decode(ours.tokens, skip_special=False) == plain.text
