"""What a number format is: its tags, its size, its number in the native kernels. No torch.

The three tables below are the only place where tags are spelled; codecs live in a file per format.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """`tag` is the safetensors dtype, `code` the number that native calls take."""

    name: str
    tag: str
    code: int
    element_bytes: int


FLOAT32 = Format("float32", "F32", 0, 4)
BFLOAT16 = Format("bfloat16", "BF16", 1, 2)
FLOAT16 = Format("float16", "F16", 2, 2)

FORMATS = (FLOAT32, BFLOAT16, FLOAT16)
BY_TAG = {f.tag: f for f in FORMATS}
