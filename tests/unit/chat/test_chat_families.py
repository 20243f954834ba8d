"""The call syntaxes of all families: what is read, and what is written under a grammar."""

import json
import random

import pytest
from chat_masks import FIRST, SECOND, USER, accepts, is_valid, walk
from chat_reading import calls, plain_events, text_of
from families import ARGUMENTS, EDIT, FAMILIES, renderer_of
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.chat.grammar import compile_constraint
from headrace.chat.reader import TurnReader, joined
from headrace.chat.renderer import Renderer
from headrace.chat.template import ChatTemplate
from headrace.chat.types import (
    ChatRequest,
    TextDelta,
    TextInput,
    Tool,
    ToolCallDelta,
    ToolChoice,
)

RENDERERS = {
    (name, as_text): renderer_of(family, as_text=as_text)
    for name, family in FAMILIES.items()
    for as_text in (False, True)
}
OPEN_ENDED = {"mistral", "mistral list", "llama", "granite", "gigachat"}  # no mark ends a call
BOTH = pytest.mark.parametrize(("name", "as_text"), RENDERERS)


def events_of(renderer, text, steps=(1,), *, tools=(EDIT,)):
    """The tokens of the text, told apart from a reader's view: so many pieces a feed."""
    reader = TurnReader(renderer.tokenizer, renderer.style, tools)
    events = []
    for token in renderer.tokenizer.encode(text, special=True):
        events += reader.feed(token)
    return joined(events + reader.finish())


@BOTH
def test_two_calls_behind_a_text(name, as_text):
    family, renderer = FAMILIES[name], RENDERERS[name, as_text]
    assert renderer.style.syntax == family.syntax
    events = events_of(renderer, family.before + family.answer)
    assert text_of(events) == family.before
    assert calls(events) == [("edit", ARGUMENTS), ("edit", {})]


@BOTH
def test_without_tools_calls_are_text(name, as_text):
    family, renderer = FAMILIES[name], RENDERERS[name, as_text]
    events = events_of(renderer, family.before + family.answer, tools=())
    assert all(isinstance(event, TextDelta) for event in events)


@BOTH
@settings(max_examples=30)
@given(data=st.data())
def test_a_cut_answer_loses_nothing(name, as_text, data):
    """Wherever an answer ends: no error, and calls that were whole before are delivered."""
    family, renderer = FAMILIES[name], RENDERERS[name, as_text]
    text = family.before + family.answer
    end = data.draw(st.integers(0, len(text)))
    events = events_of(renderer, text[:end])
    said = text_of(events)
    whole = [event for event in plain_events(events) if isinstance(event, tuple)]
    assert said.startswith(family.before[:end])
    for _, called, arguments in whole[:-1]:
        assert (called, json.loads(arguments)) == ("edit", ARGUMENTS)
    if not whole:
        # All that came is text, but for tokens that are marks and layout at the end.
        shown = renderer.tokenizer.decode(renderer.tokenizer.encode(text[:end], special=True))
        assert shown.replace("\n", "").startswith(said.replace("\n", "")[: len(shown)]) or (
            said.replace("\n", "").startswith(family.before)
        )


broken = st.lists(
    st.sampled_from(
        [*'{}[]"<>:,=()|/ \n', "edit", "call:", "name", "é", "1", '"name": ', "arguments", "true"]
    ),
    max_size=10,
).map("".join)


@BOTH
@settings(max_examples=30)
@given(noise=broken, data=st.data())
def test_noise_never_breaks_a_stream(name, as_text, noise, data):
    family, renderer = FAMILIES[name], RENDERERS[name, as_text]
    text = family.before + family.answer
    at = data.draw(st.integers(0, len(text)))
    start = data.draw(st.integers(0, at))
    events = plain_events(events_of(renderer, text[:start] + noise + text[at:]))
    for event in events:
        assert isinstance(event, TextDelta) or event[1]


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - OPEN_ENDED))
@pytest.mark.parametrize("as_text", [False, True])
def test_an_empty_call_is_text(name, as_text):
    renderer = RENDERERS[name, as_text]
    style = renderer.style
    text = f"Say {style.call.open.text} {style.call.close.text}."
    events = events_of(renderer, text)
    assert events == [TextDelta(text)]


def test_strings_come_while_they_are_written():
    for name in ("glm", "dsml", "minimax", "kimi", "deepseek", "gemma", "mistral", "llama"):
        family, renderer = FAMILIES[name], RENDERERS[name, False]
        text = family.answer.replace("<c>", "the wheel turns " * 20)
        reader = TurnReader(renderer.tokenizer, renderer.style, (EDIT,))
        pieces = 0
        for token in renderer.tokenizer.encode(text, special=True):
            pieces += sum(isinstance(event, ToolCallDelta) for event in reader.feed(token))
        assert pieces > 100, name


def test_json_without_a_mark_is_a_call_only_if_it_names_a_tool():
    renderer = RENDERERS["llama", False]
    call = '{"name": "edit", "parameters": {"path": "x"}}'
    assert calls(events_of(renderer, call)) == [("edit", {"path": "x"})]
    for answer in ('{"name": "Bob", "age": 3}', '{"name": "Bob"}', "{", '{"a": 1}', f"So: {call}"):
        assert events_of(renderer, answer) == [TextDelta(answer)]


def test_a_typed_parameter_is_read_as_it_says():
    renderer = RENDERERS["dsml", False]
    text = FAMILIES["dsml"].answer.replace(
        'name="size" string="false"', 'name="size" string="true"'
    )
    assert calls(events_of(renderer, text))[0][1]["size"] == "-3"
    text = FAMILIES["dsml"].answer.replace('name="size"', 'name="other"')
    assert calls(events_of(renderer, text))[0][1]["other"] == -3


# --- under a grammar ------------------------------------------------------------------------------


@BOTH
def test_forced_calls_are_read_as_what_the_schema_says(name, as_text):
    renderer = RENDERERS[name, as_text]
    rng = random.Random(name)
    required = {"first": ["n", "kind"], "second": ["n"]}
    for choice, parallel, names in (
        (ToolChoice("required"), True, {"first", "second"}),
        (ToolChoice("required"), False, {"first", "second"}),
        (ToolChoice("named", "second"), True, {"second"}),
    ):
        for _ in range(3):
            wanted = ChatRequest(
                USER, (FIRST, SECOND), tool_choice=choice, parallel_tool_calls=parallel
            )
            constraint = compile_constraint(renderer.tokenizer, wanted, renderer.style)
            tokens = walk(constraint, renderer.tokenizer, rng)
            text = renderer.tokenizer.decode(tokens, skip_special=False)
            events = events_of(renderer, text, tools=(FIRST, SECOND))
            found = calls(events)
            assert text_of(events) == "", text
            assert len(found) == 1 or (choice.mode == "required" and parallel), text
            assert {called for called, _ in found} <= names
            for called, arguments in found:
                assert is_valid(arguments, required[called]), text


@BOTH
def test_strings_and_deep_values_under_a_grammar(name, as_text):
    renderer = RENDERERS[name, as_text]
    rng = random.Random(name)
    closed = Tool("edit", "", {**EDIT.parameters, "additionalProperties": False})
    wanted = ChatRequest(USER, (closed,), tool_choice=ToolChoice("named", "edit"))
    for _ in range(4):
        constraint = compile_constraint(renderer.tokenizer, wanted, renderer.style)
        try:
            tokens = walk(constraint, renderer.tokenizer, rng, limit=600)
        except AssertionError:  # a string of random bytes that would not end
            continue
        text = renderer.tokenizer.decode(tokens, skip_special=False)
        ((called, arguments),) = calls(events_of(renderer, text))
        assert called == "edit"
        assert isinstance(arguments["path"], str), text
        assert set(arguments) <= set(EDIT.parameters["properties"]), text


@BOTH
def test_what_a_family_writes_passes_its_grammar(name, as_text):
    family, renderer = FAMILIES[name], RENDERERS[name, as_text]
    if name in ("deepseek fenced", "mistral list"):
        pytest.skip("an older form, which is read but not written")
    optional = Tool("edit", "", {**EDIT.parameters, "required": []}, strict=True)
    wanted = ChatRequest(USER, (optional,))
    constraint = compile_constraint(renderer.tokenizer, wanted, renderer.style)
    text = family.answer.lstrip("\n").replace("[CALL_ID]abc", "")
    if name in ("llama", "gigachat"):  # whose turns have one call
        text = text[: text.rindex(renderer.style.call.open.text)]
        text = text.removeprefix("<|python_tag|>" if as_text else "")
    assert accepts(constraint, renderer.tokenizer, text, special=True) is True


@BOTH
def test_text_may_stand_alone(name, as_text):
    renderer = RENDERERS[name, as_text]
    optional = Tool("edit", "", {**EDIT.parameters, "required": []}, strict=True)
    wanted = ChatRequest(USER, (optional,))
    constraint = compile_constraint(renderer.tokenizer, wanted, renderer.style)
    assert accepts(constraint, renderer.tokenizer, "Only text, < and ] and 1.") is True


def test_marks_around_a_text_are_not_part_of_it():
    renderer = RENDERERS["cohere", False]
    call = FAMILIES["cohere"].answer
    text = "<|START_TEXT|>I look.<|END_TEXT|>"
    assert text_of(events_of(renderer, text)) == "I look."
    events = events_of(renderer, text + call)
    assert text_of(events) == "I look."
    assert len(calls(events)) == 2
    strict = Tool("edit", "", {**EDIT.parameters, "required": []}, strict=True)
    for answer in (text, "I look.", text + call, call):
        constraint = compile_constraint(
            renderer.tokenizer, ChatRequest(USER, (strict,)), renderer.style
        )
        assert accepts(constraint, renderer.tokenizer, answer, special=True) is True


def test_marks_that_a_template_puts_together_are_found():
    source = (
        "{%- set HYTK = ':opensource' %}{% set call = '<tool_call{}>'.format(HYTK) %}"
        "{% set sep = '<tool_sep{}>'.format(HYTK) %}{% set key = '<arg_key{}>'.format(HYTK) %}"
        "{% set end = '</think{}>'.format(HYTK) %}"
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    tokenizer = RENDERERS["hunyuan", False].tokenizer
    style = Renderer.of(tokenizer, ChatTemplate(source)).style
    assert style.syntax == "hunyuan"
    assert style.think is not None
    assert style.think.close.text == "</think:opensource>"
    assert style.call.open.token is not None


@pytest.mark.parametrize("name", ["gigachat", "llama"])
def test_an_object_tells_where_its_call_ends(name):
    renderer = RENDERERS[name, False]
    mark, key = renderer.style.call.open.text, "arguments" if name == "gigachat" else "parameters"
    call = f'{mark}{{"name": "edit", "{key}": {{"path": "x"}}}}'
    for text in (f"{call} And more.", f'{mark}{{"{key}": {{"path": "x"}}, "name": "edit"}}. More.'):
        events = events_of(renderer, text)
        assert calls(events) == [("edit", {"path": "x"})]
        assert text_of(events) == text[text.rindex("}") + 1 :]
    for cut in ('{"name": "edit"', '{"name": "edit",', f'{{"name": "edit", "{key}"'):
        events = events_of(renderer, mark + cut)
        assert calls(events) == []
        assert text_of(events) == mark + cut
    assert calls(events_of(renderer, mark + '{"name": "edit"}')) == [("edit", {})]


@BOTH
def test_one_tool_of_a_grammar_leaves_the_others_free(name, as_text):
    family, renderer = FAMILIES[name], RENDERERS[name, as_text]
    if name in ("deepseek fenced", "mistral list"):
        pytest.skip("an older form, which is read but not written")
    odd = {"not": {"required": ["z"]}, "properties": {"w": {"type": "string", "pattern": "(?=x)y"}}}
    text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    held = Tool("run", "", text, input=TextInput("regex", "[a-z]{1,9}"))
    if name in ("dsml", "dsml as text", "nested", "lfm", "python", "python bare"):
        odd = {**EDIT.parameters, "required": []}  # how a value is written depends on its schema
    wanted = ChatRequest(USER, (Tool("edit", "", odd), held))
    constraint = compile_constraint(renderer.tokenizer, wanted, renderer.style)
    answer = family.answer.lstrip("\n").replace("[CALL_ID]abc", "")
    if name in ("llama", "gigachat"):
        answer = answer[: answer.rindex(renderer.style.call.open.text)]
        answer = answer.removeprefix("<|python_tag|>" if as_text else "")
    assert accepts(constraint, renderer.tokenizer, answer, special=True) is True
