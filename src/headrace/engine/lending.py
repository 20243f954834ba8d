"""A sequence that is nobody's request, chunk by chunk: what it holds is given back behind the last.
No torch.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from headrace.cache.lease import Prefix
from headrace.cache.prefix import PrefixCache
from headrace.engine.request import RequestId
from headrace.engine.seq import Limits
from headrace.engine.step import Span
from headrace.errors import CapacityError

NOBODY = RequestId(-1)


def lent(cache: PrefixCache, limits: Limits, tokens: Sequence[int]) -> Generator[Span, None, None]:
    """Spans that are computed one by one, between two steps. Raises CapacityError."""
    need, states = -(-len(tokens) // limits.block_tokens), min(1, limits.state_slots)
    if states > cache.spare_states:
        raise CapacityError(
            "all state slots are in use by running sequences",
            expected="an idle engine, or more of schedule.max_sequences",
            retry_s=1.0,
        )
    if need > cache.spare_blocks:
        raise CapacityError(
            f"{len(tokens)} tokens need {need} KV blocks and {cache.spare_blocks} are free",
            expected="an idle engine, or fewer tokens",
            retry_s=1.0,
        )
    lease = cache.begin(Prefix(), need)
    try:
        for start in range(0, len(tokens), limits.step_tokens):
            chunk = tuple(tokens[start : start + limits.step_tokens])
            cache.grow(lease, start + len(chunk))
            yield Span(
                NOBODY,
                chunk,
                start,
                lease.blocks,
                lease.state,
                sample=False,
                windows=lease.windows,
            )
            cache.trim(lease, start + len(chunk))
    finally:
        cache.release(lease, (), 0, state_valid=False)
