"""A running server is looked at, resized and recorded, over HTTP and with `headrace ctl`."""

from __future__ import annotations

import concurrent.futures
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.append(str(Path(__file__).parent))
from served import COMMAND, Served, environment, serving, tiny_model

from headrace.bench.checkpoint import Shape, ensure
from headrace.cli.main import main
from headrace.planning.trace import RoutingTrace

ROWS = 8  # 2 layers of 4 experts
HYBRID = (
    *("--device", "emulated", "--context", "600", "--set", "emulated.memory=256MiB"),
    *("--set", "experts.placement=hybrid", "--set", "experts.fill=all"),
    *("--set", "experts.cache=50%", "--set", "memory.block_tokens=8"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with serving(folder, *HYBRID) as served:
        yield served


@pytest.fixture(scope="module")
def on_cpu(folder: Path) -> Iterator[Served]:
    with serving(folder, "--context", "600", "--served-name", "tiny") as served:
        yield served


@pytest.fixture
def headrace(capfd):
    """Runs a command and gives what it printed; a failure's message where it should fail."""

    def run(*arguments: object, code: int = 0) -> str:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        said = capfd.readouterr()
        assert ended.value.code == code, said.err
        assert "Traceback" not in said.err
        return said.err if code else said.out

    return run


def chat(server: Served, seed: int = 3, **more: object) -> str:
    body = {"messages": [{"role": "user", "content": "What does the miller read?"}], "seed": seed}
    body |= {"model": "tiny", "max_tokens": 60, "ignore_eos": True, **more}
    reply = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["message"]["content"]
    return text


def resize(server: Served, **body: object) -> httpx.Response:
    return httpx.post(server.url + "/engine/resize", json=body, timeout=60)


def live(server: Served) -> dict[str, Any]:
    told: dict[str, Any] = httpx.get(server.url + "/engine/status").json()["engine"]["live"]
    return told


def series(server: Served) -> dict[str, float]:
    lines = httpx.get(server.url + "/metrics").text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line and line[0] != "#"]
    return {name: float(value) for name, value in pairs}


def test_no_token_changes_while_the_cache_shrinks_and_grows(server, on_cpu):
    alone = [chat(on_cpu, seed) for seed in range(4)]
    sizes = ["1 slots", "25%", "100%", "2 slots", "6 slots", "50%"]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(chat, server, seed) for seed in range(4)]
        for size in sizes:
            done = resize(server, experts=size, kv_tokens=2400 if "slots" in size else 4800)
            assert done.status_code == 200, done.text
            assert done.json()["pause_s"] > 0
        assert [answer.result(60) for answer in running] == alone
    told = live(server)
    assert told["budget"]["expert_slots"] == ROWS // 2
    assert told["budget"]["kv_tokens"] == 4800
    assert told["resizes"] >= len(sizes)
    assert told["last_resize"]["before"]["expert_slots"] == 6
    assert told["last_resize"]["dropped_rows"] <= 2


def test_a_chosen_size_stays(server):
    """What the user gave up is not taken back behind their back."""
    free = live(server)["budget"]["device_bytes"]
    assert resize(server, experts="3 slots").status_code == 200
    assert resize(server, device_bytes=free // 2).status_code == 200
    after = live(server)
    assert after["budget"]["device_bytes"] == free // 2
    for seed in range(2):
        chat(server, seed)
    now = live(server)
    assert (now["budget"], now["resizes"]) == (after["budget"], after["resizes"])
    assert resize(server, device_bytes=free, experts="50%").status_code == 200


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"experts": "much"}, "expected bytes"),
        ({"experts": "9 slots"}, "1 to 8"),
        ({"kv_tokens": 10}, "600 to 9600"),
        ({"device_bytes": 1000}, "at least"),
        ({"state_slots": 3}, "0 to 0"),
        ({"vram": 3}, "vram"),
        ({}, "at least one of experts"),
        ({"kv_tokens": "many"}, "a whole number"),
    ],
)
def test_nonsense_names_the_limits_and_changes_nothing(server, body, said):
    before = live(server)
    reply = resize(server, **body)
    assert reply.status_code == 400
    assert said in reply.json()["error"]["message"]
    assert live(server)["budget"] == before["budget"]
    assert chat(server, max_tokens=4)


def test_the_cpu_alone_has_keys_and_values_to_resize(on_cpu, headrace):
    for body in ({"experts": "50%"}, {"device_bytes": 1 << 30}):
        reply = resize(on_cpu, **body)
        assert reply.status_code == 400
        assert "kv_tokens from 608" in reply.json()["error"]["message"]
    wrong = resize(on_cpu, kv_tokens=1200, model="other")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "model_not_found")
    before = chat(on_cpu)
    done = resize(on_cpu, kv_tokens=1200, model="tiny").json()
    assert (done["after"]["kv_tokens"], done["after"]["expert_slots"]) == (1200, 0)
    assert chat(on_cpu) == before
    assert "experts" not in live(on_cpu)
    assert "kv tokens" in headrace("ctl", "status", "--server", on_cpu.url)


def test_status_and_metrics_tell_how_experts_fare(server):
    chat(server)
    told, found = live(server), series(server)
    ((kind, experts),) = told["experts"]["kinds"].items()
    assert experts["hits"] + experts["fills"] + experts["host"] == experts["uses"] > 0
    assert experts["fills"] > 0
    assert experts["q"][:3] == [0, 1, 2]
    for name in ("uses", "hits", "fills", "host"):
        assert found[f'headrace_expert_{name}_total{{kind="{kind}"}}'] == experts[name]
    label = f'{{branch="link",kind="{kind}"}}'
    timing = experts["branches"]["link"]
    assert found["headrace_expert_observed_seconds" + label] == timing["observed_s"] > 0
    assert found["headrace_expert_predicted_seconds" + label] == timing["predicted_s"] > 0
    rate = f'headrace_expert_rate_bytes_per_second{{branch="link",kind="{kind}",shared="false"}}'
    assert found[rate] == experts["rates"]["link"] > 0
    assert found["headrace_engine_expert_slots"] == told["budget"]["expert_slots"]
    assert found["headrace_engine_resizes_total"] == told["resizes"]


def test_ctl_shows_and_resizes(server, headrace):
    at = ("--server", server.url + "/v1")
    done = json.loads(headrace("ctl", "resize", "--experts", "2 slots", "--json", *at))
    assert done["after"]["expert_slots"] == 2
    shown = headrace("ctl", "resize", "--experts", "50%", "--device-bytes", "200MiB", *at)
    assert [line.split()[-2:] for line in shown.splitlines() if "expert slots" in line] == [
        ["2", "4"]
    ]
    told = json.loads(headrace("ctl", "status", "--json", *at))
    assert told["engine"]["live"]["budget"]["device_bytes"] == 200 << 20
    shown = headrace("ctl", "status", *at)
    for words in ("placement", "hybrid", "expert slots", "link", "host", "last resize", "1 of 1"):
        assert words in shown
    said = headrace("ctl", "resize", "--experts", "9 slots", *at, code=2)
    assert "1 to 8" in said
    assert "cannot talk to" in headrace("ctl", "status", "--server", "127.0.0.1:1", code=1)


def test_a_trace_goes_from_the_server_to_the_simulator(server, folder, tmp_path, headrace):
    at, file = ("--server", server.url), tmp_path / "routing.trace"
    recorded = threading.Event()

    def talk(seed: int) -> None:
        while not recorded.is_set():
            chat(server, seed)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(talk, seed) for seed in range(2)]
        told = json.loads(headrace("ctl", "trace", file, "--tokens", "300", "--json", *at))
        recorded.set()
        for each in asked:
            each.result(60)
    made = RoutingTrace.load(file)
    assert 0 < made.tokens == told["tokens"] <= 300
    assert made.model.experts == (4, 4)
    report = json.loads(headrace("simulate", file, "--model", folder, "--json"))
    assert report
    other = tmp_path / "other"
    shape = Shape(64, 32, 6, 2, 2, heads=4, kv_heads=2, head_dim=16, vocab=432, dtype="float32")
    ensure(other, shape, lambda done, total, what: None)
    said = headrace("simulate", file, "--model", other, code=2)
    assert "2 MoE layers x 4 experts" in said
    assert "2 MoE layers x 6 experts" in said
    # A second one, by time; nothing runs, and that is a trace, too.
    headrace("ctl", "trace", file, "--seconds", "0.3", *at)
    assert RoutingTrace.load(file).tokens == 0
    assert not live(server)["recording"]
    assert "no folder" in headrace("ctl", "trace", tmp_path / "no" / "t", *at, code=2)
    assert "is a folder" in headrace("ctl", "trace", tmp_path, *at, code=2)
    assert "one of them" in headrace("ctl", "trace", file, "--stop", "--tokens", "5", *at, code=2)


def test_a_forgotten_trace_can_be_stopped(server, tmp_path, headrace):
    at, file = ("--server", server.url), tmp_path / "routing.trace"
    assert "start one first" in headrace("ctl", "trace", file, "--stop", *at, code=2)
    started = httpx.post(server.url + "/engine/trace", json={"action": "start"})
    assert started.status_code == 200
    assert "being recorded" in headrace("ctl", "trace", file, "--seconds", "1", *at, code=2)
    assert not file.exists()
    chat(server, max_tokens=20)
    headrace("ctl", "trace", file, "--stop", *at)
    assert RoutingTrace.load(file).decode_steps >= 19


def test_an_interrupt_ends_a_trace_and_keeps_it(server, tmp_path):
    file = tmp_path / "routing.trace"
    ctl = subprocess.Popen(
        [*COMMAND, "ctl", "trace", str(file), "--server", server.url],
        stdout=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    until = time.monotonic() + 60
    while not live(server)["recording"]:
        assert ctl.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    chat(server, max_tokens=20)
    ctl.send_signal(signal.SIGINT)
    said, _ = ctl.communicate(timeout=30)
    assert ctl.returncode == 0
    made = RoutingTrace.load(file)
    assert made.decode_steps >= 19
    assert f"{made.tokens} tokens" in said
    assert not live(server)["recording"]


def test_run_takes_the_same_settings_and_gives_the_same_text(folder, headrace, tmp_path):
    more = ("hello", "--max-tokens", "12", "--seed", "1", "--context", "600")
    alone = headrace("run", folder, *more)
    assert headrace("run", folder, *more, *HYBRID) == alone
