"""Decoding is exact, encoding rounds to nearest even, and tags agree with the safetensors
library.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from headrace.formats.float import CODES, DTYPES, decode, encode
from headrace.formats.format import BFLOAT16, BY_TAG, FLOAT16, FLOATS, Format
from headrace.weights.safetensors import read_table


@pytest.mark.parametrize("format_", FLOATS)
def test_tags_codes_and_sizes(format_: Format, tmp_path: Path) -> None:
    dtype = DTYPES[format_]
    save_file({"x": torch.zeros(3, dtype=dtype)}, tmp_path / "x.safetensors")
    entry = read_table(tmp_path / "x.safetensors")["x"]
    assert BY_TAG[entry.tag] is format_
    assert entry.nbytes == 3 * format_.element_bytes
    assert CODES[dtype] == format_.code


def test_every_16_bit_pattern_survives() -> None:
    patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    for format_ in (BFLOAT16, FLOAT16):
        x = patterns.view(DTYPES[format_])
        finite = ~x.isnan()
        back = encode(decode(x), format_)
        assert torch.equal(back.view(torch.int16)[finite], patterns[finite])
        assert back[~finite].isnan().all()


def test_bfloat16_is_the_upper_half_of_a_float32() -> None:
    x = torch.tensor([1.5, -3.1e-39, 6.02e23]).bfloat16()
    bits = [struct.unpack("<I", struct.pack("<f", v))[0] for v in decode(x).tolist()]
    assert [b >> 16 for b in bits] == [v & 0xFFFF for v in x.view(torch.int16).tolist()]
    assert all(b & 0xFFFF == 0 for b in bits)


def test_ties_round_to_even() -> None:
    one, step = 1.0, 2.0**-7
    ties = torch.tensor([one + step / 2, one + 3 * step / 2])
    assert encode(ties, BFLOAT16).tolist() == [one, one + 2 * step]
