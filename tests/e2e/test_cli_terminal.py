"""`headrace chat` on a real terminal: what Ctrl-C does, and that the terminal is left plain."""

from __future__ import annotations

import os
import pty
import select
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from served import COMMAND, environment, tiny_model


class Terminal:
    """The other side of a pseudo terminal."""

    def __init__(self, *arguments: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execvpe(COMMAND[0], [*COMMAND, *arguments], environment(TERM="dumb"))
        self.shown = ""
        self._seen = 0

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def wait_for(self, text: str, seconds: float = 60) -> None:
        """Reads until `text` is shown behind what was waited for before."""
        until = time.monotonic() + seconds
        while (at := self.shown.find(text, self._seen)) < 0:
            assert time.monotonic() < until, self.shown[-2000:]
            if select.select([self._fd], [], [], 0.2)[0]:
                self.shown += os.read(self._fd, 65536).decode("utf-8", "replace")
        self._seen = at + len(text)

    def code(self) -> int:
        """Of the end, reading what is still shown."""
        try:
            while data := os.read(self._fd, 65536):
                self.shown += data.decode("utf-8", "replace")
        except OSError:  # how Linux tells that the other side is gone
            pass
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.slow
def test_an_interrupt_stops_the_answer_and_two_leave(tmp_path):
    folder = tiny_model(tmp_path / "tiny")
    terminal = Terminal("chat", str(folder), "--max-tokens", "29000", "--top-k", "1")
    terminal.wait_for("> ")
    terminal.type("/nonsense\n")
    terminal.wait_for("no /nonsense")
    terminal.wait_for("> ")
    terminal.type("hello\n")
    terminal.wait_for("hello")
    time.sleep(0.1)  # the answer is under way, and not at its end yet
    terminal.type("\x03")
    terminal.wait_for("stopped")
    terminal.wait_for("> ")
    terminal.type("/system\n")
    terminal.wait_for("no system message")
    terminal.wait_for("> ")
    time.sleep(
        0.5
    )  # a signal between the prompt and the wait for keys is seen at the next key only
    terminal.type("\x03")
    terminal.wait_for("again")
    terminal.type("\x03")
    assert terminal.code() == 0
    assert "Traceback" not in terminal.shown
