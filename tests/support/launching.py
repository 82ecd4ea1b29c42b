"""What the tests of horarun share: starting it, waiting for it, and finding what it left behind.

The binary is the one that HORARUN names, else the one beside this Python, else the one in PATH.
Every wait has a limit. All processes of a test carry its own mark in their environment, whatever
session they moved to.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

LIMIT_S = 60
LEFTOVERS_LIMIT_S = 10
MARK = "HORARUN_TEST_MARK"

# A worker's first lines: how many command lines on this machine show a word. Processes come and go.
COMMAND_LINES_WITH = """
from pathlib import Path
def command_lines_with(word):
    count = 0
    for file in Path('/proc').glob('[0-9]*/cmdline'):
        try:
            count += word.encode() in file.read_bytes()
        except OSError:
            pass
    return count
"""

# A worker that tells when it is ready, and ends at SIGUSR1.
SAVES_AT_SIGUSR1 = """
import signal
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print('ready')
signal.sigwait([signal.SIGUSR1])
print('saved')
"""


def find_horarun() -> str:
    """Return the binary's path; without one the test is skipped."""
    beside_python = os.path.dirname(sys.executable)
    found = os.environ.get("HORARUN") or shutil.which(
        "horarun", path=beside_python + os.pathsep + os.environ.get("PATH", "")
    )
    if not found:
        pytest.skip("no horarun: set HORARUN or install the wheel")
    return found


def marked_processes(mark: str) -> list[int]:
    """Pids of the living processes whose environment carries the mark, zombies left out."""
    needle = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def send(pids: list[int], signo: signal.Signals) -> None:
    """Send a signal to each; the end of one may be the end of the next."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signo)


def wait_until_gone(mark: str, limit: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit
    while left := marked_processes(mark):
        assert time.monotonic() < deadline, f"processes {left} are left"
        pause()


def pause() -> None:
    """Let other processes go on: every caller polls a condition until a deadline."""
    time.sleep(0.01)


class Launcher:
    """Starts horarun with a mark that all processes of the test inherit."""

    def __init__(self, binary: str) -> None:
        self.binary = binary
        self.mark = uuid.uuid4().hex
        self.environment = {**os.environ, MARK: self.mark, "OMP_NUM_THREADS": "1"}

    def command(self, *words: str) -> list[str]:
        return [self.binary, *words]

    def run(
        self, *words: str, stdin: bytes = b"", environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            self.command(*words),
            input=stdin,
            capture_output=True,
            timeout=LIMIT_S,
            env=self.environment if environment is None else environment,
            check=False,
        )
        # What other hosts started ends with its connection, a moment after the launcher at most.
        wait_until_gone(self.mark, LEFTOVERS_LIMIT_S)
        return done

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(*words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )


def launching() -> Iterator[Launcher]:
    """Yield a launcher; afterwards nothing of the test may be left."""
    launcher = Launcher(find_horarun())
    yield launcher
    left = marked_processes(launcher.mark)
    send(left, signal.SIGKILL)
    assert left == [], "processes are left"


def read_lines(job: subprocess.Popen[bytes], count: int) -> list[bytes]:
    assert job.stdout is not None
    return [job.stdout.readline() for _ in range(count)]


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def wait_for_a_full_pipe(job: subprocess.Popen[bytes]) -> None:
    """Wait until the job's output has filled the pipe that we do not read.

    How many bytes fill a pipe depends on the sizes of the writes, and a job that writes to both
    streams may be stopped by the other one: it is full when what waits there does not grow.
    """
    assert job.stdout is not None
    deadline = time.monotonic() + LIMIT_S
    filled, since = 0, time.monotonic()
    waiting = bytearray(4)
    while filled == 0 or time.monotonic() < since + 1:
        assert time.monotonic() < deadline
        pause()
        fcntl.ioctl(job.stdout, termios.FIONREAD, waiting)
        if int.from_bytes(waiting, sys.byteorder) != filled:
            filled, since = int.from_bytes(waiting, sys.byteorder), time.monotonic()


def wait_for_line(job: subprocess.Popen[bytes], pattern: bytes) -> None:
    """Read stderr up to the line with the pattern; horarun is ended if it does not come."""
    assert job.stderr is not None
    watchdog = threading.Timer(LIMIT_S, job.kill)
    watchdog.start()
    try:
        lines = []
        while line := job.stderr.readline():
            lines.append(line)
            if re.search(pattern, line):
                return
    finally:
        watchdog.cancel()
    pytest.fail(f"{pattern!r} is not in {lines}")


def wait_for_state(pid: int, state: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != state:
        assert time.monotonic() < deadline
        pause()
