"""MODEL as the user typed it -> a folder -> a loaded session; heavy imports come last."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.ahead import importing_torch
from headrace.cli.environment import home
from headrace.config import EngineConfig
from headrace.errors import CheckpointError, ConfigError
from headrace.weights.hub import Reference, pulled

if TYPE_CHECKING:
    from headrace.api.session import Session
    from headrace.engine.client import EngineClient
    from headrace.engine.engine import Engine
    from headrace.engine.request import Sampling
    from headrace.weights.checkpoint import Checkpoint

Progress = Callable[[int, int], None]
WHAT_WORKS = "a folder of safetensors files, a GGUF file, a hub id that was pulled, or `demo`"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to answer. `path`: its folder, or its GGUF file."""

    path: Path
    name: str
    session: Session
    client: EngineClient
    engine: Engine
    defaults: Sampling


def resolve(model: str, progress: Progress) -> Path:
    """The folder or GGUF file of a model; builds the demo model if it is not there yet.

    Raises ConfigError for what cannot be served by this version, CheckpointError for what is not
    there.
    """
    if model == "demo":
        from headrace import demo  # noqa: PLC0415 start-up time

        return Path(demo.ensure(home(), progress))
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        if path.name in ("config.json", "model.safetensors") or path.suffix == ".safetensors":
            return path.parent
        if path.suffix == ".gguf":
            return path
        raise ConfigError(f"{model} is a file that cannot be served", expected=WHAT_WORKS)
    reference = Reference.parse(model)
    if reference is not None:
        found = pulled(reference, home())
        if found is not None:
            return found
        begun = reference.folder(home()).is_dir()
        raise ConfigError(
            f"{model} is not all here yet" if begun else f"{model} is no folder here",
            expected=WHAT_WORKS,
            fix=f"headrace pull {model}",
        )
    raise CheckpointError(f"there is no model {model!r}", expected=WHAT_WORKS, fix="check the path")


@contextlib.contextmanager
def loaded(model: str, config: EngineConfig, progress: Progress) -> Iterator[Loaded]:
    """A loaded model, closed at the end. Raises CheckpointError, ConfigError, CapacityError."""
    path = resolve(model, progress)
    made = load(path, config, progress, name=name_of(model, path))
    try:
        yield made
    finally:
        made.client.close()


def name_of(model: str, path: Path) -> str:
    """What a server calls the model."""
    if model == "demo" or not Path(model).expanduser().exists():
        return model
    return path.resolve().name.removesuffix(".gguf")


def load(path: Path, config: EngineConfig, progress: Progress, *, name: str) -> Loaded:
    """Reads weights, tokenizer and template at the same time; the disk starts before torch does."""
    from headrace.engine.opening import open_engine  # noqa: PLC0415 start-up time

    opening = open_engine(path, config, home=home())
    try:
        side = _Side(path, opening.source.checkpoint)
        with importing_torch():
            from headrace.engine.client import EngineClient  # noqa: PLC0415 start-up time
            from headrace.engine.engine import Engine  # noqa: PLC0415 torch takes seconds

        side.wait()  # its faults are found before the weights are waited for
        engine = Engine.start(opening, progress)
    except BaseException:
        opening.reading.cancel()
        raise
    client = EngineClient(engine)
    session = side.session(client, engine.context)
    return Loaded(path, name, session, client, engine, side.defaults())


class _Side:
    """Tokenizer and template, read on another thread while the weights come."""

    def __init__(self, path: Path, checkpoint: Checkpoint) -> None:
        self._path, self._checkpoint = path, checkpoint
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        from headrace.api.sampling import (  # noqa: PLC0415 start-up time
            checkpoint_defaults,
            proposed,
        )
        from headrace.chat.gguf import sampling_of  # noqa: PLC0415 start-up time
        from headrace.chat.renderer import Renderer  # noqa: PLC0415 start-up time
        from headrace.weights.gguf_checkpoint import GgufCheckpoint  # noqa: PLC0415 start-up time

        checkpoint = self._checkpoint
        try:
            if isinstance(checkpoint, GgufCheckpoint):
                said = checkpoint.metadata
                self._renderer = Renderer.from_gguf(said, checkpoint.config, str(checkpoint.path))
                self._defaults = proposed(sampling_of(said))
            else:
                self._renderer = Renderer.from_folder(self._path)
                self._defaults = checkpoint_defaults(self._path)
        except Exception as error:  # raised again where the result is asked for
            self._error = error

    def wait(self) -> None:
        """Raises what went wrong there."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def session(self, client: EngineClient, context: int) -> Session:
        from headrace.api.session import Session  # noqa: PLC0415 start-up time

        renderer = replace(self._renderer, most_tokens=context)
        return Session(renderer, client, context=context)

    def defaults(self) -> Sampling:
        return self._defaults
