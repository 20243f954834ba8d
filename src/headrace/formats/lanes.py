"""Tiles whose 16 rows lie in lanes, as rows of blocks again (native/format.hpp). No torch."""

from __future__ import annotations

import numpy as np

from headrace.formats.format import LANE_ROWS, Format
from headrace.formats.recipe import Array


def rows_of(tiles: Array, format_: Format) -> Array:
    """Blocks of tiles without their heads: uint8 [rows, bytes], a block's scales before its
    codes.
    """
    groups = tiles.reshape(len(tiles), -1, format_.group_bytes)
    head = format_.group_bytes // LANE_ROWS % 4  # codes are whole words
    scales = groups[..., : LANE_ROWS * head].reshape(*groups.shape[:2], LANE_ROWS, head)
    words = groups[..., LANE_ROWS * head :].reshape(*groups.shape[:2], -1, LANE_ROWS, 4)
    codes = words.swapaxes(2, 3).reshape(*groups.shape[:2], LANE_ROWS, -1)
    rows: Array = np.concatenate([scales, codes], -1).swapaxes(1, 2)
    return rows.reshape(len(tiles) * LANE_ROWS, -1)
