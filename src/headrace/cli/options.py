"""Options that several commands share, and the settings they make."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from headrace.config import EngineConfig
from headrace.errors import ConfigError

DEFAULT_MODEL = "demo"
ENGINE, SAMPLING = "Engine", "Sampling"

Model = Annotated[
    str,
    typer.Argument(
        help="A folder, a GGUF file, a pulled hub id, or `demo`, the default.", show_default=True
    ),
]
Device = Annotated[
    str | None,
    typer.Option(help="auto, cpu, cuda or emulated.", rich_help_panel=ENGINE),
]
Dtype = Annotated[
    str | None,
    typer.Option(help="Of activations and KV: auto, float32, bfloat16.", rich_help_panel=ENGINE),
]
Context = Annotated[
    int | None,
    typer.Option(help="Longest sequence in tokens, answer included.", rich_help_panel=ENGINE),
]
Threads = Annotated[
    int | None, typer.Option(help="CPU threads that compute.", rich_help_panel=ENGINE)
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="A TOML file of settings.", rich_help_panel=ENGINE),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="One setting; may be repeated.", rich_help_panel=ENGINE
    ),
]
MaxTokens = Annotated[
    int | None, typer.Option(help="Longest answer in tokens.", rich_help_panel=SAMPLING)
]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy.", rich_help_panel=SAMPLING)]
TopP = Annotated[float | None, typer.Option(rich_help_panel=SAMPLING)]
TopK = Annotated[int | None, typer.Option(rich_help_panel=SAMPLING)]
MinP = Annotated[float | None, typer.Option(rich_help_panel=SAMPLING)]
Seed = Annotated[
    int | None, typer.Option(help="The same seed, the same answer.", rich_help_panel=SAMPLING)
]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="Text that ends the answer; may be repeated.", rich_help_panel=SAMPLING),
]
System = Annotated[str | None, typer.Option(help="The system message.")]
Thinking = Annotated[
    bool | None,
    typer.Option("--thinking/--no-thinking", help="Whether the model thinks first, if it can."),
]
Repeats = Annotated[int, typer.Option(min=1, help="Runs; the median is reported.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


def engine_config(config: Path | None, settings: list[str] | None, **flags: Any) -> EngineConfig:
    """The file, then `--set`, then flags; later ones win. Raises ConfigError."""
    made = EngineConfig.from_file(config) if config is not None else EngineConfig()
    keys: dict[str, Any] = {}
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting}", expected="--set KEY=VALUE")
        keys[key.strip()] = value.strip()
    keys |= {key: value for key, value in flags.items() if value is not None}
    return made.with_keys(keys)


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose dataclass parameters stand for their fields: options that commands share."""
    kinds = get_type_hints(command, include_extras=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = kinds[parameter.name]
        if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=kind))
            continue
        groups[parameter.name] = kind
        within = get_type_hints(kind, include_extras=True)
        parameters += [
            parameter.replace(
                name=field.name,
                kind=parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=within[field.name],
            )
            for field in dataclasses.fields(kind)
        ]

    @wraps(command)
    def run(**given: Any) -> None:
        for name, kind in groups.items():
            taken = {field.name: given.pop(field.name) for field in dataclasses.fields(kind)}
            given[name] = kind(**taken)
        command(**given)

    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__dict__["__signature__"] = inspect.Signature(parameters)
    return run
