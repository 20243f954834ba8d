"""`headrace run`: one answer on standard output."""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
import time
from typing import Annotated, Any

import typer

from headrace.cli import ahead, options
from headrace.errors import RequestError

GRACE_S = 0.2  # for piped text that is about to come


def run(
    model: options.Model = options.DEFAULT_MODEL,
    prompt: Annotated[
        str | None,
        typer.Argument(help="What to answer; `-` or none: standard input. Piped text is appended."),
    ] = None,
    system: options.System = None,
    thinking: options.Thinking = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Go on from the prompt, without the chat template.")
    ] = False,
    as_json: options.Json = False,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    context: options.Context = None,
    threads: options.Threads = None,
    config: options.ConfigFile = None,
    settings: options.Settings = None,
) -> None:
    """Answer one prompt on standard output."""
    ahead.begin()
    from headrace.cli.answer import check_sampling, sampling_fields  # noqa: PLC0415 start-up time
    from headrace.cli.environment import start_logging  # noqa: PLC0415 start-up time
    from headrace.cli.meter import Meter  # noqa: PLC0415 start-up time
    from headrace.cli.model import loaded  # noqa: PLC0415 start-up time

    start_logging("warning")
    start = time.monotonic()
    piped = Piped(prompt)
    engine = options.engine_config(
        config, settings, device=device, dtype=dtype, context=context, threads=threads
    )
    sampling = sampling_fields(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        stop=stop,
    )
    check_sampling(sampling)
    with Meter("loading") as meter, loaded(model, engine, meter.show) as made:
        meter.clear()
        text = piped.joined()
        body = _raw_body(text, sampling) if raw else _chat_body(text, system, thinking, sampling)
        load_s = time.monotonic() - start
        _answer(made, body, load_s=load_s, raw=raw, as_json=as_json)


def _chat_body(
    text: str, system: str | None, thinking: bool | None, sampling: dict[str, Any]
) -> dict[str, Any]:
    from headrace.cli.answer import chat_body  # noqa: PLC0415 start-up time

    messages = [{"role": "system", "content": system}] if system else []
    return chat_body([*messages, {"role": "user", "content": text}], thinking, sampling)


def _raw_body(text: str, sampling: dict[str, Any]) -> dict[str, Any]:
    # The command has no default limit, unlike the HTTP API.
    return {"prompt": text, "max_tokens": 1 << 30, **sampling}


def _answer(made: Any, body: dict[str, Any], *, load_s: float, raw: bool, as_json: bool) -> None:
    from headrace.cli.answer import answer  # noqa: PLC0415 start-up time
    from headrace.cli.screen import Screen  # noqa: PLC0415 start-up time

    screen = Screen(quiet=as_json)
    try:
        report = answer(made, body, screen.write, raw=raw)
    finally:
        screen.end()
    if as_json:
        result = {
            "model": made.name,
            "text": report.text,
            "reasoning": report.reasoning or None,
            "finish": report.finish,
            "prompt_tokens": report.prompt_tokens,
            "completion_tokens": report.completion_tokens,
            "load_s": round(load_s, 4),
            "first_token_s": round(report.first_token_s, 4),
            "total_s": round(report.total_s, 4),
            "tokens_per_s": round(report.tokens_per_s, 2),
        }
        sys.stdout.write(json.dumps(result, ensure_ascii=False) + "\n")


class Piped:
    """Standard input, read while the model loads.

    With a prompt on the command line, a pipe that brings nothing until the model is ready counts
    as empty: many programs start others with a pipe that they never write to or close.
    """

    def __init__(self, prompt: str | None) -> None:
        self._asked = prompt is None or prompt == "-"
        self._prompt = "" if self._asked else prompt or ""
        self._parts: list[bytes] = []
        self._patience = time.monotonic() + GRACE_S
        self._thread: threading.Thread | None = None
        if self._asked and sys.stdin.isatty() and prompt is None:
            raise RequestError("no prompt", expected="headrace run MODEL PROMPT, or text on a pipe")
        if self._asked or _is_pipe_or_file():
            self._thread = threading.Thread(target=self._read, daemon=True)
            self._thread.start()

    def _read(self) -> None:
        while part := os.read(0, 1 << 16):
            self._parts.append(part)

    def joined(self) -> str:
        """The whole prompt. Raises RequestError when there is none or it is not text."""
        if self._thread is not None:
            wait = max(0.0, self._patience - time.monotonic())
            self._thread.join(None if self._asked or self._parts else wait)
            if self._parts:
                self._thread.join()
            elif self._thread.is_alive():
                sys.stderr.write("headrace: nothing came on standard input; going on without it\n")
        try:
            text = b"".join(self._parts).decode("utf-8")
            self._prompt.encode("utf-8")
        except UnicodeError as error:
            raise RequestError("the prompt is not UTF-8 text", expected="UTF-8") from error
        whole = "\n\n".join(part for part in (self._prompt, text.rstrip("\n")) if part)
        if not whole.strip():
            raise RequestError("an empty prompt", expected="text on the command line or a pipe")
        return whole


def _is_pipe_or_file() -> bool:
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)
