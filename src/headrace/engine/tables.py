"""Which block holds what of each sequence, as the ops read it: one for all layers that look back at
the same. Buffers never move.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.cache.blocks import Table
from headrace.engine.request import RequestId
from headrace.engine.step import Span

Row = NDArray[np.int32]


class BlockTables:
    """Of at most `sequences` spans with `tokens` tokens in all."""

    def __init__(self, tokens: int, sequences: int, blocks: int, *, size: int) -> None:
        """`blocks`: of the longest sequence; `size`: tokens of one."""
        self._size = size
        self._kv_slots = np.zeros(tokens, dtype=np.int64)
        self._table = np.zeros((sequences, blocks), dtype=np.int32)
        self._rows: dict[RequestId, tuple[tuple[int, ...], Row]] = {}

    def fill(self, spans: Sequence[Span], tables: Sequence[Table]) -> None:
        """[spans, blocks of the longest sequence], zero-filled where a sequence holds none.

        A row is converted only when a sequence got a block: its tuple is then another object.
        """
        rows, at = self._rows, 0
        self._rows = {}
        for span, (first, blocks), row in zip(spans, tables, self._table, strict=False):
            known = rows.get(span.request)
            if known is None or known[0] is not blocks:
                known = (blocks, np.array(blocks, dtype=np.int32))
            self._rows[span.request] = known
            end = first + len(blocks)
            if first:
                row[:first] = 0
            row[first:end] = known[1]
            row[end:] = 0
            self._fill(span, at, row)
            at += span.length

    def views(self, spans: int, tokens: int) -> tuple[Tensor, Tensor]:
        """blocks_SB and kv_slots_T, as far as so many fill them."""
        return torch.from_numpy(self._table[:spans]), torch.from_numpy(self._kv_slots[:tokens])

    def _fill(self, span: Span, at: int, row: Row) -> None:
        """KV slots of one span, from `at` on."""
        size, start = self._size, span.start
        if len(span.tokens) == 1:
            self._kv_slots[at] = int(row[start // size]) * size + start % size
            return
        end = at + span.length
        positions = np.arange(start, start + span.length)
        self._kv_slots[at:end] = row[positions // size].astype(np.int64) * size
        self._kv_slots[at:end] += positions % size
