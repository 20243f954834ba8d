"""Families told from template text and vocabulary."""

import pytest
from tiny_chat import HERMES_TEMPLATE, XML_TEMPLATE

from headrace.chat.renderer import Renderer
from headrace.chat.template import ChatTemplate
from headrace.chat.types import ChatRequest, Message

NATIVE = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "think", "syntax", "switch"),
    [
        (HERMES_TEMPLATE, "<think>", "hermes", "enable_thinking"),
        (XML_TEMPLATE, "<think>", "qwen_xml", "enable_thinking"),
        ("{{ messages[0].content }}", None, "hermes", None),
        (NATIVE, None, None, None),
        (NATIVE + "<tool_call>name<arg_keys>arguments</arg_keys>", None, None, None),
        (NATIVE + "[TOOL_CALLS]", None, "mistral", None),
        ("[THINK][/THINK]{{ thinking }}", "[THINK]", "hermes", "thinking"),
        ("{{ enable_thinking }}", None, "hermes", None),
        ("<|channel|>analysis", None, "hermes", None),  # the vocabulary has no such marks
    ],
)
def test_the_style_of_a_template(marked, source, think, syntax, switch):
    style = Renderer.of(marked, ChatTemplate(source)).style
    assert (style.think.open.text if style.think else None) == think
    assert style.syntax == syntax
    assert style.thinking_switch == switch
    assert style.channels is None


def test_delimiters_are_tokens_only_where_the_vocabulary_has_them(hermes, hermes_as_text):
    for renderer, by_token in ((hermes, True), (hermes_as_text, False)):
        for span in (renderer.style.think, renderer.style.call):
            for mark in (span.open, span.close):
                assert (mark.token is not None) == by_token


def test_the_turns_end_mark_ends_an_answer(marked):
    plain = Renderer.of(marked, ChatTemplate("{{ messages[0].content }}"))
    assert plain.end_ids == {marked.id_of("<|im_end|>")}


@pytest.mark.parametrize(
    ("test", "wanted"),
    [("preserve_thinking", True), ("clear_thinking", False), ("drop_thinking", False)],
)
def test_earlier_thinking_is_kept_where_there_is_a_switch(marked, test, wanted):
    source = f"{{{{ messages[0].content }}}} {{{{ {test} }}}}"
    renderer = Renderer.of(marked, ChatTemplate(source))
    user = (Message("user", "q"),)
    assert renderer.prompt(ChatRequest(user)).text == f"q {wanted}"
    asked = ChatRequest(user, template_args={test: not wanted})
    assert renderer.prompt(asked).text == f"q {not wanted}"
