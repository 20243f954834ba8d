"""The commands as a user runs them, with a tiny random model."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

sys.path.append(str(Path(__file__).parent))
from served import COMMAND, Served, environment, tiny_model

from headrace.cli.main import main

FEW = ("--max-tokens", "12", "--seed", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def headrace(capfd, tmp_path, monkeypatch):
    """Runs a command in this process: torch is imported once for all. `text` is piped in."""
    keep = os.dup(0)

    def run(*arguments: object, text: str | bytes | None = None) -> Done:
        data = text.encode() if isinstance(text, str) else text
        given = tmp_path / "stdin"
        given.write_bytes(data or b"")
        source = os.open(os.devnull if data is None else given, os.O_RDONLY)
        os.dup2(source, 0)
        os.close(source)
        capfd.readouterr()
        with os.fdopen(os.dup(0)) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            with pytest.raises(SystemExit) as ended:
                main([str(argument) for argument in arguments])
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        return Done(ended.value.code, said.out, said.err)

    yield run
    os.dup2(keep, 0)
    os.close(keep)


def test_run_answers_on_standard_output_and_json_reports_it(folder, headrace):
    plain = headrace("run", folder, "hello", *FEW)
    assert (plain.code, plain.err) == (0, "")
    told = json.loads(headrace("run", folder, "hello", *FEW, "--json").out)
    assert told["text"].rstrip("\n") == plain.out.rstrip("\n")
    assert told["finish"] in ("stop", "length")
    assert 1 <= told["completion_tokens"] <= 12
    assert 0 < told["first_token_s"] <= told["total_s"]


def test_run_reads_standard_input_alone_or_after_the_prompt(folder, headrace):
    def prompt_tokens(*arguments, text=None) -> int:
        done = headrace("run", folder, *arguments, *FEW, "--json", text=text)
        assert done.code == 0, done.err
        return json.loads(done.out)["prompt_tokens"]

    whole = prompt_tokens("say\n\nthe words")
    assert prompt_tokens("say", text="the words\n") == whole
    assert prompt_tokens("-", text="say\n\nthe words\n") == whole
    assert prompt_tokens(text="say\n\nthe words\n") == whole


@pytest.mark.parametrize(
    ("text", "said"), [(b"\xff\xfe", "UTF-8"), (b"", "empty prompt"), (b" \n", "empty prompt")]
)
def test_run_refuses_input_that_is_no_text(folder, headrace, text, said):
    done = headrace("run", folder, text=text)
    assert done.code == 2
    assert said in done.err


def test_run_raw_goes_on_without_the_template(folder, headrace):
    done = headrace("run", folder, "ab", *FEW, "--raw", "--json")
    assert json.loads(done.out)["prompt_tokens"] < 5


@pytest.mark.parametrize("broken", ["config.json", "tokenizer.json", "weights"])
def test_a_torn_checkpoint_is_one_message(folder, tmp_path, headrace, broken):
    copy = tmp_path / "torn"
    shutil.copytree(folder, copy)
    file = next(copy.glob("*.safetensors")) if broken == "weights" else copy / broken
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    done = headrace("run", copy, "hello")
    assert (done.code, done.out) == (1, "")
    assert file.name in done.err


def test_an_interrupt_ends_run_with_130_and_no_word(folder):
    """With a pipe for standard input that nobody writes to or closes: that is no reason to wait."""
    process = subprocess.Popen(
        [*COMMAND, "run", str(folder), "hi", "--max-tokens", "29000", "--top-k", "1"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.decode() == "headrace: nothing came on standard input; going on without it\n"


def test_a_reader_that_leaves_is_no_fault(folder):
    process = subprocess.Popen(
        [*COMMAND, "run", str(folder), "hello", "--max-tokens", "500", "--top-k", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.wait(60)


def test_serve_chat_and_a_taken_port(folder, headrace):
    server = Served.start(folder, "--api-key", "sesame")
    port = server.url.rpartition(":")[2]
    taken = headrace("serve", folder, "--port", port)
    assert taken.code == 2
    assert port in taken.err
    flags = ("--server", server.url, "--api-key", "sesame", *FEW)
    talk = headrace("chat", *flags, text="hello\n/reset\nhello\n")
    assert talk.code == 0, talk.err
    local = headrace("chat", folder, *FEW, text="hello\n/exit\n").out
    assert local
    assert talk.out == local * 2
    refused = headrace("chat", "--server", server.url, text="hi\n")
    assert refused.code == 2
    assert "API key" in refused.err
    assert httpx.get(server.url + "/health").status_code == 200
    assert server.stop(signal.SIGINT) == 0
    assert "Traceback" not in server.log


def test_serve_says_503_while_loading_and_stops_at_once(folder):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [*COMMAND, "serve", str(folder), "--port", str(port)],
        stderr=subprocess.DEVNULL,
        env=environment(),
    )
    until, status = time.monotonic() + 60, 0
    while not status:
        assert time.monotonic() < until
        with contextlib.suppress(httpx.TransportError):
            reply = httpx.get(f"http://127.0.0.1:{port}/health", timeout=20)
            status = reply.status_code
    assert status == 503
    assert reply.headers["retry-after"] == "2"
    assert "loading" in reply.json()["error"]["message"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_a_fault_while_loading_ends_serve(folder, tmp_path, headrace):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["AbacusForCausalLM"], "model_type": "abacus"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = headrace("run", tmp_path, "hello")
    assert done.code == 1
    assert "abacus" in done.err.lower()
    served = subprocess.run(
        [*COMMAND, "serve", str(tmp_path), "--port", "0"],
        capture_output=True, text=True, env=environment(), timeout=60, check=False,
    )  # fmt: skip
    assert served.returncode == 1
    assert served.stderr == done.err


def test_doctor_reports_json(headrace):
    done = headrace("doctor", "--json")
    report = json.loads(done.out)
    assert {check["name"] for check in report["checks"]} >= {"python", "torch", "memory", "port"}
    assert done.code == (0 if report["ok"] else 1)
