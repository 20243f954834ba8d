"""How much a model is asked to think: what its template takes, found by probes at load."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.chat.template import ChatTemplate
from headrace.chat.types import Effort
from headrace.errors import RequestError

_NAMES = ("reasoning_effort", "thinking_effort", "reasoning_strength")
_OFF = ("no_think", "none", "off")
_STEPS: tuple[Effort, ...] = ("minimal", "low", "medium", "high", "max")
_FREE = "zqz"  # no template's own word
# Where a template writes out whatever it is given, these are what models were trained on.
_USUAL: tuple[Effort, ...] = ("low", "medium", "high")


@dataclass(frozen=True, slots=True)
class EffortSwitch:
    """`name` is the template's variable, `steps` what it knows, `off` its word for no thinking."""

    name: str
    steps: tuple[Effort, ...]
    off: str | None

    def word(self, effort: Effort) -> str | None:
        """The step nearest to `effort`, below rather than above; None leaves the default."""
        if effort == "none":
            return self.off
        at = _STEPS.index(effort)
        below = [step for step in self.steps if _STEPS.index(step) <= at]
        if below:
            return below[-1]
        # Less than the least that can be said: no more than little.
        return self.steps[0] if self.steps and self.steps[0] in ("minimal", "low") else None


def find_effort(template: ChatTemplate) -> EffortSwitch | None:
    """What `template` takes; None if it has no such variable."""
    name = next((name for name in _NAMES if name in template.variables), None)
    if name is None:
        return None
    stated = [step for step in _STEPS if _quoted(template, step) and _renders(template, name, step)]
    free = _FREE in (_rendered(template, name, _FREE) or "")
    steps = _USUAL if free and len(stated) < 2 else tuple(stated)
    off = next((w for w in _OFF if _quoted(template, w) and _renders(template, name, w)), None)
    return EffortSwitch(name, steps, off)


def _quoted(template: ChatTemplate, word: str) -> bool:
    return re.search(rf"""(['"]){word}\1""", template.source) is not None


def _renders(template: ChatTemplate, name: str, word: str) -> bool:
    return _rendered(template, name, word) is not None


def _rendered(template: ChatTemplate, name: str, word: str) -> str | None:
    content = [{"type": "text", "text": "q"}] if template.shape.parts else "q"
    try:
        return template.render([{"role": "user", "content": content}], variables={name: word})
    except RequestError:
        return None
