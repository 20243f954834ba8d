"""What the commands are made of, without a model."""

from __future__ import annotations

import io
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.api.server import bind
from headrace.bench.load_client import Target
from headrace.cli import chat, destination, model, options
from headrace.cli.environment import home, log_level
from headrace.cli.main import main
from headrace.cli.meter import size
from headrace.cli.remote import Remote
from headrace.errors import CheckpointError, ConfigError, DeviceError, RequestError
from headrace.planning.trace import RoutingTrace


def code_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def no_progress(*_: object) -> None:
    pass


@pytest.mark.parametrize(
    "command", [(), ("run",), ("serve",), ("chat",), ("doctor",), ("bench", "decode")]
)
def test_help_needs_neither_torch_nor_the_server(command):
    script = (
        "import sys\nfrom headrace.cli.main import main\n"
        f"try: main({[*command, '--help']!r})\nexcept SystemExit as e: assert e.code == 0\n"
        "heavy = {'torch', 'uvicorn', 'starlette', 'tokenizers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nonsense",), 2, "nonsense"),
        (("run", "--no-such-flag"), 2, "no-such-flag"),
        (("run", "x", "hi", "--max-tokens", "many"), 2, "max-tokens"),
        (("run", "x", "hi", "--temperature", "9"), 2, "temperature"),
        (("chat", "x", "--top-p", "-1"), 2, "top_p"),
        (("run", "/no/such/folder", "hi"), 1, "/no/such/folder"),
        (("bench", "prefill", "--format", "Q9_X"), 2, "Q9_X"),
        (("bench", "tier", "--top-k", "9", "--experts", "8"), 2, "top_k"),
        (("bench", "hetero", "--layers", "2", "--experts", "11"), 2, "24 experts at least"),
        (("bench", "hetero", "--misses", "17"), 2, "17 misses"),
        (("bench", "hetero", "--hidden", "99999", "--width", "99999"), 1, "memory are free"),
        (("bench", "hetero", "--charts", "/no/folder"), 2, "--charts: no folder /no/folder"),
        (("bench", "load", "coding", "--url", "http://127.0.0.1:9", "--save", "/no/f"), 2, "/no"),
        (("bench", "load", "coding", "--url", "http://127.0.0.1:9", "--save", "/tmp"), 2, "folder"),
        (("bench", "load", "coding", "--url", "http://127.0.0.1:9", "--svg", "/no/f"), 2, "/no"),
        (("bench", "decode", "--out", "/dev/null/f"), 2, "--out"),
        (("run", "org/name", "hi"), 2, "headrace pull org/name"),
        (("pull", "name"), 2, "org/name"),
        (("pull", "../name"), 2, "no model of a hub"),
        (("run", "x", "hi", "--set", "speed=1"), 2, "speed"),
        (("run", "x", "hi", "--set", "nonsense"), 2, "KEY=VALUE"),
        (("run", "x", "hi", "--config", "/no/file.toml"), 2, "/no/file.toml"),
        (("run", "x", "hi", "--device", "abacus"), 2, "abacus"),
        (("run", "x", "hi", "--context", "0"), 2, "context"),
        (("serve", "x", "--host", "no.such.host.invalid"), 2, "no.such.host.invalid"),
        (("serve", "x", "--api-key", ""), 2, "api-key"),
        (("chat", "--server", "http://127.0.0.1:9"), 1, "127.0.0.1:9"),
        (("chat", "--server", "ftp://x"), 2, "ftp://x"),
    ],
)  # fmt: skip
def test_bad_usage_is_one_message_and_the_right_code(arguments, code, said, capfd):
    assert code_of(*arguments) == code
    told = capfd.readouterr().err
    assert said in told
    assert "Traceback" not in told


def test_a_wrong_log_level_is_told(monkeypatch, capfd):
    monkeypatch.setenv("HEADRACE_LOG", "loud")
    assert code_of("run", "x", "hi") == 2
    assert "loud" in capfd.readouterr().err
    monkeypatch.setenv("HEADRACE_LOG", "debug")
    assert log_level("error") == logging.DEBUG


def test_home_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    assert home() == tmp_path
    monkeypatch.delenv("HEADRACE_HOME")
    assert home() == Path.home() / ".cache" / "headrace"


def test_a_model_may_be_named_by_a_file_in_its_folder(tmp_path):
    config = tmp_path / "config.json"
    config.write_text("{}")
    assert model.resolve(str(tmp_path), no_progress) == tmp_path
    assert model.resolve(str(config), no_progress) == tmp_path
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(b"")
    assert model.resolve(str(gguf), no_progress) == gguf
    (tmp_path / "m.txt").write_text("")
    with pytest.raises(ConfigError, match="cannot be served"):
        model.resolve(str(tmp_path / "m.txt"), no_progress)
    with pytest.raises(CheckpointError):
        model.resolve(str(tmp_path / "nothing"), no_progress)


def test_flags_win_over_set_and_set_over_the_file(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("context = 10\nthreads = 1\n[schedule]\nmax_sequences = 3\n")
    made = options.engine_config(file, ["context=20", "threads=2"], context=30, dtype=None)
    assert (made.context, made.threads, made.schedule.max_sequences) == (30, 2, 3)


def test_a_taken_port_is_told_before_anything_is_loaded():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (5.2e9, "5.2 GB"), (3e13, "30 TB")]
)
def test_sizes_for_people(count, text):
    assert size(count) == text


class Echo:
    """Answers with what it was asked; raises what the script says."""

    def __init__(self, script=()) -> None:
        self.asked: list[list[dict]] = []
        self._script = list(script)

    def __call__(self, messages, write):
        self.asked.append([dict(m) for m in messages])
        write("thinking", True)
        write(f"you said {messages[-1]['content']}", False)
        if self._script and (error := self._script.pop(0)):
            raise error


def talk(monkeypatch, capsys, text: str, echo: Echo, system: str | None = None) -> tuple[str, str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    chat.Conversation(echo, "m", chat.Talk(system)).run()
    said = capsys.readouterr()
    return said.out, said.err


def test_a_conversation_remembers_and_forgets(monkeypatch, capsys):
    echo = Echo()
    out, _ = talk(monkeypatch, capsys, "one\n\ntwo\n/reset\nthree\n/exit\nfour\n", echo, "be brief")
    assert out == "you said one\nyou said two\nyou said three\n"
    assert [m["role"] for m in echo.asked[1]] == ["system", "user", "assistant", "user"]
    assert echo.asked[1][2]["content"] == "you said one"
    assert [m["content"] for m in echo.asked[2]] == ["be brief", "three"]


def test_commands_and_long_lines(monkeypatch, capsys):
    echo = Echo()
    out, err = talk(
        monkeypatch, capsys, "/system be kind\na\\\nb\n/system\n/nonsense\n/help\n", echo
    )
    assert out == "you said a\nb\n"
    assert echo.asked == [
        [{"role": "system", "content": "be kind"}, {"role": "user", "content": "a\nb"}]
    ]
    assert "be kind" in err
    assert "no /nonsense" in err
    assert "/reset" in err


def test_an_interrupt_stops_the_answer_and_keeps_what_was_said(monkeypatch, capsys):
    echo = Echo([KeyboardInterrupt(), None])
    out, err = talk(monkeypatch, capsys, "one\ntwo\n", echo)
    assert "stopped" in err
    assert out == "you said one\nyou said two\n"
    assert [m["content"] for m in echo.asked[1]] == ["one", "you said one", "two"]


def test_an_error_in_a_conversation_does_not_end_it(monkeypatch, capsys):
    echo = Echo([RequestError("the prompt is too long"), None])
    out, err = talk(monkeypatch, capsys, "one\ntwo\n", echo)
    assert "too long" in err
    assert out.endswith("you said two\n")


def test_a_server_that_is_no_model_server(monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        import threading

        def speak() -> None:
            other, _ = listener.accept()
            other.recv(65536)
            other.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
            other.close()

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(DeviceError, match="model server"):
            Remote(f"127.0.0.1:{listener.getsockname()[1]}", None).model()
        thread.join()


def test_doctor_finds_the_port_taken(capsys):
    import json

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        code = code_of("doctor", "--json", "--port", str(holder.getsockname()[1]))
    report = json.loads(capsys.readouterr().out)
    by_name = {check["name"]: check for check in report["checks"]}
    assert by_name["port"]["state"] == "warn"
    assert by_name["python"]["state"] == "ok"
    assert code == (0 if report["ok"] else 1)
    assert os.environ["HEADRACE_HOME"] in by_name["disk"]["found"]


def test_what_cannot_be_written_is_told_before(tmp_path, monkeypatch):
    file = tmp_path / "f.json"
    destination.check_file("--out", tmp_path / "a" / "b" / "f.json", makes_folders=True)
    destination.check_file("--svg", file)
    destination.check_folder("--charts", tmp_path)
    assert not list(tmp_path.iterdir())
    file.write_text("kept")
    destination.check_file("--save", file)
    with pytest.raises(ConfigError, match="no folder"):
        destination.check_folder("--charts", file)
    with pytest.raises(ConfigError, match="no folder"):
        destination.check_file("--out", file / "x", makes_folders=True)
    # Root may write everywhere: what the system would say to others.
    monkeypatch.setattr(destination.os, "access", lambda path, mode: False)
    for place in (file, tmp_path / "other"):
        with pytest.raises(ConfigError, match="cannot be written"):
            destination.check_file("--save", place)
    with pytest.raises(ConfigError, match="cannot be written"):
        destination.check_folder("--charts", tmp_path)
    assert file.read_text() == "kept"


COMMAND = [sys.executable, "-c", "from headrace.cli.main import main; main()"]


@pytest.mark.parametrize(
    "arguments", [["--version"], ["simulate", "--synthetic", "gpt-oss-20b", "--steps", "1"]]
)
def test_a_full_disk_behind_standard_output_is_told(arguments):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr.startswith("headrace: ")
    assert "No space left on device" in done.stderr
    assert "fault of headrace" not in done.stderr
    assert "Traceback" not in done.stderr


def test_streams_that_are_closed_are_no_fault(tmp_path):
    trace = tmp_path / "made.trace"
    command = [*COMMAND, "simulate", "--synthetic", "gpt-oss-20b", "--steps", "1"]
    line = 'exec "$@" <&- >&-'
    done = subprocess.run(
        ["sh", "-c", line, "sh", *command, "--save", str(trace)], stderr=subprocess.PIPE, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert RoutingTrace.load(trace).decode_steps  # nothing else was written into it


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            NotADirectoryError(20, "Not a directory", "/a/profiles"),
            "/a/profiles: Not a directory\n",
        ),
        (MemoryError("the system refused 12 bytes"), "the system refused 12 bytes\n"),
        (MemoryError(), "out of memory\n"),
    ],
)
def test_what_the_machine_refuses_is_no_fault_of_ours(error, said, monkeypatch, capfd):
    def refuse() -> None:
        raise error

    monkeypatch.setattr("headrace.cli.doctor.doctor", refuse)
    with pytest.raises(SystemExit) as end:
        main(["doctor"])
    assert end.value.code == 1
    assert capfd.readouterr().err.startswith(f"headrace: {said}")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:87119", "localhost:port", "http://[::1", "ftp://here", "http://:1"]
)
def test_what_is_no_server_is_told(url: str) -> None:
    with pytest.raises(ConfigError, match="expected a URL such as"):
        Remote(url, None)
    with pytest.raises(ConfigError, match=r"--url .*expected a URL such as"):
        Target(url)
