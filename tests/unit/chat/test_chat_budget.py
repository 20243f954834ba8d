"""Limits on thinking, and how much of it is asked for."""

import random

import numpy as np
import pytest
from chat_masks import allowed
from families import EDIT, FAMILIES, renderer_of
from tiny_chat import byte_level_json

from headrace.chat.effort import EffortSwitch, find_effort
from headrace.chat.renderer import Renderer
from headrace.chat.template import ChatTemplate
from headrace.chat.tokenizer import Tokenizer, TokenizerFiles
from headrace.chat.types import ChatRequest, Message, OutputFormat

USER = (Message("user", "q"),)


def drawn(renderer, request, seed, *, avoid=()):
    """A random answer under the request's constraint, and its tokens of thinking."""
    prompt = renderer.prompt(request)
    constraint = renderer.constraint(request, prompt)
    reader = renderer.reader(request, prompt)
    rng = random.Random(seed)
    tokens = []
    for _ in range(120):
        choice = allowed(constraint, renderer.tokenizer)
        free = choice - set(avoid) - renderer.end_ids
        token = rng.choice(sorted(free or choice))
        if token in renderer.end_ids:
            break
        constraint.accept(token)
        reader.feed(token)
        tokens.append(token)
        if constraint.done:
            break
    return tokens, reader.reasoning_tokens


@pytest.mark.parametrize("name", ["xml", "xml_as_text"])
@pytest.mark.parametrize("budget", [1, 7, 30])
def test_a_thinking_ends_when_its_budget_is_used_up(request, name, budget):
    renderer = request.getfixturevalue(name)
    close = renderer.style.think.close
    ends = () if close.token is None else (close.token,)
    ask = ChatRequest(USER, thinking_budget=budget)
    tokens, thought = drawn(renderer, ask, budget, avoid=ends)
    text = renderer.tokenizer.decode(tokens, skip_special=False)
    assert "</think>" in text
    marks = len(renderer.tokenizer.encode("</think>", special=True))
    assert budget <= thought <= budget + marks


def test_a_shorter_thinking_is_left_alone(xml):
    prompt = xml.prompt(ChatRequest(USER))
    constraint = xml.constraint(ChatRequest(USER, thinking_budget=50), prompt)
    everything = allowed(constraint, xml.tokenizer)
    assert everything == set(range(xml.tokenizer.vocab_size))
    for token in [*xml.tokenizer.encode("So.\n</think>\n\n" + "Yes. " * 60, special=True)]:
        assert allowed(constraint, xml.tokenizer) == everything
        constraint.accept(token)
    assert not constraint.done


def test_a_format_holds_after_a_thinking_that_was_ended(xml):
    ask = ChatRequest(USER, thinking_budget=5, format=OutputFormat("regex", pattern="yes|no"))
    close = xml.style.think.close.token
    tokens, _ = drawn(xml, ask, 1, avoid=(close,))
    text = xml.tokenizer.decode(tokens, skip_special=False)
    assert text.partition("</think>")[2].strip() in ("yes", "no")


def test_a_thinking_that_the_answer_opens_counts_too(hermes):
    ask = ChatRequest(USER, thinking_budget=4)
    prompt = hermes.prompt(ask)
    constraint = hermes.constraint(ask, prompt)
    for token in hermes.tokenizer.encode("<think>", special=True):
        constraint.accept(token)
    for _ in range(3):
        assert len(allowed(constraint, hermes.tokenizer)) > 1
        constraint.accept(40)
    assert allowed(constraint, hermes.tokenizer) == {hermes.style.think.close.token}


def test_a_family_without_thinking_has_no_limit():
    renderer = renderer_of(FAMILIES["mistral"])
    ask = ChatRequest(USER, (EDIT,), thinking_budget=5)
    assert renderer.constraint(ask, renderer.prompt(ask)) is None


def test_channels_end_a_thinking_in_their_own_way():
    marks = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|return|>")
    import json

    described = json.loads(byte_level_json(marks=False))
    size = max(described["model"]["vocab"].values()) + 1
    for i, mark in enumerate(marks):
        described["added_tokens"].append(
            {**described["added_tokens"][0], "id": size + i, "content": mark}
        )
    files = TokenizerFiles(config={"eos_token": "<|return|>"})
    tokenizer = Tokenizer.from_json(json.dumps(described), files)
    source = "{{ messages[0].content }}<|start|>assistant{# <|channel|>analysis <|return|> #}"
    renderer = Renderer.of(tokenizer, ChatTemplate(source))
    ask = ChatRequest(USER, thinking_budget=6)
    prompt = renderer.prompt(ask)
    constraint, reader = renderer.constraint(ask, prompt), renderer.reader(ask, prompt)
    text = "<|channel|>analysis<|message|>so "
    for token in tokenizer.encode(text, special=True):
        constraint.accept(token)
        reader.feed(token)
    said = []
    for _ in range(40):
        choice = allowed(constraint, tokenizer) - renderer.end_ids
        token = min(choice) if len(choice) == 1 else 40
        constraint.accept(token)
        reader.feed(token)
        said.append(token)
    assert "<|end|><|start|>assistant<|channel|>final<|message|>" in tokenizer.decode(
        said, skip_special=False
    )
    assert reader.reasoning_tokens == 6


# --- effort ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "switch"),
    [
        ("{{ messages[0].content }}", None),
        (
            "{{ messages[0].content }}{{ reasoning_effort | default('medium') }}",
            EffortSwitch("reasoning_effort", ("low", "medium", "high"), None),
        ),
        (
            "{% if reasoning_effort == 'max' %}M{% endif %}{{ messages[0].content }}",
            EffortSwitch("reasoning_effort", ("max",), None),
        ),
        (
            "{% if reasoning_effort not in ['high', 'low', 'no_think'] %}"
            "{{ raise_exception('no') }}{% endif %}{{ reasoning_effort }}{# 'medium' #}",
            EffortSwitch("reasoning_effort", ("low", "high"), "no_think"),
        ),
    ],
)
def test_what_a_template_knows_of_effort(source, switch):
    assert find_effort(ChatTemplate(source)) == switch


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (("low", "medium", "high"), [None, "low", "low", "medium", "high", "high"]),
        (("high", "max"), [None, None, None, None, "high", "max"]),
        (("low", "high"), [None, "low", "low", "low", "high", "high"]),
    ],
)
def test_the_nearest_step(steps, words):
    switch = EffortSwitch("e", steps, None)
    asked = ("none", "minimal", "low", "medium", "high", "max")
    assert [switch.word(effort) for effort in asked] == words


def test_effort_reaches_the_template(marked):
    source = (
        "{{ messages[0].content }} {{ reasoning_effort | default('-') }} "
        "{{ enable_thinking | default('-') }}{# <think></think> #}"
    )
    renderer = Renderer.of(marked, ChatTemplate(source))
    said = lambda **fields: renderer.prompt(ChatRequest(USER, **fields)).text  # noqa: E731
    assert said() == "q - -"
    assert said(effort="max") == "q high True"
    assert said(effort="none") == "q - False"
    assert said(effort="low", template_args={"reasoning_effort": "own"}) == "q own True"


def test_a_model_that_cannot_but_think_thinks_little(marked):
    renderer = Renderer.of(
        marked, ChatTemplate("{{ messages[0].content }}{{ reasoning_effort | default('-') }}")
    )
    assert renderer.prompt(ChatRequest(USER, effort="none")).text == "qlow"


def test_masks_are_bits_of_the_vocabulary(xml):
    ask = ChatRequest(USER, thinking_budget=3)
    constraint = xml.constraint(ask, xml.prompt(ask))
    words = constraint.mask()
    assert words.dtype == np.int32
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    assert bits.sum() == xml.tokenizer.vocab_size
