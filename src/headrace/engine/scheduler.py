"""Continuous batching without phases: a step mixes decode tokens with chunks of prompts. No torch.

Sequences run first come, first served: each running one was submitted before each waiting one, also
after preemptions. `check` proves this and that every block and state slot has exactly one owner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from headrace.cache.blocks import BlockPool
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
    computed: int = 0  # tokens whose keys, values and state are in the caches
    blocks: tuple[int, ...] = ()
    state: int = -1
    served: int = 0  # number of the last step it took part in

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
        self.preemptions = 0
        self.mixed_tokens = limits.step_tokens  # bound of a step in which someone awaits a token
        self._seqs: dict[RequestId, Seq] = {}
        self._waiting: deque[Seq] = deque()
        self._running: list[Seq] = []
        self._steps = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def blocks_wanted(self) -> int:
        """In use, and those that waiting sequences need for what they have so far."""
        return self.blocks.used + sum(self._blocks_for(len(s.tokens)) for s in self._waiting)

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
        seq = Seq(id, request, list(request.tokens), limit, stops)
        self._seqs[id] = seq
        self._waiting.append(seq)

    def cancel(self, id: RequestId) -> TokenEvent | None:
        """End a sequence in whatever phase it is; None if it has ended already."""
        seq = self._seqs.get(id)
        return None if seq is None else self._finish(seq, Finish.CANCELLED)

    def next_step(self) -> Step | None:
        """What to compute next; None when nothing is submitted."""
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
        return Step((*decode, *prefill))

    def commit(self, step: Step, draws: Sequence[Draw]) -> list[TokenEvent]:
        """Take in what a step drew: one draw per span with `sample`, in the order of the spans."""
        events: list[TokenEvent] = []
        drawn = iter(draws)
        for span in step.spans:
            draw = next(drawn) if span.sample else None
            seq = self._seqs.get(span.request)
            if seq is None:  # cancelled while the step ran
                continue
            assert seq.computed == span.start, "steps are committed in order"
            seq.computed += span.length
            if draw is not None:
                events += self._advance(seq, draw)
        return events

    def fail(self, requests: Iterable[RequestId], error: HeadraceError) -> list[TokenEvent]:
        """End these sequences with an error; those that have ended already are passed over."""
        seqs = [self._seqs[id] for id in requests if id in self._seqs]
        return [self._finish(seq, Finish.ERROR, error) for seq in seqs]

    @contextmanager
    def lend(self, tokens: int) -> Iterator[tuple[tuple[int, ...], int]]:
        """Blocks for so many tokens and a state slot (-1 = none), for a while."""
        need = self._blocks_for(tokens)
        if need > self.blocks.free or (self.limits.state_slots and not self.states.free):
            raise CapacityError(
                f"{tokens} tokens need {need} KV blocks and {self.blocks.free} are free",
                expected="an idle engine, or fewer tokens",
                retry_s=1.0,
            )
        blocks = self.blocks.take(need)
        states = self.states.take(min(1, self.limits.state_slots))
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
        while self.blocks.used > blocks or self.states.used > state_slots:
            self._preempt(self._running[-1])
        moves = Moves(self.blocks.resize(blocks), self.states.resize(state_slots))
        for seq in self._running:
            if not moves.blocks.keys().isdisjoint(seq.blocks):
                seq.blocks = tuple(moves.blocks.get(block, block) for block in seq.blocks)
            seq.state = moves.states.get(seq.state, seq.state)
        self.limits = replace(limits, blocks=blocks, state_slots=state_slots)
        return moves

    def ids(self) -> list[RequestId]:
        """All that are running or waiting, oldest first."""
        return list(self._seqs)

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        self.blocks.check()
        self.states.check()
        queue = [*self._running, *self._waiting]
        assert [s.id for s in queue] == list(self._seqs), "first come, first served"
        assert len(self._running) <= self.limits.max_sequences
        blocks = [b for s in queue for b in s.blocks]
        assert len(blocks) == len(set(blocks)) == self.blocks.used, "a block has two owners or none"
        states = [s.state for s in queue if s.state >= 0]
        assert len(states) == len(set(states)) == self.states.used
        for seq in self._waiting:
            assert (seq.blocks, seq.state, seq.computed) == ((), -1, 0)
        for seq in self._running:
            assert (seq.state >= 0) == (self.limits.state_slots > 0)
            assert 0 <= seq.computed < len(seq.tokens) < seq.limit
            assert seq.computed <= len(seq.blocks) * self.limits.block_tokens

    def _admit(self) -> None:
        """Start waiting sequences while their tokens so far fit."""
        while self._waiting and len(self._running) < self.limits.max_sequences:
            seq = self._waiting[0]
            need = self._blocks_for(len(seq.tokens))
            # A block to grow into for each running one, or the next step would preempt it again.
            if need + len(self._running) > self.blocks.free:
                return
            if self.limits.state_slots:
                if not self.states.free:
                    return
                (seq.state,) = self.states.take()
            seq.blocks = self.blocks.take(need)
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
            n = min(seq.left, budget // (len(prompts) - i))
            budget -= n
            shares.append((seq, n))
        return shares

    def _grow(self, seq: Seq, n: int) -> bool:
        """Blocks for `n` more tokens; False if it was preempted, to make room for an older one."""
        if not seq.blocks:
            return False
        need = self._blocks_for(seq.computed + n) - len(seq.blocks)
        if need <= 0:
            return True
        while need > self.blocks.free:
            youngest = self._running[-1]
            self._preempt(youngest)
            if youngest is seq:
                return False
        seq.blocks += self.blocks.take(need)
        return True

    def _preempt(self, seq: Seq) -> None:
        """Back to the queue: its tokens stay, and everything is computed again from them."""
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
        self._release(seq)
        del self._seqs[seq.id]
        if seq in self._running:
            self._running.remove(seq)
        else:
            self._waiting.remove(seq)
        if token is None:
            return TokenEvent(seq.id, None, finish, error=error)
        return TokenEvent(seq.id, token.token, finish, token.logprob)

    def _release(self, seq: Seq) -> None:
        self.blocks.release(seq.blocks)
        seq.blocks = ()
        if seq.state >= 0:
            self.states.release((seq.state,))
            seq.state = -1

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_tokens)


def _span(seq: Seq, n: int) -> Span:
    end = seq.computed + n
    tokens = tuple(seq.tokens[seq.computed : end])
    return Span(seq.id, tokens, seq.computed, seq.blocks, seq.state, sample=end == len(seq.tokens))


def _event(seq: Seq, draw: Draw) -> TokenEvent:
    return TokenEvent(seq.id, draw.token, logprob=draw.logprob)
