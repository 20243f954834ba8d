"""Requests to prompts, against transformers' own rendering and by what must never happen."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_chat import HERMES_TEMPLATE, XML_TEMPLATE, byte_level_json, write_checkpoint

from headrace.chat.renderer import Renderer
from headrace.chat.template import ChatTemplate
from headrace.chat.types import ChatRequest, Message, TextDelta, Tool, ToolCall, ToolChoice
from headrace.errors import RequestError

TOOL = Tool("f", "Does it", {"type": "object", "properties": {"a": {"type": "string"}}})
TALK = (
    Message("system", "Be brief: é 🙂."),
    Message("user", "  What?  "),
    Message("assistant", "So.", reasoning="hm", tool_calls=(ToolCall("c1", "f", '{"a": "é\\n"}'),)),
    Message("tool", '{"t": 20}', tool_call_id="c1"),
)


A = Message("user", "a")


def as_openai(message):
    out = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        out["reasoning_content"] = message.reasoning
    if message.tool_calls:
        out["tool_calls"] = [
            {"type": "function", "function": {"name": c.name, "arguments": json.loads(c.arguments)}}
            for c in message.tool_calls
        ]
    return out


@pytest.mark.parametrize("template", [HERMES_TEMPLATE, XML_TEMPLATE])
def test_tokens_are_those_of_transformers(tmp_path, template):
    transformers = pytest.importorskip("transformers")
    folder = write_checkpoint(tmp_path, byte_level_json(marks=True), template)
    oracle = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    ours = Renderer.from_folder(folder)
    tools = [
        {
            "type": "function",
            "function": {"name": "f", "description": "Does it", "parameters": TOOL.parameters},
        }
    ]
    for talk in (TALK, TALK[:2], TALK[1:2]):
        for thinking in (None, True, False):
            for offered in ((TOOL,), ()):
                prompt = ours.prompt(ChatRequest(talk, offered, thinking=thinking))
                wanted = oracle.apply_chat_template(
                    [as_openai(m) for m in talk],
                    tools=tools if offered else None,
                    add_generation_prompt=True,
                    tokenize=True,
                    return_dict=False,
                    **({} if thinking is None else {"enable_thinking": thinking}),
                )
                assert list(prompt.tokens) == wanted
                assert oracle.decode(prompt.tokens) == prompt.text


def test_messages_begin_at_anchors(hermes):
    said = (Message("user", "a <|im_start|> b"), Message("assistant", "c"), Message("user", "d"))
    prompt = hermes.prompt(ChatRequest(said))
    start = hermes.tokenizer.id_of("<|im_start|>")
    # Three messages and the answer to come; what a client spelled begins none.
    assert len(prompt.anchors) == 4
    assert prompt.anchors[0] == 0
    assert {prompt.tokens[at] for at in prompt.anchors} == {start}
    for at, message in zip(prompt.anchors[1:3], said[1:], strict=True):
        after = hermes.tokenizer.decode(prompt.tokens[at + 1 :])
        assert after.startswith(f"{message.role}\n{message.content}")


def test_thinking_is_seen_in_the_prompt(hermes, xml):
    talk = TALK[:2]
    assert xml.prompt(ChatRequest(talk)).in_reasoning
    assert not xml.prompt(ChatRequest(talk, thinking=False)).in_reasoning
    assert not hermes.prompt(ChatRequest(talk, thinking=True)).in_reasoning
    ends = Message("user", "<think>")
    assert not hermes.prompt(ChatRequest((ends,))).in_reasoning


def test_thinking_without_a_switch_is_closed_in_the_prompt(marked):
    always = "{{ messages[0].content }}<|im_end|><think>\n{# </think> #}"
    renderer = Renderer.of(marked, ChatTemplate(always))
    assert renderer.style.thinking_switch is None
    user = (Message("user", "q"),)
    assert renderer.prompt(ChatRequest(user)).in_reasoning
    closed = renderer.prompt(ChatRequest(user, thinking=False))
    assert not closed.in_reasoning
    assert closed.text == "q<|im_end|><think>\n\n</think>\n\n"


def test_tools_are_left_out_when_none_may_be_called(hermes):
    with_tools = ChatRequest(TALK[:2], (TOOL,))
    without = ChatRequest(TALK[:2], (TOOL,), tool_choice=ToolChoice("none"))
    assert '"name": "f"' in hermes.prompt(with_tools).text
    assert '"name": "f"' not in hermes.prompt(without).text
    reader = hermes.reader(without, hermes.prompt(without))
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    events = []
    for token in hermes.tokenizer.encode(text, special=True):
        events += reader.feed(token)
    assert all(isinstance(e, TextDelta) for e in events + reader.finish())


# --- what a client writes -------------------------------------------------------------------------

spellings = st.lists(
    st.sampled_from(["<|im_end|>", "\n", "<|im_start|>", "system", "<|endoftext|>", "a", "<|", "é"])
).map("".join)


@given(content=spellings, argument=spellings, description=spellings)
def test_text_never_becomes_a_control_token(hermes, xml, content, argument, description):
    calls = (ToolCall("c", "f", json.dumps({"a": argument}, ensure_ascii=False)),)
    talk = (
        Message("user", content),
        Message("assistant", content, reasoning=content, tool_calls=calls),
        Message("tool", content, tool_call_id=content),
        Message("user", content),
    )
    harmless = (
        Message("user", "x"),
        Message("assistant", "x", reasoning="x", tool_calls=(ToolCall("c", "f", '{"a": "x"}'),)),
        Message("tool", "x", tool_call_id="x"),
        Message("user", "x"),
    )
    for renderer in (hermes, xml):
        tokenizer = renderer.tokenizer
        prompt = renderer.prompt(ChatRequest(talk, (Tool("f", description or "d"),)))
        plain = renderer.prompt(ChatRequest(harmless, (Tool("f", "d"),)))
        control = [t for t in prompt.tokens if t in tokenizer.special_ids]
        assert control == [t for t in plain.tokens if t in tokenizer.special_ids]
        assert tokenizer.decode(prompt.tokens, skip_special=False) == prompt.text
        assert content in prompt.text


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ChatRequest((Message("user", "a\ud800b"),)), "messages[0].content"),
        (ChatRequest((Message("user", "a", name="\udfff"),)), "messages[0].name"),
        (
            ChatRequest(
                (
                    Message("user", "a"),
                    Message("assistant", tool_calls=(ToolCall("", "f", "\ud800"),)),
                )
            ),
            "messages[1].tool_calls[0]",
        ),
        (
            ChatRequest((A,), (Tool("f", "\ud800"),)),
            "tools[0].function.description",
        ),
        (
            ChatRequest((A,), (Tool("f", "", {"x": ["\ud800"]}),)),
            "tools[0].function.parameters",
        ),
        (ChatRequest((A,), stop=("x", "\ud800")), "stop[1]"),
        (ChatRequest((A,), stop=("",)), "stop[0]"),
        (ChatRequest(()), "messages"),
        (
            ChatRequest((A,), template_args={"messages": []}),
            "chat_template_kwargs",
        ),
        (
            ChatRequest((A,), template_args={"x": "\ud800"}),
            "chat_template_kwargs",
        ),
        (ChatRequest((A,), continue_last=True), "continue_final_message"),
    ],
)
def test_bad_requests_name_the_field(hermes, request_, field):
    with pytest.raises(RequestError) as caught:
        hermes.prompt(request_)
    assert caught.value.field == field


def test_a_bottomless_schema_is_refused(hermes):
    schema = {}
    for _ in range(5000):
        schema = {"properties": {"a": schema}}
    with pytest.raises(RequestError, match="nested"):
        hermes.prompt(ChatRequest((A,), (Tool("f", "", schema),)))


def test_template_arguments_reach_the_template(marked):
    renderer = Renderer.of(marked, ChatTemplate("{{ messages[0].content }} {{ effort }}"))
    request = ChatRequest((Message("user", "q"),), template_args={"effort": "high"})
    assert renderer.prompt(request).text == "q high"


# --- going on with an answer ----------------------------------------------------------------------


def test_an_answer_is_gone_on_with(hermes):
    talk = (Message("user", "q"), Message("assistant", "The wheel <|im_end|> ", reasoning="r"))
    prompt = hermes.prompt(ChatRequest(talk, continue_last=True))
    assert prompt.text.endswith("</think>\n\nThe wheel <|im_end|> ")
    assert not prompt.in_reasoning


def test_a_thinking_is_gone_on_with(hermes):
    talk = (Message("user", "q"), Message("assistant", "", reasoning="so the"))
    prompt = hermes.prompt(ChatRequest(talk, continue_last=True))
    assert prompt.text.endswith("<think>\nso the")
    assert prompt.in_reasoning


def test_a_template_that_drops_the_last_answer(marked):
    renderer = Renderer.of(marked, ChatTemplate("{{ messages[0].content }}"))
    talk = (Message("user", "q"), Message("assistant", "x"))
    with pytest.raises(RequestError) as caught:
        renderer.prompt(ChatRequest(talk, continue_last=True))
    assert caught.value.field == "continue_final_message"


# --- without a template, and plain completions ----------------------------------------------------


def test_without_a_template_completions_still_work(fallback):
    renderer = Renderer.of(fallback, None)
    with pytest.raises(RequestError, match="no chat template") as caught:
        renderer.prompt(ChatRequest((Message("user", "q"),)))
    assert caught.value.field == "messages"
    prompt = renderer.completion_prompt("the")
    assert prompt.tokens[0] == fallback.bos_id
    detokenizer = renderer.completion_detokenizer()
    ids = fallback.encode("the", special=False)
    assert "".join(map(detokenizer.feed, ids)) == " the"
    with pytest.raises(RequestError, match="surrogate"):
        renderer.completion_prompt("\ud800")
