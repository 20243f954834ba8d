"""The learned part: routers and low-rank expert deltas, shipped as `deltas.safetensors` (F16).

Every tensor is stacked over layers. With L layers, E experts, rank R, hidden H, width F:
router [L, E, H]; in_gate, in_up [L, E*R, H]; in_down [L, E*R, F]; out_gate, out_up [L, E*R, F];
out_down [L, E*R, H]. Expert e's matrix is the parent's plus out[e].T @ in[e].
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from headrace.errors import CheckpointError

PATH = Path(__file__).with_name("deltas.safetensors")
_PARTS = ("gate", "up", "down")


class Deltas:
    """Routers and deltas of all layers. Raises CheckpointError when the file is missing or torn."""

    def __init__(self, path: Path = PATH) -> None:
        try:
            with safe_open(path, framework="numpy") as file:
                tensors: dict[str, NDArray[np.float16]] = {
                    name: file.get_tensor(name)
                    for name in file.keys()  # noqa: SIM118
                }
            self._router = tensors["router"]
            self._down = {part: tensors[f"in_{part}"] for part in _PARTS}
            self._up = {part: tensors[f"out_{part}"] for part in _PARTS}
        except (OSError, SafetensorError, KeyError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({error})",
                expected="the learned deltas that are part of the package",
                fix="install headrace again",
            ) from error
        self.layers, self.experts, self.hidden = self._router.shape
        self.rank = self._down["gate"].shape[1] // self.experts
        self.width = self._down["down"].shape[2]

    def router(self, layer: int) -> NDArray[np.float32]:
        """Router of a layer, [E, H]."""
        router: NDArray[np.float32] = self._router[layer].astype(np.float32)
        return router

    def delta(self, layer: int, expert: int, part: str) -> NDArray[np.float32]:
        """What expert `expert` adds to the parent's `gate`, `up` or `down` matrix, [out, in]."""
        rows = slice(expert * self.rank, (expert + 1) * self.rank)
        into = self._down[part][layer, rows].astype(np.float32)
        out = self._up[part][layer, rows].astype(np.float32)
        product: NDArray[np.float32] = out.T @ into
        return product
