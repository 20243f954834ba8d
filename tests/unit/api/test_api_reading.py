"""Tokens of one sequence -> deltas and an end, without a server."""

from __future__ import annotations

import pytest
from serving import byte_tokenizer

from headrace.api.openai_wire import Answer, chat_logprobs
from headrace.api.reading import Choice, Ended, RawReader
from headrace.chat.types import TextDelta, ToolCallDelta, ToolCallStart
from headrace.engine.request import Finish, Logprob, RequestId, TokenEvent
from headrace.errors import CapacityError, DeviceError

TOKENIZER = byte_tokenizer()
END = next(iter(TOKENIZER.eos_ids))


class Tap:
    """A stream that is only cancelled."""

    def __init__(self) -> None:
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


def choice_of(stops=()):
    tap = Tap()
    return Choice(0, tap, RawReader(TOKENIZER, stops)), tap


def token(text: str, finish: Finish | None = None) -> TokenEvent:
    [one] = TOKENIZER.encode(text, special=True)
    return TokenEvent(RequestId(1), one, finish, Logprob(one, -1.0))


def read(choice, *events):
    return [out for event in events for out in choice.read(event)]


def text_of(outs) -> str:
    return "".join(e.text for out in outs if not isinstance(out, Ended) for e in out.events)


def test_the_end_token_is_counted_but_is_no_text():
    choice, tap = choice_of()
    outs = read(choice, token("a"), TokenEvent(RequestId(1), END, Finish.STOP, cached=3))
    assert choice.cached == 3
    assert (text_of(outs), outs[-1], choice.tokens) == ("a", Ended(0, "stop"), 2)
    assert tap.cancelled == 0


def test_the_last_token_of_a_length_end_is_text():
    choice, _ = choice_of()
    outs = read(choice, token("a"), token("b", Finish.LENGTH))
    assert (text_of(outs), outs[-1]) == ("ab", Ended(0, "length"))


def test_half_a_character_at_the_end_is_delivered_as_a_replacement():
    choice, _ = choice_of()
    first, _second = TOKENIZER.encode("é", special=False)
    outs = read(choice, TokenEvent(RequestId(1), first, Finish.LENGTH))
    assert text_of(outs) == "\ufffd"


def test_logprobs_wait_for_the_text_of_their_tokens():
    choice, _ = choice_of()
    first, second = TOKENIZER.encode("é", special=False)
    events = [TokenEvent(RequestId(1), t, None, Logprob(t, -1.0)) for t in (first, second)]
    assert choice.read(events[0]) == []
    [delta] = choice.read(events[1])
    assert [p.token for p in delta.logprobs] == [first, second]


def test_a_stop_string_cancels_once_and_wins_over_length():
    choice, tap = choice_of(["b"])
    outs = read(choice, token("a"), token("b", None))
    assert (text_of(outs), outs[-1], tap.cancelled) == ("a", Ended(0, "stop", "b"), 1)
    choice.cancel()
    assert tap.cancelled == 1
    other, _ = choice_of(["b"])
    assert read(other, token("a"), token("b", Finish.LENGTH))[-1] == Ended(0, "stop", "b")


@pytest.mark.parametrize("finish", [Finish.ERROR, Finish.CANCELLED])
def test_an_end_in_error_raises_its_error(finish):
    choice, _ = choice_of()
    error = CapacityError("full")
    with pytest.raises(CapacityError, match="full"):
        choice.read(TokenEvent(RequestId(1), None, finish, error=error))
    other, _ = choice_of()
    with pytest.raises(DeviceError):
        other.read(TokenEvent(RequestId(1), None, finish))


def test_pieces_of_calls_are_put_together():
    from headrace.api.reading import Delta

    answer = Answer()
    answer.add(Delta(0, [ToolCallStart(0, "x", "f"), ToolCallDelta(0, '{"a"')]))
    answer.add(Delta(0, [TextDelta("t"), ToolCallDelta(0, ":1}")]))
    answer.add(Ended(0, "tool_calls"))
    assert answer.calls[0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert (answer.text, answer.finish) == ("t", "tool_calls")


@pytest.mark.parametrize("value", ["-inf", "nan"])
def test_impossible_tokens_stay_valid_json_and_control_tokens_have_no_bytes(value):
    table = chat_logprobs([Logprob(END, float(value))], TOKENIZER)["content"][0]
    assert table["logprob"] == -9999.0
    assert table["bytes"] is None
    assert table["token"] == "<|im_end|>"
