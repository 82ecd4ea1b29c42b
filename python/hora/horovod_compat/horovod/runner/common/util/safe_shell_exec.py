"""Running a command so that nothing of it is left behind, where Horovod keeps it.

The command is a process group of its own. A watcher, a shell that reads from a pipe, ends the group
when the pipe closes without a word: then this process has died. The command begins when the watcher
is there; its input is empty.

    this process --- pipe, kept open ---> watcher    end of file: kill the group
         |
         +--- stdout, stderr <--- sh -c command      a session, so a group, of its own
"""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

__all__ = ["GRACEFUL_TERMINATION_TIME_S", "execute", "prefix_connection"]

GRACEFUL_TERMINATION_TIME_S = 5
_LOOK_PERIOD_S = 0.05

# Waits for a word, too.
_BEGIN = 'read -r word && exec /bin/sh -c "$0" < /dev/null'
_WATCH = (
    'read -r word && exit; kill -s TERM -- "-$1"; '
    f'sleep {GRACEFUL_TERMINATION_TIME_S}; kill -s KILL -- "-$1"'
)


def prefix_connection(
    src_connection: Any,
    dst_stream: Any,
    prefix: str | None,
    index: int | None,
    prefix_output_with_timestamp: bool,
) -> None:
    """Copy text from a pipe to a stream line by line, each behind ``[index]<prefix>:``.

    Lines end at a newline or a carriage return; the latter so that progress bars are seen move.
    Without an index or a prefix the text is copied as it is.
    """
    decoder = codecs.getincrementaldecoder("utf8")("replace")
    behind = index is not None and prefix is not None
    started = False
    waiting = ""
    while True:
        got = os.read(src_connection.fileno(), 1 << 16)
        waiting += decoder.decode(got, final=not got)
        *lines, waiting = _split(waiting)
        if not got:
            lines, waiting = [*lines, waiting], ""
        for line in filter(None, lines):
            if behind and not started:
                stamp = (
                    time.asctime(time.localtime(time.time()))
                    if prefix_output_with_timestamp
                    else ""
                )
                dst_stream.write(f"{stamp}[{index}]<{prefix}>:")
            started = not line.endswith(("\n", "\r"))
            dst_stream.write(line)
        dst_stream.flush()
        if not got:
            return


def _split(text: str) -> list[str]:
    """Split after each newline and carriage return; the last part has none, and may be empty."""
    parts = [""]
    for character in text:
        parts[-1] += character
        if character in "\r\n":
            parts.append("")
    return parts


def execute(
    command: str | Sequence[str],
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    index: int | None = None,
    events: Sequence[threading.Event] | None = None,
    prefix_output_with_timestamp: bool = False,
) -> int:
    """Run a command in a shell to its end.

    Parameters
    ----------
    command
        One text, or words that are joined with blanks.
    env
        Its environment; None for this process's.
    stdout, stderr
        Streams for its output; None for this process's.
    index
        With it each line has the prefix ``[index]<stdout>:`` or ``[index]<stderr>:``.
    events
        When one is set the command is ended: SIGTERM, and SIGKILL after a grace.
    prefix_output_with_timestamp
        Put date and time before the prefix.

    Returns
    -------
    Its exit code; 128 + n when signal n has ended it.
    """
    text = command if isinstance(command, str) else " ".join(command)
    process = subprocess.Popen(
        ["/bin/sh", "-c", _BEGIN, text],
        env=None if env is None else dict(env),
        stdin=subprocess.PIPE,
        stdout=None if stdout is None else subprocess.PIPE,
        stderr=None if stderr is None else subprocess.PIPE,
        start_new_session=True,
    )
    watcher = subprocess.Popen(
        ["/bin/sh", "-c", _WATCH, "watch", str(process.pid)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    copiers = [
        threading.Thread(
            target=prefix_connection,
            args=(pipe, stream, name, index, prefix_output_with_timestamp),
            daemon=True,
        )
        for pipe, stream, name in (
            (process.stdout, stdout, "stdout"),
            (process.stderr, stderr, "stderr"),
        )
        if pipe is not None
    ]
    for copier in copiers:
        copier.start()
    try:
        _say_a_word(process)
        _wait(process, events or ())
    finally:
        _end(process)
        _say_a_word(watcher)
        watcher.wait()
    for copier in copiers:
        copier.join(GRACEFUL_TERMINATION_TIME_S)
    code = process.returncode
    return 128 - code if code < 0 else code


def _wait(process: subprocess.Popen[bytes], events: Sequence[threading.Event]) -> None:
    """Wait for the end of the process, or for an event."""
    while not any(event.is_set() for event in events):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_PERIOD_S if events else None)
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and its group, unless it has ended by itself."""
    if process.poll() is not None:
        return
    for signo in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signo)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACEFUL_TERMINATION_TIME_S)


def _say_a_word(shell: subprocess.Popen[bytes]) -> None:
    pipe: IO[bytes] | None = shell.stdin
    if pipe is not None:
        with contextlib.suppress(BrokenPipeError):
            pipe.write(b"go on\n")
            pipe.close()
