"""Continuous batching without phases: a step mixes decode tokens with chunks of prompts. No torch.

Sequences run first come, first served: each running one was submitted before each waiting one, also
after preemptions. `check` proves this and that who holds which block and state slot adds up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from headrace.cache.anchors import Cuts
from headrace.cache.blocks import BlockPool
from headrace.cache.prefix import Copies, Lease, PrefixCache
from headrace.engine.request import Finish, Request, RequestId, TokenEvent
from headrace.engine.step import Draw, Span, Step
from headrace.engine.validation import check_request, output_limit
from headrace.errors import CapacityError, HeadraceError


@dataclass(frozen=True, slots=True)
class Limits:
    """All the scheduler knows of machine and model."""

    vocab: int
    context: int  # longest sequence, answer included; its blocks fit into the pool
    blocks: int
    block_tokens: int
    state_slots: int  # 0 = the model has no recurrent state
    step_tokens: int
    max_sequences: int
    max_queued: int
    end_ids: frozenset[int] = frozenset()  # tokens that end a turn of this model
    first_block: int = 1  # lower numbers are never used, see BlockPool
    prefix_cache: bool = False


@dataclass(frozen=True, slots=True)
class Moves:
    """Old number -> new one, of blocks and of state slots whose contents must move with them."""

    blocks: dict[int, int]
    states: dict[int, int]


@dataclass(slots=True, eq=False)
class Seq:
    """One sequence from submit to finish. Its id tells its age."""

    id: RequestId
    request: Request
    tokens: list[int]  # prompt and output
    limit: int  # tokens at which it ends
    stops: frozenset[int]
    cuts: Cuts
    computed: int = 0  # tokens whose keys, values and state are in the caches
    lease: Lease | None = None  # while it runs
    served: int = 0  # number of the last step it took part in
    cached: int = -1  # prompt tokens found in the cache, -1 = it has never run

    @property
    def left(self) -> int:
        return len(self.tokens) - self.computed


class Scheduler:
    """Owns the sequences and the numbers of their blocks and state slots.

    `next_step` and `commit` alternate; `submit` and `cancel` come between any two calls.
    """

    def __init__(self, limits: Limits) -> None:
        assert limits.context <= limits.blocks * limits.block_tokens, "a lone sequence must fit"
        self.limits = limits
        self.blocks = BlockPool(limits.blocks, first=limits.first_block)
        self.states = BlockPool(limits.state_slots)
        self.cache = PrefixCache(
            self.blocks, self.states, limits.block_tokens, on=limits.prefix_cache
        )
        self.preemptions = 0
        self.mixed_tokens = limits.step_tokens  # bound of a step in which someone awaits a token
        self._seqs: dict[RequestId, Seq] = {}
        self._waiting: deque[Seq] = deque()
        self._running: list[Seq] = []
        self._steps = 0
        self._in_flight = False  # between next_step and commit
        # A state is saved where a chunk ends; keys and values can be cut anywhere.
        self._cutting = limits.prefix_cache and limits.state_slots > 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def blocks_wanted(self) -> int:
        """In use, and those that waiting sequences need for what they have so far."""
        return self.blocks_used + sum(self._blocks_for(len(s.tokens)) for s in self._waiting)

    @property
    def blocks_used(self) -> int:
        """By running sequences; the rest is free, or cached and free when needed."""
        return self.blocks.used - self.cache.idle_blocks

    @property
    def states_used(self) -> int:
        return self.states.used - len(self.cache.checkpoints)

    @property
    def idle(self) -> bool:
        return not self._seqs

    def validate(self, request: Request, *, pending: int = 0) -> None:
        """Raise what `submit` would raise; `pending` more requests are on their way to it.

        Reads only what never changes and one length, so any thread may call it.
        """
        limits = self.limits
        check_request(request, vocab=limits.vocab, context=limits.context)
        load, most = len(self._seqs) + pending, limits.max_sequences + limits.max_queued
        if load >= most:
            raise CapacityError(
                f"{load} requests are running or queued",
                expected=f"at most {most} ({limits.max_sequences} running, "
                f"{limits.max_queued} queued)",
                fix="try again later",
                # No answer is shorter than about a second; a longer queue empties more slowly.
                retry_s=float(max(1, load // limits.max_sequences)),
            )

    def submit(self, id: RequestId, request: Request) -> None:
        """Queue a request under an id above all earlier ones. Raises as `validate` does."""
        self.validate(request)
        assert not self._seqs or id > next(reversed(self._seqs)), "ids tell the age"
        stops = request.sampling.stop_ids
        if not request.sampling.ignore_eos:
            stops = stops | self.limits.end_ids
        limit = output_limit(request, self.limits.context)
        cuts = Cuts(len(request.tokens), request.anchors)
        seq = Seq(id, request, list(request.tokens), limit, stops, cuts)
        self._seqs[id] = seq
        self._waiting.append(seq)

    def cancel(self, id: RequestId) -> TokenEvent | None:
        """End a sequence in whatever phase it is; None if it has ended already."""
        seq = self._seqs.get(id)
        return None if seq is None else self._finish(seq, Finish.CANCELLED)

    def next_step(self) -> Step | None:
        """What to compute next; None when nothing is submitted. `copies` come before it."""
        self._admit()
        if not self._running:
            assert not self._waiting, "the oldest sequence always fits"
            return None
        self._steps += 1
        decode: list[Span] = []
        prefill: list[Span] = []
        # A round ends without a span when all that had their turn were preempted for older ones.
        while not decode and not prefill:
            for seq, n in sorted(self._shares(), key=lambda share: share[0].id):
                if not self._grow(seq, n):
                    continue
                seq.served = self._steps
                (decode if seq.left == 1 else prefill).append(_span(seq, n))
        self._in_flight = True
        return Step((*decode, *prefill))

    def commit(self, step: Step, draws: Sequence[Draw]) -> list[TokenEvent]:
        """Take in what a step drew: one draw per span with `sample`, in the order of the spans.

        `copies` come after it.
        """
        self._in_flight = False
        events: list[TokenEvent] = []
        drawn = iter(draws)
        for span in step.spans:
            draw = next(drawn) if span.sample else None
            seq = self._seqs.get(span.request)
            if seq is None:  # cancelled while the step ran
                continue
            assert seq.computed == span.start, "steps are committed in order"
            seq.computed += span.length
            assert seq.lease is not None
            self.cache.keep(seq.lease, seq.tokens, seq.computed)
            if self._cutting and seq.computed in seq.cuts:
                self.cache.save(seq.lease, seq.tokens, seq.computed)
            if draw is not None:
                events += self._advance(seq, draw)
        return events

    def fail(self, requests: Iterable[RequestId], error: HeadraceError) -> list[TokenEvent]:
        """End these sequences with an error; those that have ended already are passed over."""
        seqs = [self._seqs[id] for id in requests if id in self._seqs]
        self._in_flight = False
        return [self._finish(seq, Finish.ERROR, error) for seq in seqs]

    def copies(self) -> Copies:
        """What must be copied now, before anything else touches blocks or states."""
        return self.cache.copies()

    @contextmanager
    def lend(self, tokens: int) -> Iterator[tuple[tuple[int, ...], int]]:
        """Blocks for so many tokens and a state slot (-1 = none), for a while."""
        need, wanted, spare = self._blocks_for(tokens), min(1, self.limits.state_slots), self.cache
        if need > spare.spare_blocks or wanted > spare.spare_states:
            raise CapacityError(
                f"{tokens} tokens need {need} KV blocks and {spare.spare_blocks} are free",
                expected="an idle engine, or fewer tokens",
                retry_s=1.0,
            )
        blocks = self.cache.take(need)
        self.cache.free_states(wanted)
        states = self.states.take(wanted)
        try:
            yield blocks, states[0] if states else -1
        finally:
            self.blocks.release(blocks)
            self.states.release(states)

    def resize(self, blocks: int, state_slots: int) -> Moves:
        """Between steps. The youngest sequences are preempted where too much is in use.

        Raises CapacityError below what a sequence of the full context needs; nothing has changed.
        """
        limits = self.limits
        least = self._blocks_for(limits.context)
        least_states = min(1, limits.state_slots)
        if blocks < least or state_slots < least_states:
            raise CapacityError(
                f"{blocks} KV blocks and {state_slots} state slots",
                expected=f"at least {least} and {least_states}: one sequence of {limits.context} "
                "tokens",
            )
        while self.blocks_used > blocks or self.states_used > state_slots:
            self._preempt(self._running[-1])
        self.cache.make_free(self.blocks.count - blocks)
        self.cache.free_states(self.states.count - state_slots)
        moves = Moves(self.blocks.resize(blocks), self.states.resize(state_slots))
        self.cache.renamed(moves.blocks, moves.states)
        for seq in self._running:
            assert seq.lease is not None
            seq.lease.rename(moves.blocks, moves.states)
        self.limits = replace(limits, blocks=blocks, state_slots=state_slots)
        return moves

    def ids(self) -> list[RequestId]:
        """All that are running or waiting, oldest first."""
        return list(self._seqs)

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        queue = [*self._running, *self._waiting]
        assert [s.id for s in queue] == list(self._seqs), "first come, first served"
        assert len(self._running) <= self.limits.max_sequences
        self.cache.check([s.lease for s in self._running if s.lease is not None])
        for seq in self._waiting:
            assert (seq.lease, seq.computed) == (None, 0)
        for seq in self._running:
            assert seq.lease is not None
            assert (seq.lease.state >= 0) == (self.limits.state_slots > 0)
            assert 0 <= seq.computed < len(seq.tokens) < seq.limit
            assert seq.computed <= len(seq.lease.blocks) * self.limits.block_tokens

    def _admit(self) -> None:
        """Start waiting sequences while their tokens so far fit."""
        while self._waiting and len(self._running) < self.limits.max_sequences:
            seq = self._waiting[0]
            found = self.cache.match(seq.tokens)
            need = self._blocks_for(len(seq.tokens))
            # A block to grow into for each running one, or the next step would preempt it again.
            least = need - len(found.path) + len(self._running)
            if least > self.cache.spare_beside(found):
                return
            if self.limits.state_slots and not self.cache.spare_states:
                return
            seq.lease = self.cache.begin(found, need)
            seq.computed = found.tokens
            if seq.cached < 0:
                seq.cached = found.tokens
            self._running.append(self._waiting.popleft())

    def _shares(self) -> list[tuple[Seq, int]]:
        """How many tokens of which sequences the next step computes, within `step_tokens`."""
        budget = self.limits.step_tokens
        if len(self._running) >= budget:
            # Not even a token for each: those served longest ago go first, so that nobody starves.
            return [(s, 1) for s in sorted(self._running, key=lambda s: s.served)[:budget]]
        shares = [(seq, 1) for seq in self._running if seq.left == 1]
        prompts = sorted((s for s in self._running if s.left > 1), key=lambda s: s.left)
        if shares:
            budget = max(len(self._running), min(budget, self.mixed_tokens))
        budget -= len(shares)
        for i, seq in enumerate(prompts):
            # Shortest first, so that what it leaves of its equal share goes to the longer ones.
            n = min(self._most(seq), budget // (len(prompts) - i))
            budget -= n
            shares.append((seq, n))
        return shares

    def _most(self, seq: Seq) -> int:
        """Tokens of its next chunk: to the next place where its state is saved."""
        if not self._cutting:
            return seq.left
        return min(seq.left, seq.cuts.next(seq.computed) - seq.computed)

    def _grow(self, seq: Seq, n: int) -> bool:
        """Blocks for `n` more tokens; False if it was preempted, to make room for an older one."""
        if seq.lease is None:
            return False
        while not self.cache.grow(seq.lease, self._blocks_for(seq.computed + n)):
            youngest = self._running[-1]
            self._preempt(youngest)
            if youngest is seq:
                return False
        return True

    def _preempt(self, seq: Seq) -> None:
        """Back to the queue: its tokens stay; what the cache loses is computed again from them."""
        self._release(seq)
        self._running.remove(seq)
        self._waiting.appendleft(seq)
        seq.computed = 0
        self.preemptions += 1

    def _advance(self, seq: Seq, draw: Draw) -> list[TokenEvent]:
        if draw.error is not None:
            return [self._finish(seq, Finish.ERROR, draw.error)]
        seq.tokens.append(draw.token)
        constraint = seq.request.constraint
        if draw.token in seq.stops:
            return [self._finish(seq, Finish.STOP, token=draw)]
        if constraint is not None and constraint.done:
            # The last token of a grammar is text, unlike a stop token: hence an event of its own.
            return [_event(seq, draw), self._finish(seq, Finish.STOP)]
        if len(seq.tokens) >= seq.limit:
            return [self._finish(seq, Finish.LENGTH, token=draw)]
        return [_event(seq, draw)]

    def _finish(
        self,
        seq: Seq,
        finish: Finish,
        error: HeadraceError | None = None,
        *,
        token: Draw | None = None,
    ) -> TokenEvent:
        # A failed step has left the state between two tokens.
        self._release(seq, state_valid=error is None)
        del self._seqs[seq.id]
        if seq in self._running:
            self._running.remove(seq)
        else:
            self._waiting.remove(seq)
        if token is None:
            return TokenEvent(seq.id, None, finish, error=error, cached=max(0, seq.cached))
        return TokenEvent(seq.id, token.token, finish, token.logprob, cached=seq.cached)

    def _release(self, seq: Seq, *, state_valid: bool = True) -> None:
        if seq.lease is None:
            return
        computing = self._in_flight and seq.served == self._steps
        valid = state_valid and not computing
        self.cache.release(seq.lease, seq.tokens, seq.computed, state_valid=valid)
        seq.lease = None

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_tokens)


def _span(seq: Seq, n: int) -> Span:
    end = seq.computed + n
    tokens = tuple(seq.tokens[seq.computed : end])
    lease, sample = seq.lease, end == len(seq.tokens)
    assert lease is not None
    return Span(seq.id, tokens, seq.computed, lease.blocks, lease.state, sample)


def _event(seq: Seq, draw: Draw) -> TokenEvent:
    return TokenEvent(seq.id, draw.token, logprob=draw.logprob, cached=seq.cached)
