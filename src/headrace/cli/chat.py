"""`headrace chat`: a conversation in the terminal, with a model in this process or on a server."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import typer

from headrace.cli import ahead, options
from headrace.cli.complaint import complain
from headrace.cli.screen import Screen
from headrace.errors import HeadraceError

HELP = """\
/system TEXT   set the system message and start over; without TEXT, show it
/reset         forget the conversation
/help          this
/exit          leave (also Ctrl-D; Ctrl-C stops an answer, twice leaves)
A line that ends with \\ goes on in the next one.
"""


class Answers(Protocol):
    """Whoever answers: streams pieces to `write` and returns the whole text."""

    def __call__(
        self, messages: list[dict[str, Any]], write: Callable[[str, bool], None]
    ) -> str: ...


def chat(
    model: options.Model = options.DEFAULT_MODEL,
    server: Annotated[
        str | None, typer.Option(help="Talk to this running server instead of loading a model.")
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="Of the server.")] = None,
    system: options.System = None,
    thinking: options.Thinking = None,
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
    """Talk with a model in the terminal."""
    from headrace.cli.answer import check_sampling, sampling_fields  # noqa: PLC0415 start-up time
    from headrace.cli.environment import start_logging  # noqa: PLC0415 start-up time

    start_logging("warning")
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
    open_end = (
        _remote(server, api_key, thinking, sampling)
        if server is not None
        else _local(model, engine, thinking, sampling)
    )
    with open_end as (name, answers):
        Conversation(answers, name, Talk(system)).run()


@contextlib.contextmanager
def _local(
    model: str, engine: Any, thinking: bool | None, sampling: dict[str, Any]
) -> Iterator[tuple[str, Answers]]:
    ahead.begin()
    from headrace.cli.answer import answer, chat_body  # noqa: PLC0415 start-up time
    from headrace.cli.meter import Meter  # noqa: PLC0415 start-up time
    from headrace.cli.model import loaded  # noqa: PLC0415 start-up time

    with Meter("loading") as meter, loaded(model, engine, meter.show) as made:
        meter.clear()

        def answers(messages: list[dict[str, Any]], write: Callable[[str, bool], None]) -> str:
            return answer(made, chat_body(messages, thinking, sampling), write).text

        yield made.name, answers


@contextlib.contextmanager
def _remote(
    url: str, api_key: str | None, thinking: bool | None, sampling: dict[str, Any]
) -> Iterator[tuple[str, Answers]]:
    from headrace.cli.answer import chat_body  # noqa: PLC0415 start-up time
    from headrace.cli.remote import Remote  # noqa: PLC0415 start-up time

    server = Remote(url, api_key)
    name = server.model()

    def answers(messages: list[dict[str, Any]], write: Callable[[str, bool], None]) -> str:
        return server.answer(chat_body(messages, thinking, sampling), write)

    yield f"{name} at {url}", answers


@dataclass(slots=True)
class Talk:
    """What was said."""

    system: str | None
    turns: list[dict[str, Any]] = field(default_factory=list)

    def messages(self) -> list[dict[str, Any]]:
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.turns]


class Conversation:
    """Reads lines, runs commands, shows answers."""

    def __init__(self, answers: Answers, name: str, talk: Talk) -> None:
        self._answers = answers
        self._name = name
        self._talk = talk
        self._people = sys.stdin.isatty()
        self._interrupts = 0

    def run(self) -> None:
        """Until /exit, the end of input, or two Ctrl-C in a row."""
        if self._people:
            sys.stderr.write(f"{self._name}. /help shows the commands, /exit leaves.\n")
        with _line_editing(wanted=self._people):
            while self._interrupts < 2:
                try:
                    line = self._line()
                except EOFError:
                    break
                except KeyboardInterrupt:
                    self._interrupted("press Ctrl-C again to leave")
                    continue
                if line.startswith("/"):
                    self._interrupts = 0
                    if not self._command(line):
                        break
                elif line.strip():
                    self._interrupts = 0
                    self._turn(line)
        if self._people:
            sys.stderr.write("\n")

    def _line(self) -> str:
        prompt = "> " if self._people else ""
        lines = [input(prompt)]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(input(". " if self._people else ""))
        return "\n".join(lines)

    def _interrupted(self, hint: str) -> None:
        self._interrupts += 1
        if self._interrupts < 2:
            sys.stderr.write(f"\n({hint})\n")

    def _command(self, line: str) -> bool:
        """False to leave."""
        word, _, rest = line.partition(" ")
        match word:
            case "/exit" | "/quit":
                return False
            case "/help":
                sys.stderr.write(HELP)
            case "/reset":
                self._talk.turns.clear()
                sys.stderr.write("(forgotten)\n")
            case "/system":
                self._system(rest.strip())
            case _:
                sys.stderr.write(f"there is no {word}; /help shows the commands\n")
        return True

    def _system(self, text: str) -> None:
        if text:
            self._talk.system = text
            self._talk.turns.clear()
            sys.stderr.write("(system message set; starting over)\n")
        else:
            sys.stderr.write(f"{self._talk.system or '(no system message)'}\n")

    def _turn(self, line: str) -> None:
        self._talk.turns.append({"role": "user", "content": line})
        screen, said = Screen(), []

        def write(text: str, reasoning: bool) -> None:
            if not reasoning:
                said.append(text)
            screen.write(text, reasoning)

        try:
            self._answers(self._talk.messages(), write)
        except KeyboardInterrupt:
            screen.end()
            self._interrupted("stopped; press Ctrl-C again to leave")
        except HeadraceError as error:
            screen.end()
            complain(error)
        screen.end()
        if said:
            self._talk.turns.append({"role": "assistant", "content": "".join(said)})
        else:
            self._talk.turns.pop()


@contextlib.contextmanager
def _line_editing(*, wanted: bool) -> Iterator[None]:
    """Arrow keys and a history of lines that outlives the program."""
    if not wanted:
        yield
        return
    try:
        import readline  # noqa: PLC0415 not on every platform
    except ImportError:
        yield
        return
    from headrace.cli.environment import home  # noqa: PLC0415 start-up time

    past = home() / "history"
    with contextlib.suppress(OSError):
        readline.read_history_file(past)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            past.parent.mkdir(parents=True, exist_ok=True)
            readline.set_history_length(1000)
            readline.write_history_file(past)
            past.chmod(0o600)
