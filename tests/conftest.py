"""What all tests share: a home of their own, and uninitialised memory that shows."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

sys.path.append(str(Path(__file__).parent / "fixtures"))  # for `import tiny`, `import drive`

for name, examples in {"headrace": 40, "long": 2000}.items():  # --hypothesis-profile=long
    settings.register_profile(
        name,
        deadline=None,
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
settings.load_profile("headrace")

# A job in a shell's background is started without interrupts, and so would be what tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's HEADRACE_HOME, or is steered by the shell it runs in."""
    home = tmp_path_factory.getbasetemp() / "home"
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    monkeypatch.delenv("HEADRACE_LOG", raising=False)


@pytest.fixture
def nan_empties(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.empty`, `empty_like` and `new_empty` of floats give NaN: unwritten results show."""
    import torch

    def filled(make: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            made = make(*args, **kwargs)
            return made.fill_(float("nan")) if made.is_floating_point() else made

        return call

    monkeypatch.setattr(torch, "empty", filled(torch.empty))
    monkeypatch.setattr(torch, "empty_like", filled(torch.empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", filled(torch.Tensor.new_empty))
