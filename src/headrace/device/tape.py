"""Capturing a step on the CPU: native calls and their addresses, replayed without Python.

Only what the pool computes is on the tape: a capture in which torch computed anything is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from headrace import _native
from headrace.errors import DeviceError

_ALLOCATIONS = {"aten.empty.memory_format", "aten.empty_like.default"}
_VIEWS = {
    f"aten.{name}"
    for name in (
        *("as_strided.default", "view.default", "view.dtype", "_unsafe_view.default"),
        *("_reshape_alias.default", "detach.default", "alias.default", "select.int"),
        *("slice.Tensor", "unbind.int", "split_with_sizes.default"),
    )
}

_READS_BELOW = {"aten._local_scalar_dense.default", "aten.nonzero.default"}

_HOST_READS: set[object] = {
    *(Tensor.tolist, Tensor.numpy, Tensor.item, Tensor.__array__, Tensor.is_nonzero),
    *(Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.__contains__),
    *(Tensor.nonzero, Tensor.equal, torch.nonzero, torch.equal, torch.is_nonzero),
}

_VIEWS_OR_COPIES = {"aten.reshape.default", "aten.contiguous.default", "aten.flatten.using_ints"}


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps what is allocated and names the first operation that computes or copies.

    `strict`: a read of a value by the host raises DeviceError, as it would break a real graph.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled; the default imports the compiler, which takes seconds."""
        return False

    def __init__(self, *, strict: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._strict = strict
        self.kept: list[Tensor] = []
        self.foreign = ""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = str(func)
        if name in _READS_BELOW:
            self.reads(name)
        result = func(*args, **(kwargs or {}))
        if name in _ALLOCATIONS:
            self.kept.append(result)
        elif name not in _VIEWS and not (name in _VIEWS_OR_COPIES and _shared(result, args[0])):
            self.foreign = self.foreign or name
        return result

    def reads(self, name: str) -> None:
        """The host reads a value, which a replay would not do again."""
        if self._strict:
            raise DeviceError(
                f"the host read a value ({name}) while a step was captured",
                expected="all that depends on routing to stay on the device",
            )
        self.foreign = self.foreign or name


class _HostReads(TorchFunctionMode):
    """Tells `watch` of reads, which are no operations: dispatch does not see all of them."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _HOST_READS:
            self._watch.reads(func.__name__)
        return func(*args, **(kwargs or {}))


def _shared(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


class CpuGraph:
    """A captured step. It owns the memory that was allocated while it was captured."""

    def __init__(self, pool: _native.Pool, *, strict: bool = False) -> None:
        self._pool = pool
        self._tape = _native.Tape()
        self._watch = Watch(strict=strict)

    @property
    def foreign(self) -> str:
        """The operation that keeps this capture from being replayed; "" if there is none."""
        return self._watch.foreign

    def replay(self) -> None:
        """Everything again, with inputs and results where they were."""
        assert not self.foreign
        self._tape.replay(self._pool)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """The step is computed as ever, and captured."""
        self._pool.record(self._tape)
        try:
            with self._watch, _HostReads(self._watch):
                yield
        finally:
            self._pool.stop()
