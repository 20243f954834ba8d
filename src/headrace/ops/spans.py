"""The shape of a step as the sequence-aware ops see it: which tokens belong to which sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Runs:
    """R runs of the tokens of S sequences, for ops that carry a state: behind a run it can be kept.

    offsets_R1: int32 [R+1], tokens; firsts_S1: int32 [S+1], runs: those of sequence s follow each
    other from firsts[s] to firsts[s+1]; slots_R: int32, its sequence's state slot; keeps_R: int32,
    the slot that gets a copy of the state behind the run, -1 = none.
    """

    offsets_R1: Tensor
    firsts_S1: Tensor
    slots_R: Tensor
    keeps_R: Tensor

    @property
    def count(self) -> int:
        return int(self.slots_R.shape[0])


@dataclass(frozen=True, slots=True)
class Spans:
    """S sequences, T tokens in all; token t of sequence s: offsets[s] <= t < offsets[s+1].

    offsets_S1: int32 [S+1]; contexts_S: int32 [S], tokens already in the caches before this step;
    blocks_SB: int32 [S, B], the KV blocks of each sequence in order, zero-filled behind its own;
    kv_slots_T: int64 [T], where each token's keys and values go (block * block_size + offset);
    states_S: int32 [S], recurrent state slots. All lie on the device.
    """

    offsets_S1: Tensor
    contexts_S: Tensor
    blocks_SB: Tensor
    kv_slots_T: Tensor
    states_S: Tensor
    block_size: int
    runs: Runs | None = None  # None = no state is kept within or behind this step

    @property
    def sequences(self) -> int:
        return int(self.contexts_S.shape[0])
