"""What this server serves, and under which names."""

from __future__ import annotations

import fnmatch
import time
from dataclasses import dataclass, field

from headrace.api.errors import UnknownModel
from headrace.api.fields import shown
from headrace.engine.request import Sampling
from headrace.errors import RequestError


@dataclass(frozen=True, slots=True)
class Served:
    """`names[0]` is the model's id; the others are listed beside it.

    Agents send whatever name they were built with. So any name is accepted and echoed, unless the
    user gave names (`--served-name`): then `exact` holds, and a name that is neither one of them
    nor fits one of `patterns` (as of a shell: `claude-*`) is 404.
    """

    names: tuple[str, ...]
    context: int
    defaults: Sampling = field(default_factory=Sampling)
    exact: bool = False
    patterns: tuple[str, ...] = ()
    created: int = field(default_factory=lambda: int(time.time()))
    family: str = ""

    @property
    def id(self) -> str:
        return self.names[0]

    def answers_as(self, asked: str | None) -> str:
        """The name to answer under. Raises UnknownModel (404), RequestError where names are exact
        and there is none."""
        if self.exact and not asked:
            raise RequestError(
                "model: missing", field="model", expected="one of " + ", ".join(self.names)
            )
        return self.name_for(asked)

    def name_for(self, asked: str | None) -> str:
        """The name that is meant; none means the model itself. Raises UnknownModel (404)."""
        if asked is None or asked == "":
            return self.id
        fits = any(fnmatch.fnmatchcase(asked, pattern) for pattern in self.patterns)
        if self.exact and asked not in self.names and not fits:
            raise UnknownModel(
                f"the model {shown(asked)} is not served here",
                field="model",
                expected="one of " + ", ".join((*self.names, *self.patterns)),
            )
        return asked
