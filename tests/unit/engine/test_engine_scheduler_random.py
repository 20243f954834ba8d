"""The scheduler against plain lists: random requests and cancels, prefix cache on or off."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from test_engine_scheduler import END, commit, limits, request

from headrace.engine.request import Finish, RequestId
from headrace.engine.scheduler import Scheduler
from headrace.engine.step import Step
from headrace.errors import CapacityError
from headrace.planning.windows import Window, blocks_each


class SchedulerAgainstLists(RuleBasedStateMachine):
    """Random submits, cancels and steps; a model of what each sequence must have computed."""

    @initialize(
        blocks=st.integers(4, 12),
        block_tokens=st.integers(1, 5),
        state_slots=st.integers(0, 3),
        step_tokens=st.integers(1, 9),
        max_sequences=st.integers(1, 5),
        prefix_cache=st.booleans(),
        windows=st.sets(st.integers(1, 12), max_size=2),
    )
    def start(self, blocks: int, block_tokens: int, windows: set[int], **over: Any) -> None:
        self.context = blocks * block_tokens
        over |= {"blocks": blocks, "block_tokens": block_tokens, "context": self.context}
        if over["state_slots"]:
            step = -(-over["step_tokens"] // block_tokens)
            over["windows"] = tuple(
                Window(w, blocks_each(w, block_tokens, self.context), step) for w in sorted(windows)
            )
        self.scheduler = Scheduler(limits(max_queued=8, **over))
        self.tokens: dict[int, list[int]] = {}
        self.prompts: dict[int, int] = {}
        self.most: dict[int, int] = {}
        self.computed: dict[int, int] = {}
        self.next_id = 1

    @rule(length=st.integers(1, 30), max_tokens=st.integers(1, 20))
    def submit(self, length: int, max_tokens: int) -> None:
        wanted = request(length, max_tokens=max_tokens)
        id, self.next_id = RequestId(self.next_id), self.next_id + 1
        try:
            self.scheduler.submit(id, wanted)
        except CapacityError:
            full = len(self.tokens) >= self.scheduler.limits.max_sequences + 8
            assert full or length >= self.context
            return
        self.tokens[id] = list(wanted.tokens)
        self.prompts[id], self.computed[id] = length, 0
        self.most[id] = min(self.context, length + max_tokens)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.tokens:
            id = data.draw(st.sampled_from(sorted(self.tokens)))
            assert self.scheduler.cancel(RequestId(id)) is not None
            del self.tokens[id]

    @rule(mixed=st.integers(1, 9))
    def pace(self, mixed: int) -> None:
        self.scheduler.mixed_tokens = mixed

    @rule(token=st.integers(0, 99), gone=st.integers(0, 20))
    def step(self, token: int, gone: int) -> None:
        step = self.scheduler.next_step()
        assert (step is None) == (not self.tokens)
        if step is None:
            return
        self.look(step)
        if gone < len(step.spans):  # cancelled while it is computed
            id = step.spans[gone].request
            assert self.scheduler.cancel(id) is not None
            del self.tokens[id]
            self.scheduler.check()
        events = commit(self.scheduler, step, token)
        wanted = [s.request for s in step.spans if s.sample and s.request in self.tokens]
        assert [e.request for e in events] == wanted
        for event in events:
            assert event.token == token
            self.tokens[event.request].append(token)
            full = len(self.tokens[event.request]) == self.most[event.request]
            expected = Finish.STOP if token == END else Finish.LENGTH if full else None
            assert event.finish == expected
            if event.finish:
                del self.tokens[event.request]

    def look(self, step: Step) -> None:
        assert 1 <= step.tokens <= self.scheduler.limits.step_tokens
        size = self.scheduler.limits.block_tokens
        for span in step.spans:
            tokens = self.tokens[span.request]
            if not self.scheduler.limits.prefix_cache:
                assert span.start in (0, self.computed[span.request])  # 0: begun again
            end = span.start + span.length
            assert list(span.tokens) == tokens[span.start : end]
            assert span.sample == (end == len(tokens))
            assert len(span.blocks) * size >= end
            for window, table in zip(self.scheduler.limits.windows, span.windows, strict=True):
                assert table.first * size <= max(0, span.start - window.tokens + 1)
                assert (table.first + len(table.blocks)) * size >= end
            self.computed[span.request] = end
        written = [b for s in step.spans for b in s.blocks[s.start // size :]]
        assert len(written) == len(set(written))
        for i, _ in enumerate(self.scheduler.limits.windows):
            tables = [(s.windows[i], s.start // size) for s in step.spans]
            written = [b for table, at in tables for b in table.blocks[at - table.first :]]
            assert len(written) == len(set(written))
        if not self.scheduler.limits.prefix_cache:
            owned = [b for s in step.spans for b in s.blocks]
            assert len(owned) == len(set(owned))
        decode = [self.computed[s.request] - s.start == 1 and s.sample for s in step.spans]
        assert decode == sorted(decode, reverse=True)

    @invariant()
    def sound(self) -> None:
        self.scheduler.check()
        assert self.scheduler.ids() == sorted(self.tokens)

    def teardown(self) -> None:
        """Whatever happened, everything ends and nothing is left behind."""
        for _ in range(20_000):
            step = self.scheduler.next_step()
            if step is None:
                break
            commit(self.scheduler, step)
        assert self.scheduler.idle
        assert self.scheduler.blocks_used == self.scheduler.states_used == 0
        self.scheduler.cache.make_free(self.scheduler.blocks.count)
        assert self.scheduler.blocks.used == self.scheduler.states.used == 0
        assert all(kind.pool.used == 0 for kind in self.scheduler.cache.windows.kinds)


TestSchedulerAgainstLists = SchedulerAgainstLists.TestCase
TestSchedulerAgainstLists.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None
)
