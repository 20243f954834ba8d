"""Rows of experts on their way from disk to slots in RAM.

A slot belongs to the disk from `start` until `finish` or `drop`; after `finish` it holds the row as
kernels read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from headrace._native import DiskQueue
from headrace.formats.float import DTYPES
from headrace.ops.rows import Part, Spread
from headrace.ops.table import ExpertRows
from headrace.planning.facts import ExpertKey
from headrace.weights.arena import Arena
from headrace.weights.packing import pack_from
from headrace.weights.probe import Way, unreadable
from headrace.weights.rows import LayerRows, Placed, RowSource


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
        slots: int,
        *,
        stages: int,
        way: Way,
    ) -> None:
        """At most `stages` rows at once where the source has rows that are put in order. `frames`:
        of each layer its activation and biases, without weights.

        Raises CheckpointError where a file cannot be opened.
        """
        self.source, self._frames, self.way = source, frames, way
        self.slot_bytes = source.slot_bytes
        self._arena = Arena(slots * self.slot_bytes)
        self.memory = torch.frombuffer(self._arena.buffer(0, self._arena.nbytes), dtype=torch.uint8)
        self._stage = Arena(stages * source.stage_bytes) if source.stage_bytes else None
        self._stages = list(range(stages))
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
        base, stage = self._arena.address + slot * self.slot_bytes, None
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
        """All slots as rows of this layer: one object for layers alike, and for ever."""
        rows, frame = self._layer(layer), self._frame(layer)
        kind = (rows.parts, rows.biases, frame.activation, frame.alpha, frame.limit)
        if kind not in self._views:
            count = self.memory.shape[0] // self.slot_bytes
            self._views[kind] = self.slots(layer, 0, count)
        return self._views[kind]

    def slots(self, layer: int, first: int, count: int) -> ExpertRows:
        """Some slots as rows of this layer."""
        rows, step = self._layer(layer), self.slot_bytes
        memory = self.memory[first * step : (first + count) * step]
        gate, up, down = (Spread(memory, _part(placed), count, step) for placed in rows.parts)
        biases = [Spread(memory, _part(placed), count, step) for placed in rows.biases]
        gate_bias, up_bias, down_bias = cast(list[Sequence[Tensor]], biases or [(), (), ()])
        return replace(
            self._frame(layer),
            gate=gate,
            up=up,
            down=down,
            gate_bias=gate_bias,
            up_bias=up_bias,
            down_bias=down_bias,
        )

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
        frame, base = self._frame(coming.key.layer), coming.slot * self.slot_bytes
        kinds = (frame.gate_bias, frame.up_bias, frame.down_bias)
        placed = self._layer(coming.key.layer).biases
        for kind, place in zip(kinds, placed, strict=False):
            _view(self.memory, base, _part(place)).copy_(kind[coming.key.expert])

    def _order(self, coming: Coming) -> None:
        """From the stage to the slot."""
        assert self._stage is not None
        assert coming.stage is not None
        rows = self._layer(coming.key.layer)
        base = coming.stage * self.source.stage_bytes
        if rows.packings:
            for packing, want in zip(rows.packings[coming.key.expert], rows.parts, strict=True):
                tiles = _view(self.memory, coming.slot * self.slot_bytes, _part(want)).numpy()
                at = {name: base + place for name, place in packing.at.items()}
                pack_from(packing.piece, self._stage, at, tiles)
            return
        for have, want in zip(rows.staged[coming.key.expert], rows.parts, strict=True):
            part = _part(have)
            buffer = self._stage.buffer(base + part.offset, part.nbytes)
            flat = torch.frombuffer(buffer, dtype=part.dtype)
            to = _view(self.memory, coming.slot * self.slot_bytes, _part(want))
            to.copy_(flat.as_strided(part.shape, part.strides))


def _part(placed: Placed) -> Part:
    if placed.matrix is None:
        return Part(placed.offset, placed.shape, placed.strides, DTYPES[placed.format])
    packed = placed.format, *placed.matrix
    return Part(placed.offset, placed.shape, placed.strides, torch.uint8, packed)


def _view(memory: Tensor, base: int, part: Part) -> Tensor:
    start = base + part.offset
    flat = memory[start : start + part.nbytes].view(part.dtype)
    return flat.as_strided(part.shape, part.strides)
