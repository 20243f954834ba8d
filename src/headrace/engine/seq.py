"""What the scheduler knows: of machine and model, and of each sequence. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.cache.anchors import Cuts
from headrace.cache.lease import Lease
from headrace.engine.request import Request, RequestId
from headrace.planning.windows import Window

LEAST_SHARED = 64  # fewer tokens than this are computed twice rather than waited for


@dataclass(frozen=True, slots=True)
class Limits:
    """All the scheduler knows of machine and model."""

    vocab: int
    context: int  # longest sequence, answer included; its blocks fit into the pool
    blocks: int
    block_tokens: int
    state_slots: int  # 0 = the model has neither recurrent state nor windows
    step_tokens: int
    max_sequences: int
    max_queued: int
    end_ids: frozenset[int] = frozenset()  # tokens that end a turn of this model
    first_block: int = 1  # lower numbers are never used, see BlockPool
    prefix_cache: bool = False
    host_blocks: int = 0  # of the prefix cache's second tier
    host_states: int = 0
    anchored: bool = True  # states are saved within prompts and answers, not behind them alone
    windows: tuple[Window, ...] = ()  # in the order of a lease's tables


@dataclass(slots=True, eq=False)
class Seq:
    """One sequence from submit to finish. Its id tells its age."""

    id: RequestId
    request: Request
    tokens: list[int]  # prompt and output
    limit: int  # tokens at which it ends
    stops: frozenset[int]
    cuts: Cuts
    party: str  # whose turn it is
    opening: int
    computed: int = 0  # tokens whose keys, values and state are in the caches
    lease: Lease | None = None  # while it runs
    served: int = 0  # number of the last step it took part in
    cached: int = -1  # prompt tokens found in the cache, -1 = it has never run
    leader: Seq | None = None  # that computes what it waits for
    wanted: int = 0  # tokens that the leader will have computed then
    overtaken: int = 0  # by so many younger ones

    @property
    def left(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def behind(self) -> bool:
        """Whether another one is still computing what this one begins with."""
        leader = self.leader
        return leader is not None and leader.lease is not None and leader.computed < self.wanted

    def marked(self, drawn: int | None) -> bool:
        """Whether the last computed token ends thinking, or the one drawn behind it begins a
        call."""
        marks = self.request.marks
        answering = self.computed > len(self.request.tokens)
        ended = answering and self.tokens[self.computed - 1] in marks.after
        return ended or drawn in marks.before

    def follow(self, running: Sequence[Seq], found: int, block_tokens: int) -> None:
        """Look for one that is computing more of this one's beginning than the `found` tokens.

        `block_tokens`: 0 for a model with states, which goes on from where the leader is cut.
        """
        glance = found + LEAST_SHARED
        for leader in running:
            # A glance first: it is rarely worth comparing all.
            if leader.left < 2 or leader.tokens[found:glance] != self.tokens[found:glance]:
                continue
            same = min(common(leader.tokens, self.tokens), len(self.tokens) - 1)
            wanted = same // block_tokens * block_tokens if block_tokens else leader.cuts.last(same)
            if wanted >= glance and wanted > leader.computed:
                self.leader, self.wanted = leader, wanted
                return
        self.leader = None


def party_of(id: RequestId, request: Request, opening: int) -> str:
    """The conversation that a request counts for; a request of its own where nothing tells."""
    if request.conversation:
        return request.conversation
    return f"#{hash(request.tokens[:opening])}" if opening else f"#{id}"


def common(a: list[int], b: list[int]) -> int:
    """Tokens that both begin with."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
