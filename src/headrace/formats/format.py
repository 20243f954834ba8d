"""What a number format is: its tags, its size, its number in the native kernels. No torch.

Weights lie as tiles of whole rows, scales among them; the tables below are the only place where
tags are spelled. native/format.hpp computes the same sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Format:
    """`tag` is the word that published files use for a tensor of it, "" where it is made of
    several; `code` the number that native calls take.

    A tile is `tile_rows` rows: `head_bytes`, and `order_bytes` for every column, then
    `group_bytes` for every `group` columns, then `bits` for every column of every row.
    `element_bytes` is set for plain floats alone.
    """

    name: str
    tag: str
    code: int
    element_bytes: int = 0
    tile_rows: int = 1
    head_bytes: int = 0
    order_bytes: int = 0
    group: int = 1
    group_bytes: int = 0
    bits: int = 0
    multiple: int = 1  # columns are one of it

    @property
    def packed(self) -> bool:
        """Not plain floats."""
        return not self.element_bytes

    def tile_nbytes(self, columns: int) -> int:
        """Bytes of a tile of `columns`."""
        if self.element_bytes:
            return columns * self.element_bytes
        groups = -(-columns // self.group) * self.group_bytes
        head = self.head_bytes + self.order_bytes * columns
        return head + groups + self.tile_rows * columns * self.bits // 8

    def row_nbytes(self, columns: int) -> int:
        """The same for one of its rows, where they share nothing."""
        return self.tile_nbytes(columns) // self.tile_rows

    def tiles(self, rows: int) -> int:
        """Tiles that hold `rows`; the last may be filled up."""
        return -(-rows // self.tile_rows)

    def nbytes(self, rows: int, columns: int) -> int:
        """Bytes of a whole matrix."""
        return self.tiles(rows) * self.tile_nbytes(columns)


FLOAT32 = Format("float32", "F32", 0, 4)
BFLOAT16 = Format("bfloat16", "BF16", 1, 2)
FLOAT16 = Format("float16", "F16", 2, 2)
FP8_ROW = Format("fp8-row", "", 4, head_bytes=4, bits=8)
FLOATS = (FLOAT32, BFLOAT16, FLOAT16)

GROUP_SHIFT, ZEROS_SHIFT = 8, 24  # of a code


def fp8_block(group: int) -> Format:
    """E4M3; a float32 scale for `group` columns of 8 rows."""
    code = 3 | group << GROUP_SHIFT
    return Format("fp8", "", code, tile_rows=8, group=group, group_bytes=4, bits=8)


def mxfp8(group: int = 32) -> Format:
    """E4M3; an E8M0 scale a group."""
    code = 5 | group << GROUP_SHIFT
    return Format("mxfp8", "", code, group=group, group_bytes=1, bits=8, multiple=group)


def mxfp4(group: int = 32) -> Format:
    """E2M1, the even column in the low nibble; an E8M0 scale a group."""
    code = 6 | group << GROUP_SHIFT
    return Format("mxfp4-rows", "", code, group=group, group_bytes=1, bits=4, multiple=group)


def int4(group: int, *, bf16_scales: bool, zeros: bool) -> Format:
    """Nibbles less 8, or less a zero point a group; a 16-bit scale a group."""
    code = (9 if bf16_scales else 8) | group << GROUP_SHIFT | zeros << ZEROS_SHIFT
    group_bytes = 3 if zeros else 2
    return Format("int4", "", code, group=group, group_bytes=group_bytes, bits=4, multiple=group)


ORDERED_ROWS, MOST_ORDERED = 64, 1 << 16  # rows of a tile, columns
ORDERED = 13  # more than the code of rows without an order


def int4_ordered(group: int, *, bf16_scales: bool, zeros: bool) -> Format:
    """`int4` whose groups are columns from anywhere: an order for 64 rows, then these rows."""
    plain = int4(group, bf16_scales=bf16_scales, zeros=zeros)
    return replace(
        plain,
        name="int4-ordered",
        code=plain.code + ORDERED,
        tile_rows=ORDERED_ROWS,
        order_bytes=2,
        group_bytes=ORDERED_ROWS * plain.group_bytes,
    )


def _ggml(name: str, tag: str, code: int, columns: int, nbytes: int) -> Format:
    return Format(name, tag, code, group=columns, group_bytes=nbytes, multiple=columns)


LANE_ROWS = 16  # of a tile


def _laned(name: str, tag: str, code: int, columns: int, nbytes: int) -> Format:
    """A tile has for each block the scales of all rows, then four bytes of codes of every row, and
    the next four. Blocks of 256 columns are nothing but such words.
    """
    return replace(_ggml(name, tag, code, columns, LANE_ROWS * nbytes), tile_rows=LANE_ROWS)


# E2M1 in lanes: a float32 of every row, then blocks of 32 columns with an E4M3 for each 16. Columns
# that the last block lacks are zeros.
NVFP4 = Format(
    "nvfp4", "", 7, tile_rows=LANE_ROWS, head_bytes=4 * LANE_ROWS, group=32,
    group_bytes=LANE_ROWS * 18, multiple=16,
)  # fmt: skip
NVFP4_COLUMNS = 16  # that share a scale

# As GGUF names its tensor types.
GGML = (
    _laned("q4_0", "Q4_0", 10, 32, 18),
    _ggml("q5_0", "Q5_0", 11, 32, 22),
    _laned("q8_0", "Q8_0", 12, 32, 34),
    _ggml("q2_k", "Q2_K", 13, 256, 84),
    _ggml("q3_k", "Q3_K", 14, 256, 110),
    _laned("q4_k", "Q4_K", 15, 256, 144),
    _ggml("q5_k", "Q5_K", 16, 256, 176),
    _ggml("q6_k", "Q6_K", 17, 256, 210),
    _ggml("iq4_nl", "IQ4_NL", 18, 32, 18),
    _ggml("iq4_xs", "IQ4_XS", 19, 256, 136),
    _laned("mxfp4", "MXFP4", 20, 32, 17),
    _ggml("q4_1", "Q4_1", 23, 32, 20),  # 21 and 22 are ordered ones
    _ggml("q5_1", "Q5_1", 24, 32, 24),
)

LANED = {f.tag: f for f in GGML if f.tile_rows > 1}  # whose rows are put into tiles when read
BY_TAG = {f.tag: f for f in (*FLOATS, *GGML) if f.tag not in LANED}
