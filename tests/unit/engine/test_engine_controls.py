"""Controls run on the engine's thread between two steps, whoever asks, and all of them end."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from fake_forward import make_engine, truth
from test_engine_client import GREEDY, Gate, tokens_of

from headrace.engine.client import EngineClient
from headrace.engine.engine import Engine
from headrace.engine.request import Request
from headrace.errors import CapacityError, DeviceError


def where(engine: Engine) -> str:
    engine.check()  # an invariant is broken within a step
    return threading.current_thread().name


def test_an_idle_engine_wakes_and_gives_the_result() -> None:
    engine, _ = make_engine()
    client = EngineClient(engine)
    assert client.control(where).result(30) == "headrace-engine"
    client.close()


def test_controls_from_many_threads_take_turns_between_steps() -> None:
    engine, _ = make_engine(blocks=200)
    client = EngineClient(engine)
    running, most, done = 0, 0, []

    def work(engine: Engine) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.001)
        done.append(where(engine))
        running -= 1

    stream = client.submit(Request((5,), GREEDY))
    threads = [threading.Thread(target=lambda: client.control(work).result(30)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (most, done) == (1, ["headrace-engine"] * 8)
    assert tokens_of(stream) == truth((5,), GREEDY)
    client.close()


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(CapacityError("too big"), CapacityError), (ValueError("hm"), DeviceError)],
)
def test_an_error_reaches_whoever_asked_and_the_engine_goes_on(
    raised: Exception, expected: type[Exception]
) -> None:
    engine, _ = make_engine()
    client = EngineClient(engine)

    def work(_: Engine) -> None:
        raise raised

    with pytest.raises(expected, match=str(raised)):
        client.control(work).result(30)
    assert tokens_of(client.submit(Request((1,), GREEDY))) == truth((1,), GREEDY)
    assert client.status()["alive"]
    client.close()


def test_the_loop_stays_free_while_a_control_waits_for_the_step() -> None:
    engine, model = make_engine()
    gate = Gate(engine, model)
    client = EngineClient(engine)
    stream = client.submit(Request((1,), GREEDY))
    assert gate.entered.wait(30)

    async def ask() -> str:
        asked = asyncio.ensure_future(asyncio.wrap_future(client.control(where)))
        await asyncio.sleep(0.01)
        assert not asked.done()
        gate.open.set()
        return await asked

    assert asyncio.run(ask()) == "headrace-engine"
    assert tokens_of(stream) == truth((1,), GREEDY)
    client.close()


def test_what_is_cancelled_in_time_never_runs() -> None:
    engine, model = make_engine()
    gate = Gate(engine, model)
    client = EngineClient(engine)
    client.submit(Request((1,), GREEDY))
    assert gate.entered.wait(30)
    ran: list[str] = []
    unwanted = client.control(lambda engine: ran.append(where(engine)))
    wanted = client.control(where)
    assert unwanted.cancel()
    gate.open.set()
    assert wanted.result(30)
    assert ran == []
    client.close()


def test_a_stopped_engine_refuses_and_leaves_nobody_waiting() -> None:
    engine, model = make_engine()
    gate = Gate(engine, model)
    client = EngineClient(engine)
    client.submit(Request((1,), GREEDY))
    assert gate.entered.wait(30)
    waiting = client.control(where)
    closing = threading.Thread(target=client.close)
    closing.start()
    while client.status()["alive"]:
        time.sleep(0.001)
    gate.open.set()
    for asked in (waiting, client.control(where)):
        with pytest.raises(DeviceError, match="shutting down"):
            asked.result(30)
    closing.join(30)


def test_a_control_that_kills_the_thread_is_told_and_so_are_those_behind_it() -> None:
    engine, model = make_engine()
    gate = Gate(engine, model)
    client = EngineClient(engine)
    client.submit(Request((1,), GREEDY))
    assert gate.entered.wait(30)

    def kill(_: Engine) -> None:
        raise SystemExit("by a control")

    killer, behind = client.control(kill), client.control(where)
    gate.open.set()
    with pytest.raises(SystemExit, match="by a control"):
        killer.result(30)
    with pytest.raises(DeviceError, match="the engine died"):
        behind.result(30)
    client.close()
