"""A step's tokens as the ops that carry a state take them: sequence by sequence, or in runs behind
which the state is kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.ops.spans import Spans


def walk(spans: Spans) -> Iterator[tuple[int, int, int, int]]:
    """(first token, end, state slot, slot of the copy or -1) in the order of computing."""
    runs = spans.runs
    offsets = (spans.offsets_S1 if runs is None else runs.offsets_R1).tolist()
    slots = (spans.states_S if runs is None else runs.slots_R).tolist()
    keeps = [-1] * len(slots) if runs is None else runs.keeps_R.tolist()
    for i, (slot, keep) in enumerate(zip(slots, keeps, strict=True)):
        yield offsets[i], offsets[i + 1], slot, keep


def in_runs(spans: Spans) -> tuple[int, int, int]:
    """Their number, and the addresses of their offsets and state slots."""
    runs = spans.runs
    if runs is None:
        return spans.sequences, spans.offsets_S1.data_ptr(), spans.states_S.data_ptr()
    return runs.count, runs.offsets_R1.data_ptr(), runs.slots_R.data_ptr()


def kept(spans: Spans) -> dict[str, int]:
    """What a native call is told of the runs; nothing where there are none."""
    runs = spans.runs
    if runs is None:
        return {}
    return {
        "runs_of": spans.sequences,
        "firsts": runs.firsts_S1.data_ptr(),
        "keeps": runs.keeps_R.data_ptr(),
    }
