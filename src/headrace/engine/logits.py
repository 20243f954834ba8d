"""What a forward pass leaves: a row of logits per wanted token, and the best token of each.

Both views are made once, so that a replayed step reads its results without a call into torch: after
600 MB of weights have passed through the caches, one such call takes 50 to 100 us.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class Logits:
    """`logits_NV`: float32; `best_N`: int64, -1 for a row that is not finite throughout; None where
    nobody looked.
    """

    __slots__ = ("_best", "rows")

    def __init__(self, logits_NV: Tensor, best_N: Tensor | None = None) -> None:
        self.rows: NDArray[np.float32] = logits_NV.numpy()
        self._best = None if best_N is None else best_N.numpy().data

    @property
    def best(self) -> list[int] | None:
        """The best token of each row, as it is now."""
        return None if self._best is None else self._best.tolist()
