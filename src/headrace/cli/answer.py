"""One answer from a loaded model: an OpenAI chat body in, events out, so that CLI and API agree."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.chat.types import ReasoningDelta, TextDelta

if TYPE_CHECKING:
    from headrace.api.call import Call
    from headrace.api.session import Turn
    from headrace.cli.model import Loaded

# Text of the answer, and whether it is the reasoning before it.
Piece = tuple[str, bool]


@dataclass(slots=True)
class Report:
    """What an answer was; `finish` is None when it was cut."""

    text: str = ""
    reasoning: str = ""
    finish: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_token_s: float = 0.0
    total_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Of decoding: the tokens after the first over the time after the first."""
        rest_s = self.total_s - self.first_token_s
        return (self.completion_tokens - 1) / rest_s if rest_s > 0 else 0.0


def sampling_fields(**flags: Any) -> dict[str, Any]:
    """Flags that were given, under the names of the HTTP API."""
    return {name: value for name, value in flags.items() if value not in (None, [])}


def check_sampling(sampling: dict[str, Any]) -> None:
    """Raises RequestError, before a model is loaded for nothing."""
    from headrace.api.fields import Fields  # noqa: PLC0415 start-up time
    from headrace.api.openai import parse_chat  # noqa: PLC0415 start-up time
    from headrace.engine.request import Sampling  # noqa: PLC0415 start-up time

    body = chat_body([{"role": "user", "content": "-"}], None, sampling)
    parse_chat(Fields(body), Sampling())


def chat_body(
    messages: list[dict[str, Any]], thinking: bool | None, sampling: dict[str, Any]
) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": messages, **sampling}
    if thinking is not None:
        body["chat_template_kwargs"] = {"enable_thinking": thinking}
    return body


def answer(
    model: Loaded,
    body: dict[str, Any],
    write: Callable[[str, bool], None],
    *,
    raw: bool = False,
) -> Report:
    """Runs to the end, giving `write` each piece and whether it is reasoning.

    Ctrl-C cancels the sequence and raises KeyboardInterrupt. Raises RequestError or CapacityError.
    """
    from headrace.api.fields import Fields  # noqa: PLC0415 start-up time
    from headrace.api.openai import parse_chat, parse_completion  # noqa: PLC0415 start-up time

    parse = parse_completion if raw else parse_chat
    call = parse(Fields(body), model.defaults)
    report = Report()

    async def work() -> None:
        start = time.monotonic()
        async for text, reasoning in _pieces(model, call, report, start):
            write(text, reasoning)
            if reasoning:
                report.reasoning += text
            else:
                report.text += text
        report.total_s = time.monotonic() - start

    asyncio.run(work())
    return report


async def _pieces(
    model: Loaded, call: Call, report: Report, start: float
) -> AsyncGenerator[Piece, None]:
    from headrace.api.reading import Ended  # noqa: PLC0415 start-up time

    turn: Turn = await model.session.open(call)
    try:
        async for event in turn.events():
            if isinstance(event, Ended):
                report.finish = event.reason
                continue
            report.first_token_s = report.first_token_s or time.monotonic() - start
            for part in event.events:
                if isinstance(part, TextDelta | ReasoningDelta):
                    yield part.text, isinstance(part, ReasoningDelta)
    finally:
        turn.close()
        report.prompt_tokens = turn.usage.prompt
        report.completion_tokens = turn.usage.completion
