"""Templates of checkpoints: what they may do, what they may not, and what they can take."""

import json

import pytest
from tiny_chat import HERMES_TEMPLATE, XML_TEMPLATE, byte_level_json, write_checkpoint

from headrace.chat.conversation import template_messages
from headrace.chat.sandbox import SandboxedTemplate
from headrace.chat.template import ChatTemplate, Shape
from headrace.chat.tokenizer import Tokenizer
from headrace.chat.types import Message, Tool, ToolCall
from headrace.errors import CheckpointError, RequestError

USER = {"role": "user", "content": "hi"}


DOUBLED = (
    "{{% set x = namespace(t={}) %}}{{% for i in range(60) %}}"
    "{{% set x.t = x.t {} x.t %}}{{% endfor %}}"
)


def rendered(source, **variables):
    return SandboxedTemplate(source).render(variables)


# --- the sandbox ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ {'a': 'é<&>🙂'} | tojson }}", '{"a": "é<&>🙂"}'),
        ("{{ {'b': 1, 'a': [1]} | tojson(indent=1) }}", '{\n "b": 1,\n "a": [\n  1\n ]\n}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        (
            "{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        ("a{% generation %}b{% endgeneration %}c", "abc"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% set ns = namespace(n=0) %}{% set ns.n = 4 %}{{ ns.n }}", "4"),
        ("{% set l = [] %}{{ l.append(3) or '' }}{{ l }}", "[3]"),
        ("{% for k, v in {'a': 1} | items %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ 'a' ~ 1 ~ missing ~ none }}{{ '%s-%03d' % ('x', 7) }}", "a1Nonex-007"),
        (
            "{{ 'a b' | replace(' ', '') }}{{ 'a\\nb' | indent(2) }}{{ ['a', 1] | join('-') }}",
            "aba\n  ba-1",
        ),
        ("{{ 'ab' * 3 }}{{ 2 ** 5 }}{{ missing }}", "ababab32"),
        ("{{ 'abc'.split('b')[-1].upper() }}{{ 'x'.startswith('x') }}", "CTrue"),
    ],
)
def test_what_templates_expect(source, text):
    assert rendered(source) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}{{ ''.__class__.x }}",
        "{{ messages.__init__.__globals__ }}{{ x.y }}",
        "{{ {}.update({'a': 1}) }}",
        "{{ messages.clear() }}",
        "{{ messages.insert(0, 1) }}",
        "{% for i in range(3000) %}{% for j in range(3000) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999999999) %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(0) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ 'x' * 999999999 }}",
        DOUBLED.format("'xx'", "~"),
        DOUBLED.format("'xx'", "+"),
        DOUBLED.format("[1]", "+"),
        "{% set x = 'x' * 99999 %}{{ x.replace('x', x) }}",
        "{% set x = 'x' * 99999 %}{{ x | replace('x', x) }}",
        "{% set x = 'x' * 99999 %}{{ x.join([x] * 99999) }}",
        "{% set x = 'x' * 99999 %}{{ ([x] * 99999) | join }}",
        "{{ 'x'.center(9999999999) }}{{ 'x' | center(9999999999) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%9999999999d' | format(1) }}",
        "{{ '{:9999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 9999999999) }}",
        "{{ '%*d' % (9999999999, 1) }}",
        "{% set x = '\\n' * 99999 %}{{ x | indent(99999) }}",
        "{{ [0] * 999999999 }}",
        "{{ 9 ** 999999 }}",
        "{{ 1 / 0 }}",
        "{{ 1 + 'a' }}",
        "{{ messages[7].role.x }}",
        "{{ none.a.b }}",
        "{% include 'other' %}",
        "{% for i in range(70) %}{{ 'x' * 1000000 }}{% endfor %}",
    ],
)
def test_what_ends_in_a_request_error(source, monkeypatch):
    monkeypatch.setattr("headrace.chat.sandbox.MAX_STEPS", 5000)
    with pytest.raises(RequestError, match="chat template") as caught:
        rendered(source, messages=[USER])
    assert caught.value.field == "messages"


def test_the_templates_own_words_reach_the_client():
    with pytest.raises(RequestError, match="roles must alternate, found 'user'"):
        rendered("{{ raise_exception(\"roles must alternate, found 'user'\") }}")


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% nosuchtag %}", "{{ x | nosuch }}"])
def test_a_template_that_is_none(source):
    with pytest.raises(CheckpointError, match="chat template"):
        SandboxedTemplate(source)


def test_a_template_too_large():
    with pytest.raises(CheckpointError, match="characters"):
        SandboxedTemplate("x" * (1 << 21))


# --- where it comes from --------------------------------------------------------------------------


def loaded(folder):
    return ChatTemplate.from_folder(folder, Tokenizer.from_folder(folder))


def test_a_file_wins_over_the_config(tmp_path):
    folder = write_checkpoint(
        tmp_path, byte_level_json(marks=True), "file", chat_template="config", bos_token="<b>"
    )
    assert loaded(folder).render([USER]) == "file"
    (folder / "chat_template.jinja").unlink()
    assert loaded(folder).render([USER]) == "config"


def test_special_tokens_have_their_names(tmp_path):
    template = "{{ bos_token }}{{ eos_token }}{{ unk_token is defined }}"
    folder = write_checkpoint(
        tmp_path, byte_level_json(marks=True), template, bos_token={"content": "<b>"}
    )
    assert loaded(folder).render([USER]) == "<b><|im_end|>False"


def test_named_templates(tmp_path):
    named = [
        {"name": "default", "template": "plain {{ tools }}"},
        {"name": "tool_use", "template": "{{ tools | length }} tools"},
    ]
    folder = write_checkpoint(tmp_path, byte_level_json(marks=True), None, chat_template=named)
    template = loaded(folder)
    assert template.render([USER]) == "plain None"
    assert template.render([USER], [{"type": "function"}]) == "1 tools"


@pytest.mark.parametrize("stored", [3, {"a": 1}, [{"name": "x"}], [1], "{% if %}"])
def test_a_broken_entry_is_a_checkpoint_error(tmp_path, stored):
    folder = write_checkpoint(tmp_path, byte_level_json(marks=True), None, chat_template=stored)
    with pytest.raises(CheckpointError, match=r"template"):
        loaded(folder)


def test_a_template_file_that_is_no_text(tmp_path):
    folder = write_checkpoint(tmp_path, byte_level_json(marks=True), "x")
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja"):
        loaded(folder)


def test_without_one_chatml_where_the_vocabulary_has_it(tmp_path):
    folder = write_checkpoint(tmp_path / "a", byte_level_json(marks=True), None)
    text = loaded(folder).render([{"role": "system", "content": "s"}, USER])
    assert text == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    description = json.loads(byte_level_json(marks=False))
    description["added_tokens"] = []
    for mark in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"):
        del description["model"]["vocab"][mark]
    folder = write_checkpoint(tmp_path / "b", json.dumps(description), None)
    assert loaded(folder) is None


# --- what it can take -----------------------------------------------------------------------------

PLAIN = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
GUARD = "{% for m in messages %}{% if CASE %}{{ raise_exception('no') }}{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "shape"),
    [
        (PLAIN, Shape()),
        (
            "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
            Shape(parts=True),
        ),
        (
            GUARD.replace("CASE", "m.role == 'system'") + PLAIN,
            Shape(system=False, later_system=False),
        ),
        (
            GUARD.replace("CASE", "m.role == 'system' and not loop.first") + PLAIN,
            Shape(later_system=False),
        ),
        (
            "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
            "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}",
            Shape(later_system=False),
        ),
        (
            GUARD.replace("CASE", "loop.previtem and loop.previtem.role == m.role") + PLAIN,
            Shape(alternating=True),
        ),
        (
            PLAIN + "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
            "{% for m in messages %}{% for c in m.tool_calls or [] %}"
            "{{ 'args ' + c.function.arguments }}{% endfor %}{% endfor %}",
            Shape(tools=True, arguments_text=True),
        ),
        (
            HERMES_TEMPLATE,
            Shape(later_system=False, tools=True, reasoning_keys=("reasoning_content",)),
        ),
        (
            XML_TEMPLATE,
            Shape(later_system=False, tools=True, reasoning_keys=("reasoning_content",)),
        ),
    ],
)
def test_probes_find_the_shape(source, shape):
    assert ChatTemplate(source).shape == shape


CALL = ToolCall("c1", "f", '{"a": 1}')
TALK = (
    Message("system", "first"),
    Message("user", "q"),
    Message("assistant", "", tool_calls=(CALL,)),
    Message("tool", "42", tool_call_id="c1"),
    Message("system", "later"),
    Message("user", "r"),
)


def short(messages):
    return [(m["role"], m["content"]) for m in messages]


def test_nothing_moves_where_all_is_accepted():
    out = template_messages(TALK, (), Shape(tools=True))
    assert [m["role"] for m in out] == [m.role for m in TALK]
    function = out[2]["tool_calls"][0]["function"]
    assert function == {"name": "f", "arguments": {"a": 1}}
    assert out[3]["tool_call_id"] == "c1"


def test_arguments_as_text_where_the_template_wants_text():
    out = template_messages(TALK, (), Shape(tools=True, arguments_text=True))
    assert out[2]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'


def test_a_later_system_message_is_said_where_it_stands():
    out = template_messages(TALK, (), Shape(tools=True, later_system=False))
    assert short(out)[3:] == [("tool", "42\n\n<system>\nlater\n</system>"), ("user", "r")]
    out = template_messages([*TALK[:2], *TALK[4:]], (), Shape(tools=True, later_system=False))
    assert short(out)[2:] == [("user", "<system>\nlater\n</system>"), ("user", "r")]


def test_one_call_a_turn_where_a_template_takes_no_more():
    two = (CALL, ToolCall("c2", "g", "{}"))
    talk = (
        Message("user", "q"),
        Message("assistant", "I call", tool_calls=two),
        Message("tool", "of g", tool_call_id="c2"),
        Message("tool", "of f", tool_call_id="c1"),
        Message("tool", "of none", tool_call_id="c9"),
    )
    out = template_messages(talk, (), Shape(tools=True, single_call=True))
    assert short(out) == [
        ("user", "q"),
        ("assistant", "I call"),
        ("tool", "of f"),
        ("assistant", ""),
        ("tool", "of g"),
        ("tool", "of none"),
    ]
    assert [len(m.get("tool_calls", ())) for m in out] == [0, 1, 0, 1, 0, 0]
    assert [m.get("name") for m in out[2:]] == ["f", None, "g", None]


@pytest.mark.parametrize(
    ("ids", "wanted"),
    [
        ("any", ["c1", "c1"]),
        ("indexed", ["functions.f:0", "functions.f:0"]),
    ],
)
def test_ids_of_calls_as_a_template_takes_them(ids, wanted):
    out = template_messages(TALK, (), Shape(tools=True, call_ids=ids))
    assert [out[2]["tool_calls"][0]["id"], out[3]["tool_call_id"]] == wanted


def test_ids_of_nine_characters():
    out = template_messages(TALK, (), Shape(tools=True, call_ids="nine"))
    made = out[2]["tool_calls"][0]["id"]
    assert len(made) == 9
    assert made.isalnum()
    assert out[3]["tool_call_id"] == made
    kept = [Message("tool", "x", tool_call_id="abcdefgh1")]
    assert template_messages(kept, (), Shape(tools=True, call_ids="nine"))[0]["tool_call_id"] == (
        "abcdefgh1"
    )


def test_billing_lines_are_left_out():
    line = "x-anthropic-billing-header: cc_version=2.1; cch=0f3;"
    for shape in (Shape(), Shape(later_system=False), Shape(system=False, later_system=False)):
        plain = template_messages([Message("system", "You are"), Message("user", "q")], (), shape)
        for system in (
            (Message("system", line), Message("system", "You are")),
            (Message("system", f"{line}\n\nYou are"),),
            (Message("system", f"{line}\nYou are"),),
        ):
            assert template_messages([*system, Message("user", "q")], (), shape) == plain
    said = [Message("user", line), Message("system", line)]
    assert short(template_messages(said, (), Shape())) == [("user", line), ("system", line)]
    assert short(template_messages([Message("system", line)], (), Shape())) == [("system", "")]


def test_system_text_goes_to_the_user_where_it_is_refused():
    out = template_messages(TALK, (), Shape(tools=True, system=False, later_system=False))
    assert short(out)[0] == ("user", "first\n\nq")
    assert short(out)[-1] == ("user", "later\n\nr")
    out = template_messages([Message("system", "only")], (), Shape(system=False))
    assert short(out) == [("user", "only")]


def test_users_in_a_row_are_joined_where_they_must_alternate():
    out = template_messages(
        [Message("user", "a"), Message("user", "b"), Message("assistant", "c")],
        (),
        Shape(alternating=True),
    )
    assert short(out) == [("user", "a\n\nb"), ("assistant", "c")]


def test_tools_in_text_where_the_template_has_none():
    tool = Tool("f", "Does é", {"type": "object"})
    out = template_messages(TALK, (tool,), Shape())
    assert out[0]["role"] == "system"
    assert (
        '{"type": "function", "function": {"name": "f", "description": "Does é"'
        in out[0]["content"]
    )
    assert out[0]["content"].endswith("\n\nfirst")
    assert out[2]["content"] == '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert short(out)[3] == ("user", "<tool_response>\n42\n</tool_response>")


@pytest.mark.parametrize("arguments", ["{", "[1]", "3", "[" * 100_000, '"x"'])
def test_arguments_that_are_no_object_are_named(arguments):
    talk = [
        Message("user", "q"),
        Message("assistant", tool_calls=(CALL, ToolCall("", "g", arguments))),
    ]
    with pytest.raises(RequestError, match="call g") as caught:
        template_messages(talk, (), Shape(tools=True))
    assert caught.value.field == "messages[1].tool_calls[1].function.arguments"


def test_empty_arguments_are_an_empty_object():
    talk = [Message("assistant", tool_calls=(ToolCall("", "g", " "),))]
    out = template_messages(talk, (), Shape(tools=True))
    assert out[0]["tool_calls"][0]["function"]["arguments"] == {}
