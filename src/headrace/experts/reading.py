"""Rows of experts on their way from disk to slots in RAM.

A slot belongs to the disk from `start` until `finish` or `drop`; after `finish` it holds the row as
kernels read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor

from headrace._native import DiskQueue
from headrace.formats.float import DTYPES
from headrace.formats.packed import Weight
from headrace.ops.rows import Part, spread
from headrace.ops.table import ExpertRows
from headrace.planning.facts import ExpertKey
from headrace.weights.arena import Arena
from headrace.weights.packing import pack_from
from headrace.weights.probe import Way, unreadable
from headrace.weights.rows import LayerRows, Packing, Placed, RowSource

STAGE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Coming:
    """A row that is being read."""

    key: ExpertKey
    slot: int
    ticket: int
    stage: int | None


class RowReader:
    """Reads rows into `slots` slots of `memory`; used by one thread at a time."""

    def __init__(
        self,
        source: RowSource,
        frames: Sequence[ExpertRows | None],
        slots: int | None,
        *,
        stages: int,
        way: Way,
    ) -> None:
        """At most `stages` rows at once where the source has rows that are put in order, and
        fewer, but two, where they would take more than STAGE_BYTES. `frames`:
        of each layer its activation and biases, without weights. `slots` None: a slot of its own
        for every row, which is as wide as its layer's rows, and whose number is its expert's.

        Raises CheckpointError where a file cannot be opened.
        """
        self.source, self._frames, self.way = source, frames, way
        self._steps, self._starts, nbytes = _places(source, slots)
        self._slots = slots or 0
        self._arena = Arena(nbytes)
        self.memory = torch.frombuffer(self._arena.buffer(0, self._arena.nbytes), dtype=torch.uint8)
        self._stage: Arena | None = None
        if source.stage_bytes:
            stages = min(stages, max(2, STAGE_BYTES // source.stage_bytes))
            self._stage = Arena(stages * source.stage_bytes)
        self._stages = list(range(stages))
        self.at_once = stages
        self._views: dict[tuple[object, ...], ExpertRows] = {}
        try:
            files = [str(file) for file in source.files]
            self.queue = DiskQueue(files, way.threads, way.piece_bytes)
        except OSError as error:
            raise unreadable("the experts", error) from error

    @property
    def ready(self) -> bool:
        """Another row can be started."""
        return bool(self._stages)

    def row_bytes(self, layer: int) -> int:
        """That one row moves."""
        return self._layer(layer).read_bytes

    def start(self, key: ExpertKey, slot: int, *, urgent: bool) -> Coming:
        """The row is on its way to `slot`."""
        rows = self._layer(key.layer)
        base, stage = self._arena.address + self._place(key.layer, slot), None
        if rows.stage_bytes:
            assert self._stage is not None
            stage = self._stages.pop()
            base = self._stage.address + stage * self.source.stage_bytes
        spans = [(s.file, s.offset, s.nbytes, base + s.to) for s in rows.spans[key.expert]]
        return Coming(key, slot, self.queue.submit(spans, urgent), stage)

    def finish(self, coming: Coming) -> None:
        """Waits until it is there. Raises CheckpointError where it could not be read."""
        try:
            self.queue.wait(coming.ticket)
            if coming.stage is not None:
                self._order(coming)
            self._put_biases(coming)
        except OSError as error:
            layer, expert = coming.key
            raise unreadable(f"expert {expert} of layer {layer}", error) from error
        finally:
            if coming.stage is not None:
                self._stages.append(coming.stage)

    def drop(self, coming: Coming) -> None:
        """It is not wanted after all."""
        self.queue.drop(coming.ticket)
        if coming.stage is not None:
            self._stages.append(coming.stage)

    def rows(self, layer: int) -> ExpertRows:
        """All slots as rows of this layer, once in each form that its experts have: one object for
        layers alike, and for ever.
        """
        rows, frame = self._layer(layer), self._frame(layer)
        kind = (rows.forms, frame.activation, frame.alpha, frame.limit)
        if kind not in self._views:
            self._views[kind] = self._spread(layer, self._slots, ())
        return self._views[kind]

    def entry(self, key: ExpertKey, slot: int = 0) -> int:
        """Of `rows`: this slot as what the expert looks like."""
        return self._layer(key.layer).form_of[key.expert] * self._slots + slot

    def own(self, layer: int) -> ExpertRows:
        """Where every row has a slot: those of this layer, by expert."""
        form_of = self._layer(layer).form_of
        return self._spread(layer, len(form_of), form_of)

    def _place(self, layer: int, slot: int) -> int:
        """Where a slot begins in `memory`."""
        return self._starts[layer] + slot * self._steps[layer]

    def _spread(self, layer: int, count: int, form_of: Sequence[int]) -> ExpertRows:
        forms, step = self._layer(layer).forms, self._steps[layer]
        memory = self.memory[self._place(layer, 0) : self._place(layer, count)]

        def kind(placed: Sequence[Placed]) -> Sequence[Weight]:
            parts = [_part(one) for one in placed]
            return spread(memory, parts, step, count=count, form_of=form_of)

        gate, *up, down = (kind(placed) for placed in zip(*(f.parts for f in forms), strict=True))
        biases = [kind(placed) for placed in zip(*(f.biases for f in forms), strict=True)]
        gate_bias, up_bias, down_bias = cast(list[Sequence[Tensor]], biases or [(), (), ()])
        return replace(
            self._frame(layer),
            gate=gate,
            up=up[0] if up else (),
            down=down,
            gate_bias=gate_bias,
            up_bias=up_bias,
            down_bias=down_bias,
        )

    def settle(self) -> None:
        """Every row is where it stays: nothing is started again."""
        self._stage, self._stages = None, []

    def close(self) -> None:
        """No read goes on any more."""
        self.queue.close()

    def _layer(self, layer: int) -> LayerRows:
        rows = self.source.layers[layer]
        assert rows is not None, f"layer {layer} is dense"
        return rows

    def _frame(self, layer: int) -> ExpertRows:
        frame = self._frames[layer]
        assert frame is not None
        return frame

    def _put_biases(self, coming: Coming) -> None:
        frame = self._frame(coming.key.layer)
        base = self._place(coming.key.layer, coming.slot)
        kinds = (frame.gate_bias, frame.up_bias, frame.down_bias)
        placed = self._layer(coming.key.layer).form(coming.key.expert).biases
        for kind, place in zip(kinds, placed, strict=False):
            _view(self.memory, base, _part(place)).copy_(kind[coming.key.expert])

    def _order(self, coming: Coming) -> None:
        """From the stage to the slot."""
        assert self._stage is not None
        assert coming.stage is not None
        rows = self._layer(coming.key.layer)
        base = coming.stage * self.source.stage_bytes
        slot = self._place(coming.key.layer, coming.slot)
        parts = rows.form(coming.key.expert).parts
        for have, want in zip(rows.staged[coming.key.expert], parts, strict=True):
            to = _view(self.memory, slot, _part(want))
            if isinstance(have, Packing):
                at = {name: base + place for name, place in have.at.items()}
                pack_from(have.piece, self._stage, at, to.numpy())
                continue
            part = _part(have)
            buffer = self._stage.buffer(base + part.offset, part.nbytes)
            flat = torch.frombuffer(buffer, dtype=part.dtype)
            to.copy_(flat.as_strided(part.shape, part.strides))


def _places(source: RowSource, slots: int | None) -> tuple[list[int], list[int], int]:
    """Of each layer the bytes of a slot and where its first one begins, and the bytes of all."""
    if slots is not None:
        layers, step = len(source.layers), source.slot_bytes
        return [step] * layers, [0] * layers, slots * step
    steps = [rows.slot_bytes if rows else 0 for rows in source.layers]
    counts = [len(rows.form_of) if rows else 0 for rows in source.layers]
    ends = [0, *accumulate(step * count for step, count in zip(steps, counts, strict=True))]
    return steps, ends[:-1], ends[-1]


def _part(placed: Placed) -> Part:
    if placed.matrix is None:
        return Part(placed.offset, placed.shape, placed.strides, DTYPES[placed.format])
    packed = placed.format, *placed.matrix
    return Part(placed.offset, placed.shape, placed.strides, torch.uint8, packed)


def _view(memory: Tensor, base: int, part: Part) -> Tensor:
    start = base + part.offset
    flat = memory[start : start + part.nbytes].view(part.dtype)
    return flat.as_strided(part.shape, part.strides)
