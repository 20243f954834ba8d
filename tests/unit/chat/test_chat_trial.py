"""Grammars that take too much are refused before they are compiled where nothing stops them."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from chat_masks import SCHEMA, USER, allowed

from headrace.chat import grammar
from headrace.chat.trial import MAX_JOBS, Trials
from headrace.chat.types import ChatRequest, OutputFormat, Tool, ToolChoice
from headrace.errors import RequestError

ENDLESS = {"type": "integer", "multipleOf": 99_999_989}  # minutes


@pytest.fixture
def trials(monkeypatch):
    grammar._compiled.cache_clear()
    made = Trials(seconds=0.3)
    monkeypatch.setattr(grammar, "_TRIALS", made)
    yield made
    made.close()


def lark(text):
    return json.dumps({"grammars": [{"lark_grammar": text}]})


@pytest.mark.parametrize("schema", [ENDLESS, {"type": "object", "properties": {"a": ENDLESS}}])
def test_a_schema_of_endless_work_is_refused(hermes, trials, schema):
    asked = ChatRequest(USER, format=OutputFormat("json_schema", schema=schema))
    tool = Tool("f", "", {"type": "object", "properties": {"a": schema}}, strict=True)
    forced = ChatRequest(USER, (tool,), tool_choice=ToolChoice("required"))
    for request, field in ((asked, "response_format"), (forced, "tools")):
        with pytest.raises(RequestError, match=r"more than 0\.3 s") as caught:
            hermes.constraint(request, hermes.prompt(ChatRequest(USER)))
        assert caught.value.field == field
    assert trials.started == 2
    fine = ChatRequest(USER, (Tool("f", "", SCHEMA, strict=True),))
    assert hermes.constraint(fine, hermes.prompt(fine))
    assert trials.started == 3


def test_what_was_compiled_is_not_tried_again_and_each_answer_has_its_own(marked, trials):
    asked = OutputFormat("regex", pattern="trial|trail")
    first = grammar.compile_text_constraint(marked, asked)
    number = len(trials._idle)
    for char in "tria":
        first.accept(marked.encode(char, special=False)[0])
    trials.check = None  # it is not callable
    second = grammar.compile_text_constraint(marked, asked)
    assert number == len(trials._idle) == 1
    assert allowed(second, marked) != allowed(first, marked)
    assert {marked.decode([token])[0] for token in allowed(second, marked)} == {"t"}


def test_so_many_are_tried_at_once_and_processes_are_used_again():
    trials = Trials(most=2)
    try:
        with ThreadPoolExecutor(8) as pool:
            texts = [f'start: "a{k}" <[{200_000 + k}]>' for k in range(40)]
            list(pool.map(lambda text: trials.check(lark(text), "f", lexer_fuel=10**6), texts))
        assert 1 <= trials.started == len(trials._idle) <= 2
    finally:
        trials.close()


def test_what_is_no_grammar_passes_and_a_process_that_died_is_replaced():
    trials = Trials()
    try:
        trials.check(lark("start: ("), "f", lexer_fuel=10**6)
        os.kill(trials._idle[0].process.pid, signal.SIGKILL)
        trials._idle[0].process.wait()
        trials.check(lark('start: "a"'), "f", lexer_fuel=10**6)
        assert trials.started == 2
        trials._idle[0]._jobs = MAX_JOBS
        trials.check(lark('start: "a"'), "f", lexer_fuel=10**6)
        assert trials.started == 3
    finally:
        trials.close()
