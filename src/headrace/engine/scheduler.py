"""Continuous batching without phases: a step mixes decode tokens with chunks of prompts. No torch.

Conversations take turns (`fairness`); requests of one conversation run first come, first served.
The one that has run longest is never preempted, so everything ends. `check` proves that who holds
which block and state slot adds up.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from typing import Any

from headrace.cache.anchors import Cuts
from headrace.cache.blocks import BlockPool
from headrace.cache.lease import Copies, Cut, Moves, Prefix
from headrace.cache.prefix import PrefixCache
from headrace.engine.fairness import Fairness, shares
from headrace.engine.lending import lent
from headrace.engine.request import Finish, Request, RequestId, TokenEvent
from headrace.engine.seq import Limits, Seq, party_of
from headrace.engine.step import Draw, Span, Step
from headrace.engine.validation import check_load, check_request, output_limit
from headrace.errors import CapacityError, HeadraceError

MOST_OVERTAKEN = 32  # a request that so many younger ones have overtaken goes first


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
            self.blocks,
            self.states,
            limits.block_tokens,
            on=limits.prefix_cache,
            host_blocks=limits.host_blocks,
            host_states=limits.host_states,
            windows=limits.windows,
        )
        self.preemptions = 0
        self.mixed_tokens = limits.step_tokens  # bound of a step in which someone awaits a token
        self._seqs: dict[RequestId, Seq] = {}
        self._waiting: list[Seq] = []
        self._running: list[Seq] = []  # in the order in which they were let in
        self._fair = Fairness()
        self._steps = 0
        self._in_flight = False  # between next_step and commit
        # A state fits one position; keys and values of the whole context can be cut anywhere.
        self._stateful = limits.prefix_cache and limits.state_slots > 0
        self._cutting = self._stateful and limits.anchored

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
        return self.states.used - self.cache.checkpoints.on_device

    @property
    def idle(self) -> bool:
        return not self._seqs

    def validate(self, request: Request, *, pending: int = 0) -> None:
        """Raise what `submit` would raise; `pending` more requests are on their way to it.

        Reads only what never changes and one length, so any thread may call it.
        """
        limits = self.limits
        check_request(request, vocab=limits.vocab, context=limits.context)
        check_load(len(self._seqs) + pending, limits.max_sequences, limits.max_queued)

    def submit(self, id: RequestId, request: Request) -> None:
        """Queue a request under an id above all earlier ones. Raises as `validate` does."""
        self.validate(request)
        assert not self._seqs or id > next(reversed(self._seqs)), "ids tell the age"
        stops = request.sampling.stop_ids
        if not request.sampling.ignore_eos:
            stops = stops | self.limits.end_ids
        limit = output_limit(request, self.limits.context)
        cuts = Cuts(len(request.tokens), request.anchors, request.inner if self._cutting else ())
        opening = request.opening
        party = party_of(id, request, opening)
        seq = Seq(id, request, list(request.tokens), limit, stops, cuts, party, opening)
        self._fair.join(party, (s.party for s in self._waiting))
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
            given = dict(self._shares())
            for seq in self._running[:]:
                n = given.get(seq, 0)
                if not n or not self._grow(seq, n):
                    continue
                seq.served = self._steps
                (decode if seq.left == 1 else prefill).append(self._span(seq, n))
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
            self.cache.save_cuts(seq.lease, seq.tokens)
            if self._saves(seq, draw):
                self.cache.save(seq.lease, seq.tokens, seq.computed)
            self.cache.trim(seq.lease, seq.computed)
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

    def lend(self, tokens: Sequence[int]) -> Generator[Span, None, None]:
        """Spans of a sequence that is nobody's request. Raises CapacityError."""
        return lent(self.cache, self.limits, tokens)

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
        leases = [seq.lease for seq in self._running if seq.lease is not None]
        moves = self.cache.resize(blocks, state_slots, leases)
        self.limits = replace(limits, blocks=blocks, state_slots=state_slots)
        return moves

    def resize_host(self, blocks: int, states: int) -> None:
        """Of the cache's second tier, between steps; `copies` tells what moves there."""
        self.cache.store.resize_host(blocks, states if self._stateful else 0)
        self.limits = replace(self.limits, host_blocks=blocks, host_states=states)

    def ids(self) -> list[RequestId]:
        """All that are running or waiting, oldest first."""
        return list(self._seqs)

    def queue(self) -> list[dict[str, Any]]:
        """What waits, the next one first; from any thread."""
        waiting = sorted(self._waiting, key=self._turn)
        return [
            {"request": s.id, "position": i, "prompt_tokens": len(s.tokens)}
            for i, s in enumerate(waiting, 1)
        ]

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        queue = [*self._running, *self._waiting]
        assert sorted(s.id for s in queue) == list(self._seqs)
        self._fair.check([s.party for s in queue])
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
            ready = [s for s in self._waiting if not s.behind]
            if not ready:
                return
            seq = min(ready, key=self._turn)
            found = self.cache.match(seq.tokens, seq.opening)
            if self._follow(seq, found):
                continue
            need = self._blocks_for(len(seq.tokens))
            # A block to grow into for each running one, or the next step would preempt it again.
            least = need - found.resident + len(self._running)
            # No other one overtakes it, or a long prompt would wait forever.
            if least > self.cache.spare_beside(found):
                return
            if self.limits.state_slots and not self.cache.spare_states:
                return
            self._start(seq, found, need)

    def _start(self, seq: Seq, found: Prefix, blocks: int) -> None:
        seq.lease = self.cache.begin(found, blocks)
        seq.computed = found.tokens
        if seq.cached < 0:
            seq.cached = found.tokens
        self._fair.admit(seq.party, len(seq.tokens) - found.tokens)
        self._waiting.remove(seq)
        for other in self._waiting:
            other.overtaken += other.id < seq.id
        self._running.append(seq)

    def _follow(self, seq: Seq, found: Prefix) -> bool:
        """Whether a running one computes more of its beginning than is cached: then it waits."""
        if self.limits.prefix_cache:
            size = 0 if self._stateful else self.limits.block_tokens
            seq.follow(self._running, found.tokens, size)
        return seq.behind

    def _turn(self, seq: Seq) -> tuple[bool, float, int]:
        return seq.overtaken < MOST_OVERTAKEN, self._fair.work(seq.party), seq.id

    def _saves(self, seq: Seq, draw: Draw | None) -> bool:
        """Whether a state is kept behind a step: where none was on the way, at an end of thinking,
        before a call."""
        if not self._stateful:
            return False
        if not self._cutting:
            return seq.computed == len(seq.request.tokens)
        return seq.computed in seq.cuts or seq.marked(None if draw is None else draw.token)

    def _shares(self) -> list[tuple[Seq, int]]:
        """How many tokens of which sequences the next step computes, within `step_tokens`."""
        budget = self.limits.step_tokens
        if len(self._running) >= budget:
            # Not even a token for each: those served longest ago go first, so that nobody starves.
            return [(s, 1) for s in sorted(self._running, key=lambda s: s.served)[:budget]]
        given = [(seq, 1) for seq in self._running if seq.left == 1]
        prompts = [s for s in self._running if s.left > 1]
        if given:
            budget = max(len(self._running), min(budget, self.mixed_tokens))
        return given + shares(prompts, _left, _party, budget - len(given))

    def _span(self, seq: Seq, n: int) -> Span:
        """Its next `n` tokens; states within them are kept on the way."""
        lease, start = seq.lease, seq.computed
        assert lease is not None
        cuts: tuple[Cut, ...] = ()
        if self._cutting and seq.left > 1:
            places = seq.cuts.within(start, start + n)
            cuts = self.cache.reserve(lease, start, places)
            if places and not cuts and self.limits.host_states:
                n = places[0] - start  # to the host tier a state goes between two steps
        end = start + n
        tokens, sample = tuple(seq.tokens[start:end]), end == len(seq.tokens)
        return Span(seq.id, tokens, start, lease.blocks, lease.state, sample, cuts, lease.windows)

    def _grow(self, seq: Seq, n: int) -> bool:
        """Blocks for `n` more tokens; False if it was preempted, to make room for an older one."""
        if seq.lease is None:
            return False
        while not self.cache.grow(seq.lease, seq.computed + n):
            youngest = self._running[-1]
            self._preempt(youngest)
            if youngest is seq:
                return False
        return True

    def _preempt(self, seq: Seq) -> None:
        """Back to the queue: its tokens stay; what the cache loses is computed again from them."""
        self._release(seq)
        self._running.remove(seq)
        self._waiting.append(seq)
        seq.computed = 0
        self.preemptions += 1

    def _advance(self, seq: Seq, draw: Draw) -> list[TokenEvent]:
        if draw.error is not None:
            return [self._finish(seq, Finish.ERROR, draw.error)]
        seq.tokens.append(draw.token)
        self._fair.worked(seq.party, 1)
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
        self._fair.leave(seq.party)
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


def _event(seq: Seq, draw: Draw) -> TokenEvent:
    return TokenEvent(seq.id, draw.token, logprob=draw.logprob, cached=seq.cached)


def _left(seq: Seq) -> int:
    return seq.left


def _party(seq: Seq) -> str:
    return seq.party
