"""The crossing: many threads and loops on one engine thread, and every way a stream can end."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from fake_forward import FakeModel, make_engine, truth

from headrace.engine.client import EngineClient, Stream
from headrace.engine.engine import Engine
from headrace.engine.request import Finish, Request, Sampling, TokenEvent
from headrace.errors import CapacityError, DeviceError, RequestError

GREEDY = Sampling(temperature=0, max_tokens=12, ignore_eos=True)
ENDLESS = Sampling(temperature=0, ignore_eos=True)


def tokens_of(stream: Stream) -> list[int]:
    return [event.token for event in stream if event.token is not None]


class Gate:
    """Holds the engine inside a forward until it is opened."""

    def __init__(self, engine: Engine, model: FakeModel) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        forward = model.forward

        def gated(batch, state):  # type: ignore[no-untyped-def]
            self.entered.set()
            assert self.open.wait(30)
            return forward(batch, state)

        engine._runner._forward = gated


def test_threads_get_their_own_tokens() -> None:
    engine, _ = make_engine(blocks=200, max_queued=50)
    client = EngineClient(engine)
    results: dict[int, list[int]] = {}

    def ask(i: int) -> None:
        sampling = Sampling(temperature=1.0, seed=i, max_tokens=12)
        results[i] = tokens_of(client.submit(Request((i + 1,) * (i + 1), sampling)))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    client.close()
    for i in range(12):
        expected = truth((i + 1,) * (i + 1), Sampling(temperature=1.0, seed=i, max_tokens=12))
        assert results[i] == expected


def test_async_readers_share_a_loop() -> None:
    engine, _ = make_engine(blocks=200)
    client = EngineClient(engine)

    async def ask(i: int) -> list[TokenEvent]:
        stream = client.submit(Request((i + 1,), GREEDY))
        return [event async for event in stream]

    async def ask_all() -> list[list[TokenEvent]]:
        return await asyncio.gather(*(ask(i) for i in range(6)))

    for i, events in enumerate(asyncio.run(ask_all())):
        assert [e.token for e in events] == truth((i + 1,), GREEDY)
        assert [e.finish for e in events] == [None] * 11 + [Finish.LENGTH]
    client.close()


def test_the_loop_stays_free_while_a_stream_waits() -> None:
    engine, model = make_engine()
    gate = Gate(engine, model)
    client = EngineClient(engine)

    async def read() -> int:
        stream = client.submit(Request((1,), GREEDY))
        reader = asyncio.create_task(_collect(stream))
        await asyncio.to_thread(gate.entered.wait, 30)
        await asyncio.sleep(0)  # would not come back if the reader blocked the loop
        assert not reader.done()
        gate.open.set()
        return len(await reader)

    assert asyncio.run(read()) == 12
    client.close()


async def _collect(stream: Stream) -> list[TokenEvent]:
    return [event async for event in stream]


def test_a_reader_that_stops_does_not_stop_the_engine() -> None:
    engine, _ = make_engine(blocks=200)
    client = EngineClient(engine)
    forgotten = client.submit(Request((1,), GREEDY))
    assert tokens_of(client.submit(Request((2,), GREEDY))) == truth((2,), GREEDY)
    assert tokens_of(forgotten) == truth((1,), GREEDY)  # all was kept for it

    async def leave() -> None:
        async for _ in client.submit(Request((3,), GREEDY)):
            break

    asyncio.run(leave())  # its loop is closed while tokens still come
    assert tokens_of(client.submit(Request((4,), GREEDY))) == truth((4,), GREEDY)
    client.close()


def test_cancel_ends_a_stream_and_frees_its_blocks() -> None:
    engine, _ = make_engine(blocks=5000, context=10_000)
    client = EngineClient(engine)
    stream = client.submit(Request((1,), ENDLESS))
    events = iter(stream)
    next(events)
    stream.cancel()
    last = list(events)[-1]
    assert (last.token, last.finish) == (None, Finish.CANCELLED)
    stream.cancel()  # too late, and harmless
    assert list(stream) == []
    with client.submit(Request((2,), ENDLESS)) as left:
        next(iter(left))
    assert list(left)[-1].finish == Finish.CANCELLED
    assert client.status()["kv_blocks_used"] == 0
    client.close()


def test_refusals_reach_the_caller_at_once() -> None:
    engine, model = make_engine(max_queued=1, sequences=1, blocks=8)
    gate = Gate(engine, model)
    client = EngineClient(engine)
    with pytest.raises(RequestError, match="empty"):
        client.submit(Request(()))
    with pytest.raises(CapacityError, match="at most 31"):
        client.submit(Request((1,) * 32))
    first = client.submit(Request((1,), GREEDY))
    assert gate.entered.wait(30)
    second = client.submit(Request((2,), GREEDY))
    with pytest.raises(CapacityError, match="2 requests") as raised:
        client.submit(Request((3,), GREEDY))
    assert raised.value.http_status == 429
    gate.open.set()
    assert tokens_of(first) == truth((1,), GREEDY)
    assert tokens_of(second) == truth((2,), GREEDY)
    client.close()


def test_a_failed_step_reaches_its_streams_and_the_engine_lives() -> None:
    engine, model = make_engine()
    model.fail_when = 13
    client = EngineClient(engine)
    (event,) = client.submit(Request((13,)))
    assert event.finish == Finish.ERROR
    assert isinstance(event.error, DeviceError)
    model.fail_when = None
    assert tokens_of(client.submit(Request((1,), GREEDY))) == truth((1,), GREEDY)
    assert client.status()["alive"]
    client.close()


def test_a_dead_engine_thread_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = make_engine()

    def die() -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(engine, "step", die)
    client = EngineClient(engine)
    streams = [client.submit(Request((1,)))]
    (event,) = streams[0]
    assert event.finish == Finish.ERROR
    assert "no more" in str(event.error)
    client._thread.join(30)
    with pytest.raises(DeviceError, match="died"):
        client.submit(Request((1,)))
    assert not client.status()["alive"]
    streams[0].cancel()
    client.close()


def test_close_cancels_what_runs_and_refuses_what_comes() -> None:
    engine, _ = make_engine(blocks=5000, context=10_000)
    client = EngineClient(engine)
    streams = [client.submit(Request((i,), ENDLESS)) for i in range(1, 4)]
    next(iter(streams[0]))
    client.close()
    for stream in streams:
        assert list(stream)[-1].finish == Finish.CANCELLED
    with pytest.raises(DeviceError, match="shutting down"):
        client.submit(Request((1,)))
    client.close()
    assert not client._thread.is_alive()


def test_an_idle_engine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = make_engine()
    steps: list[int] = []
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda: steps.append(1) or step())
    client = EngineClient(engine)
    assert len(tokens_of(client.submit(Request((1,), GREEDY)))) == 12
    done = len(steps)
    time.sleep(0.1)
    assert len(steps) == done
    client.close()
