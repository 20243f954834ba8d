"""Hand-made checkpoints for tests of reading, byte by byte."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

TAGS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int8: "I8"}


def raw(file: Path, header: object, data: bytes) -> Path:
    """A file with any header at all."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return file


def save(file: Path, tensors: Mapping[str, Tensor], *, pad: int = 0) -> Path:
    """A correct file; `pad` spaces behind the header move the data off its alignment to 8 bytes."""
    header: dict[str, Any] = {}
    data = b""
    for name, tensor in tensors.items():
        part = tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        span = [len(data), len(data) + len(part)]
        header[name] = {
            "dtype": TAGS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": span,
        }
        data += part
    text = json.dumps(header).encode()
    return raw(file, text + b" " * (-len(text) % 8 + pad), data)
