"""Torch as the commands import it: without what only tracing uses, and as able to compute."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from headrace.cli.ahead import importing_torch

with importing_torch():
    import torch
assert torch.__version__.startswith("2.13.") == ("torch._decomp" not in sys.modules)
a = torch.randn(3, 3, dtype=torch.float64)
torch.testing.assert_close(torch.linalg.inv(a) @ a, torch.eye(3, dtype=torch.float64))
q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
weights = torch.softmax(q @ k.mT / 2, -1)
torch.testing.assert_close(torch.nn.functional.scaled_dot_product_attention(q, k, v), weights @ v)
print("well")
"""


def test_torch_computes_without_what_is_left_out() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "well\n", done.stderr
