"""float32, bfloat16 and float16: decoding widens exactly, encoding rounds to nearest even."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.formats.format import BFLOAT16, FLOAT16, FLOAT32, Format

DTYPES = {FLOAT32: torch.float32, BFLOAT16: torch.bfloat16, FLOAT16: torch.float16}
FORMAT_OF = {dtype: format_ for format_, dtype in DTYPES.items()}
CODES = {dtype: format_.code for format_, dtype in DTYPES.items()}


def decode(x: Tensor) -> Tensor:
    """The same values as float32; `x` itself where it is float32 already."""
    assert x.dtype in FORMAT_OF, x.dtype
    return x.to(torch.float32)


def encode(x: Tensor, format_: Format) -> Tensor:
    """float32 values rounded to nearest, ties to even, as `format_` holds them."""
    return x.to(DTYPES[format_])
