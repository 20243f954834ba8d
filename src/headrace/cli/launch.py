"""`headrace launch`: an agent on a running server. What it will be told is shown first.

Nothing is installed, and the agent's own configuration is not touched.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.address import Address
from headrace.cli import options
from headrace.cli.agents import AGENTS, KEY_NAME, Agent, Endpoint, Setup, cloud_names
from headrace.cli.ctl import WHERE, ApiKey, Server
from headrace.cli.environment import home
from headrace.cli.remote import Remote
from headrace.errors import ConfigError

SECRETS = (KEY_NAME, "ANTHROPIC_AUTH_TOKEN")


def launch(
    agent: Annotated[str, typer.Argument(help="One of " + ", ".join(AGENTS) + ".")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="For the agent, behind a `--`.")
    ] = None,
    server: Server = WHERE,
    api_key: ApiKey = None,
    model: Annotated[str | None, typer.Option(help="Else the first one that is served.")] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens that fit; else the server is asked.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be set, and stop.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Start a coding agent on a running server."""
    if agent not in AGENTS:
        raise ConfigError(f"unknown agent {agent!r}", expected="one of " + ", ".join(AGENTS))
    endpoint = _endpoint(server, api_key, model, context)
    start = Start.of(AGENTS[agent], endpoint, home() / "launch" / agent, arguments or [])
    if as_json and dry_run:
        sys.stdout.write(json.dumps(start.told()) + "\n")
    else:
        (sys.stdout if dry_run else sys.stderr).write(start.text())
    if dry_run:
        return
    found = shutil.which(start.agent.command)
    if found is None:
        raise ConfigError(
            f"{start.agent.command} is not installed, or not on PATH",
            fix=f"install it with: {start.agent.install}",
        )
    start.write()
    sys.stderr.flush()
    # The terminal and its signals are the agent's from here on.
    os.execve(found, start.command, start.environment(dict(os.environ)))


def _endpoint(server: str, api_key: str | None, model: str | None, context: int | None) -> Endpoint:
    remote = Remote(server, api_key)
    if model is None or context is None:
        served = _served(remote, server)
        model = model or served[0]
        context = context or served[1]
    return Endpoint(Address.parse(server, "--server").base, model, context, api_key)


def _served(remote: Remote, server: str) -> tuple[str, int]:
    try:
        first = json.loads(remote.call("GET", "/v1/models"))["data"][0]
        return str(first["id"]), int(first["max_model_len"])
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{server} does not say what it serves", fix="give --model and --context"
        ) from error


@dataclass(frozen=True, slots=True)
class Start:
    """One agent, ready to be started."""

    agent: Agent
    setup: Setup
    folder: Path
    arguments: tuple[str, ...]
    cleared: tuple[str, ...]  # of this process's environment

    @classmethod
    def of(cls, agent: Agent, endpoint: Endpoint, folder: Path, arguments: list[str]) -> Start:
        setup = agent.setup(endpoint, folder)
        cleared = [name for name in cloud_names(os.environ) if name not in setup.environment]
        return cls(agent, setup, folder, tuple(arguments), tuple(cleared))

    @property
    def command(self) -> list[str]:
        return [self.agent.command, *self.setup.arguments, *self.arguments]

    def environment(self, given: dict[str, str]) -> dict[str, str]:
        """The child's: `given` without keys of hosted models, and with ours."""
        kept = {name: value for name, value in given.items() if name not in self.cleared}
        return kept | self.setup.environment

    def write(self) -> None:
        """The files. Raises ConfigError where that is not possible."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, text in self.setup.files.items():
                path = self.folder / name
                fresh = path.with_name(name + ".new")
                fresh.write_text(text, encoding="utf-8")
                fresh.replace(path)
        except OSError as error:
            raise ConfigError(f"cannot write below {self.folder}: {error.strerror}") from error

    def told(self) -> dict[str, Any]:
        shown = {k: "***" if k in SECRETS else v for k, v in self.setup.environment.items()}
        return {
            "files": {str(self.folder / name): text for name, text in self.setup.files.items()},
            "environment": shown,
            "cleared": list(self.cleared),
            "command": self.command,
        }

    def text(self) -> str:
        told = self.told()
        lines: list[str] = []
        for path, text in told["files"].items():
            lines += [f"file {path}", *(f"  {line}" for line in text.splitlines()), ""]
        lines += ["environment", *(f"  {k}={v}" for k, v in told["environment"].items())]
        lines += [f"  {name} cleared" for name in told["cleared"]]
        return "\n".join([*lines, "", "command", "  " + shlex.join(told["command"]), ""])
