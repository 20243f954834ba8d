"""The fill quotas on the device, kept true while they are used: both branches of every layer are
timed, and a new table is written between steps when it is due.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.device.clock import Observed
from headrace.device.device import Accelerator
from headrace.planning.adapt import AdaptiveQuota
from headrace.planning.profile import ProfileRow

COUNTS = ("uses", "hits", "fills", "host")  # of experts by layers and steps
SHOWN = 17  # entries of a table in the status

Counts = NDArray[np.int32]  # [MoE layers, (active, hits, fills, host)]


class Tuner:
    """The quota tables of all layers. Used by the engine's thread; `status` by any."""

    def __init__(
        self,
        device: Accelerator,
        kinds: Sequence[str | None],
        row_bytes: Sequence[int],
        rows: Mapping[str, ProfileRow],
        fill: str | float,
        *,
        most: int,
        slots: int,
    ) -> None:
        """`kinds`, `row_bytes`: per layer, None where dense. `most`: misses that are tabulated.

        `slots`: of the cache that is filled.
        """
        self._layers = [(i, kind) for i, kind in enumerate(kinds) if kind is not None]
        self._quotas: dict[str, AdaptiveQuota] = {}
        self._tables: dict[str, Tensor] = {}
        for layer, kind in self._layers:
            if kind not in self._quotas:
                quota = AdaptiveQuota(rows[kind], row_bytes[layer], fill, most, slots)
                table_Q = device.empty((len(quota.table),), torch.int32)
                table_Q.copy_(torch.tensor(quota.table))
                self._quotas[kind], self._tables[kind] = quota, table_Q
        self._of = dict(self._layers)
        self.none = device.zeros((2,), torch.int32)
        self.steps = 0
        self._totals = {kind: np.zeros(4, np.int64) for kind in self._quotas}

    def quota(self, layer: int) -> Tensor:
        """`q[m]` of a MoE layer, int32 on the device, always at the same address."""
        return self._tables[self._of[layer]]

    def row(self, kind: str) -> ProfileRow:
        """The rates of a kind of layer as they are believed to be now."""
        return self._quotas[kind].row

    def observe(self, counts: Counts, links: Sequence[Observed], hosts: Sequence[Observed]) -> None:
        """One decode step: what its MoE layers did, in order, and how long both branches took."""
        self.steps += 1
        for (_, kind), told in zip(self._layers, counts, strict=True):
            self._totals[kind] += told
        if not len(links) == len(hosts) == len(self._layers):
            return  # more was observed than the last step
        done = zip(self._layers, counts[:, 1:].tolist(), links, hosts, strict=True)
        for (_, kind), (hits, fills, host), (_, link_ns), (_, host_ns) in done:
            seconds = {"fill_s": link_ns * 1e-9, "host_s": host_ns * 1e-9}
            self._quotas[kind].observe(fills, host, hits=hits, **seconds)
        for kind, quota in self._quotas.items():
            table = quota.retabulate()
            if table is not None:
                self._tables[kind].copy_(torch.tensor(table))

    def resize(self, slots: int) -> None:
        """The cache has so many slots from now on."""
        for quota in self._quotas.values():
            quota.resize(slots)

    def status(self) -> dict[str, Any]:
        """Counts, and for each kind of layer its rates, `q[m]` and branch times; JSON-able."""
        every = np.sum(list(self._totals.values()), axis=0)
        kinds = {
            kind: _counts(self._totals[kind]) | _told(quota) for kind, quota in self._quotas.items()
        }
        return {"decode_steps": self.steps, **_counts(every), "kinds": kinds}


def _counts(totals: NDArray[np.int64]) -> dict[str, int]:
    return dict(zip(COUNTS, totals.tolist(), strict=True))


def _told(quota: AdaptiveQuota) -> dict[str, Any]:
    timings = {branch: asdict(timing) for branch, timing in quota.timings().items()}
    return {"rates": asdict(quota.row), "q": list(quota.table[:SHOWN]), "branches": timings}
