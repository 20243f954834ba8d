"""Masks against independent truths: the set of allowed strings, and JSON itself."""

import json
import random
import re

import pytest
from chat_masks import FIRST, RENDERERS, SCHEMA, USER, accepts, allowed, is_valid, walk
from tiny_chat import byte_level_json

from headrace.chat.grammar import compile_constraint, compile_text_constraint
from headrace.chat.tokenizer import Tokenizer, TokenizerFiles
from headrace.chat.types import (
    ChatRequest,
    OutputFormat,
    Tool,
    ToolChoice,
)
from headrace.errors import RequestError

# --- masks ----------------------------------------------------------------------------------------


def test_the_mask_is_exactly_the_language(marked):
    """Every token at every reachable state, against all strings of the language."""
    language = {a + b for a in ("t", "th", "the", "wh") for b in ("", "e", " 1", "\n")}
    pattern = "(t|th|the|wh)(e| 1|\\n)?"
    assert all(re.fullmatch(pattern, text) for text in language)
    table = marked.byte_table

    def visit(prefix, tokens):
        constraint = compile_text_constraint(marked, OutputFormat("regex", pattern=pattern))
        for token in tokens:
            constraint.accept(token)
        got = allowed(constraint, marked)
        wanted = {
            i
            for i, data in enumerate(table)
            if i not in marked.special_ids
            and not data.startswith((b"<think", b"</think", b"<tool_", b"</tool_"))
            and any(text.encode().startswith(prefix + data) for text in language)
        }
        if prefix.decode() in language:
            wanted |= marked.eos_ids
        assert got == wanted
        for token in wanted - marked.eos_ids:
            visit(prefix + table[token], [*tokens, token])

    visit(b"", [])


def test_ids_without_bytes_are_never_allowed():
    files = TokenizerFiles(config={"eos_token": "<|im_end|>"}, model={"vocab_size": 1001})
    tokenizer = Tokenizer.from_json(byte_level_json(marks=True), files)
    constraint = compile_text_constraint(tokenizer, OutputFormat("regex", pattern="(.|\n)*"))
    got = allowed(constraint, tokenizer)
    assert all(tokenizer.byte_table[i] for i in got)
    assert tokenizer.eos_ids < got
    assert len(got) > 256


def test_all_end_tokens_end(marked):
    both = marked.ending_at([marked.id_of("<|endoftext|>")])
    for end in sorted(both.eos_ids):
        constraint = compile_text_constraint(both, OutputFormat("regex", pattern="a*"))
        assert both.eos_ids < allowed(constraint, both)
        constraint.accept(end)
        assert constraint.done


def test_a_complete_grammar_is_done(marked):
    constraint = compile_text_constraint(marked, OutputFormat("lark", pattern='start: "a" "b"'))
    for token in marked.encode("ab", special=False):
        assert not constraint.done
        constraint.accept(token)
    assert constraint.done
    assert allowed(constraint, marked) == marked.eos_ids
    constraint.accept(min(marked.eos_ids))
    assert constraint.done


def test_a_token_the_mask_forbids_is_an_error_not_a_crash(marked):
    constraint = compile_text_constraint(marked, OutputFormat("regex", pattern="a"))
    with pytest.raises(RequestError, match="grammar"):
        constraint.accept(marked.encode("b", special=False)[0])


# --- formats --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_random_answers_follow_the_schema(marked, fallback, seed):
    for tokenizer in (marked, fallback):
        output = OutputFormat("json_schema", schema=SCHEMA)
        constraint = compile_text_constraint(tokenizer, output)
        text = tokenizer.decode(walk(constraint, tokenizer, random.Random(seed)))
        assert is_valid(json.loads(text), SCHEMA["required"])


def test_json_object(marked):
    def outcome(text):
        return accepts(compile_text_constraint(marked, OutputFormat("json_object")), marked, text)

    assert outcome('{"a": [1, {"b": null}], "é": "\\n"}') is True
    assert outcome('{\n  "a": 1\n}') is True
    assert outcome("{") is False
    for text in ("[1]", '"a"', "3", '{"a": 1,}', "{a: 1}", '{"a": NaN}'):
        assert outcome(text) not in (True, False)
    assert len(outcome("{" + "\n" * 9 + "}")) < 10


def test_free_text_has_no_grammar(marked, hermes):
    assert compile_text_constraint(marked, OutputFormat()) is None
    for request in (ChatRequest(USER), ChatRequest(USER, (FIRST,))):
        assert compile_constraint(marked, request, hermes.style) is None
    none = ChatRequest(USER, (FIRST,), tool_choice=ToolChoice("none"), parallel_tool_calls=False)
    assert compile_constraint(marked, none, hermes.style) is None


@pytest.mark.parametrize("name", RENDERERS)
def test_a_format_holds_after_the_thinking(request, name):
    renderer = request.getfixturevalue(name)
    tokenizer = renderer.tokenizer

    def outcome(text, reasoning):
        wanted = ChatRequest(USER, format=OutputFormat("regex", pattern="[0-9]+/[a-z]"))
        constraint = compile_constraint(tokenizer, wanted, renderer.style, reasoning=reasoning)
        return accepts(constraint, tokenizer, text)

    assert outcome('so {"x"}\n\nand\n</think>\n\n12/b', "open") is True
    assert outcome("</think>1/b", "open") is True
    assert outcome("no end", "open") is False
    assert outcome("12/b", "closed") is True
    assert outcome("<think>hm</think>\n\n12/b", "possible") is True
    assert outcome("12/b", "possible") is True
    assert outcome("</think>\n\nno", "open") == "</think>\n\n"
    assert outcome("no", "closed") == ""
    assert outcome("no", "possible") == ""


def test_the_renderer_knows_where_the_thinking_stands(hermes, xml):
    wanted = OutputFormat("regex", pattern="[0-9]")
    for renderer, thinking, text, fine in (
        (xml, None, "hm</think>\n\n1", True),
        (xml, None, "1", False),
        (xml, False, "1", True),
        (xml, False, "hm</think>1", ""),
        (hermes, None, "<think>hm</think>1", True),
        (hermes, None, "1", True),
        (hermes, False, "<think>hm</think>1", ""),
    ):
        request = ChatRequest(USER, format=wanted, thinking=thinking)
        constraint = renderer.constraint(request, renderer.prompt(request))
        assert accepts(constraint, renderer.tokenizer, text) == fine


# --- what is refused ------------------------------------------------------------------------------


SCHEMA_FIELD = "response_format.json_schema.schema"


def deep_schema(depth):
    schema = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("output", "field"),
    [
        (OutputFormat("json_schema"), "response_format.json_schema.schema"),
        (OutputFormat("json_schema", schema=[1]), "response_format.json_schema.schema"),
        (OutputFormat("json_schema", schema={"type": "objct"}), "response_format"),
        (OutputFormat("json_schema", schema={"$ref": "#/$defs/none"}), "response_format"),
        (OutputFormat("json_schema", schema={"not": {"type": "string"}}), "response_format"),
        (OutputFormat("json_schema", schema={"enum": ["\ud800"]}), "response_format"),
        (OutputFormat("json_schema", schema={"x": {1, 2}}), "response_format.json_schema.schema"),
        (
            OutputFormat("json_schema", schema=deep_schema(5000)),
            SCHEMA_FIELD,
        ),
        (
            OutputFormat("json_schema", schema={"enum": ["x" * 99] * 9999}),
            "response_format.json_schema.schema",
        ),
        (OutputFormat("regex"), "response_format.pattern"),
        (OutputFormat("regex", pattern="("), "response_format"),
        (OutputFormat("regex", pattern="a" * 70_000), "response_format.pattern"),
        (OutputFormat("lark", pattern="start: nothing"), "response_format"),
        (OutputFormat("lark"), "response_format.pattern"),
        (OutputFormat("lark", pattern="oops ("), "response_format"),
        (OutputFormat("lark", pattern="\ud800"), "response_format"),
    ],
)
def test_what_cannot_be_compiled_names_the_field(marked, hermes, output, field):
    with pytest.raises(RequestError) as caught:
        compile_text_constraint(marked, output)
    assert caught.value.field == field
    with pytest.raises(RequestError) as caught:
        compile_constraint(marked, ChatRequest(USER, format=output), hermes.style)
    assert caught.value.field == field


def test_tools_that_cannot_be_forced_name_the_field(hermes, xml, marked):
    required = ToolChoice("required")
    for renderer in (hermes, xml):
        for tools, choice, field in (
            ((), required, "tool_choice"),
            ((FIRST,), ToolChoice("named", "third"), "tool_choice"),
            ((FIRST, Tool("x", "", deep_schema(500))), required, "tools[1].function.parameters"),
            ((Tool("x", "", {"properties": {"a": {"type": "numbr"}}}),), required, "tools"),
        ):
            request = ChatRequest(USER, tools, tool_choice=choice)
            if field == "tools" and renderer is xml:
                continue
            with pytest.raises(RequestError) as caught:
                compile_constraint(marked, request, renderer.style)
            assert caught.value.field == field


def test_a_family_of_unknown_calls_cannot_be_forced(marked, hermes):
    from dataclasses import replace

    style = replace(hermes.style, calls=None)
    assert compile_constraint(marked, ChatRequest(USER, (FIRST,)), style) is None
    request = ChatRequest(USER, (FIRST,), tool_choice=ToolChoice("required"))
    with pytest.raises(RequestError, match="not known") as caught:
        compile_constraint(marked, request, style)
    assert caught.value.field == "tool_choice"


def test_without_an_end_token_there_is_no_grammar():
    tokenizer = Tokenizer.from_json(byte_level_json(marks=True))
    with pytest.raises(RequestError, match="end token"):
        compile_text_constraint(tokenizer, OutputFormat("regex", pattern="a"))
