"""What this server serves, and under which names."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from headrace.api.errors import UnknownModel
from headrace.api.fields import shown
from headrace.engine.request import Sampling


@dataclass(frozen=True, slots=True)
class Served:
    """`names[0]` is the model's id.

    Agents send whatever name they were built with. So any name is accepted and echoed, unless the
    user gave names (`--served-name`): then `exact` holds, and another name is 404.
    """

    names: tuple[str, ...]
    context: int
    defaults: Sampling = field(default_factory=Sampling)
    exact: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    family: str = ""

    @property
    def id(self) -> str:
        return self.names[0]

    def name_for(self, asked: str | None) -> str:
        """The name to answer under. Raises UnknownModel (404)."""
        if asked is None or asked == "":
            return self.id
        if self.exact and asked not in self.names:
            raise UnknownModel(
                f"the model {shown(asked)} is not served here",
                field="model",
                expected="one of " + ", ".join(self.names),
            )
        return asked

    def listing(self) -> list[dict[str, Any]]:
        return [self.card(name) for name in self.names]

    def card(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "headrace",
            "max_model_len": self.context,
            "context_length": self.context,
            "meta": {"family": self.family} if self.family else {},
        }
