"""horarun with several hosts, where a plain program stands for ssh: its agents are real.

HORA_SSH names a script that runs the command on this very machine, or fails as ssh does. So
everything but the network is what it is between machines: the agent, its pipe, the workers that it
starts, and what happens when any of them ends. tests/python/test_launcher_ssh.py has the network.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.launching import (
    COMMAND_LINES_WITH,
    LEFTOVERS_LIMIT_S,
    LIMIT_S,
    SAVES_AT_SIGUSR1,
    Launcher,
    launching,
    marked_processes,
    pause,
    python,
    read_lines,
    send,
    wait_for_a_full_pipe,
    wait_until_gone,
)

REACH = """#!/bin/sh
case $1 in
  closed) echo "reach: connect to host $1: Connection refused" >&2; exit 255 ;;
  chatty) echo "Welcome to $1!"; echo "last login: never" ;;
  mute) exec sleep 1000 ;;
  stranger) echo "this is not a horarun"; exit 3 ;;
esac
exec sh -c "$2"
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    reach = tmp_path / "reach"
    reach.write_text(REACH)
    reach.chmod(0o755)
    for made in launching():
        made.environment["HORA_SSH"] = str(reach)
        yield made


def pids_of(launcher: Launcher, word: bytes) -> list[int]:
    """Processes of the test whose command line has the word."""
    found = []
    for pid in marked_processes(launcher.mark):
        with contextlib.suppress(OSError):
            if word in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def test_ranks_of_all_hosts_know_their_places(launcher: Launcher) -> None:
    done = launcher.run(
        "-H", "localhost:1,other-a:2,other-b:1", "sh", "-c",
        "echo $HORA_RANK/$HORA_SIZE $HORA_LOCAL_RANK/$HORA_LOCAL_SIZE"
        " $HORA_CROSS_RANK/$HORA_CROSS_SIZE $HOROVOD_HOSTNAME; pwd >&2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        b"[0]<stdout>:0/4 0/1 0/3 localhost",
        b"[1]<stdout>:1/4 0/2 1/3 other-a",
        b"[2]<stdout>:2/4 1/2 0/1 other-a",
        b"[3]<stdout>:3/4 0/1 2/3 other-b",
    ]
    here = os.getcwd().encode()
    assert Counter(done.stderr.splitlines()) == Counter(
        b"[%d]<stderr>:%s" % (rank, here) for rank in range(4)
    )


def test_environment_and_secret_travel_but_on_no_command_line(launcher: Launcher) -> None:
    script = """
import os
secret = os.environ['HORA_SECRET']
print(secret, repr(os.environ['A']), command_lines_with(secret))
"""
    words = python(COMMAND_LINES_WITH + script)
    done = launcher.run("-H", "other-a:1,other-b:1", "--env", "A=x\ny'", *words)
    assert done.returncode == 0, done.stderr
    lines = {line.split(b":", 1)[1] for line in done.stdout.splitlines()}
    assert len(lines) == 1
    assert re.fullmatch(rb"[0-9a-f]{64} \"x\\ny'\" 0", lines.pop())


def test_an_allreduce_over_hosts(launcher: Launcher) -> None:
    pytest.importorskip("hora.numpy")
    script = (
        "import numpy as np; import hora.numpy as hvd; hvd.init(); "
        "print(hvd.allreduce(np.arange(3.0) + hvd.rank(), name='a', op=hvd.Sum).tolist())"
    )
    done = launcher.run("-H", "other-a:2,localhost:1", *python(script))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        b"[%d]<stdout>:[3.0, 6.0, 9.0]" % rank for rank in range(3)
    ]


def test_stdin_reaches_rank_0_on_another_host(launcher: Launcher) -> None:
    data = b"".join(b"%d\n" % i for i in range(100_000))
    done = launcher.run("-H", "other:2", "sh", "-c", "wc -c", stdin=data)
    assert Counter(done.stdout.splitlines()) == Counter(
        [b"[0]<stdout>:%d" % len(data), b"[1]<stdout>:0"]
    )
    # What nobody reads does not keep the job from ending.
    assert launcher.run("-H", "other:1", "true", stdin=data).returncode == 0


def test_lines_stay_whole_and_nothing_is_lost(launcher: Launcher, tmp_path: Path) -> None:
    script = "import sys\nfor i in range(25_000): print(i, file=[sys.stdout, sys.stderr][i % 2])"
    job = launcher.start(
        "-H", "other-a:2,other-b:1,localhost:1", "--output-filename", str(tmp_path / "out"),
        *python(script),
    )  # fmt: skip
    assert job.stdout is not None
    wait_for_a_full_pipe(job)
    output, errors = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 0
    for stream, name, odd in ((output, b"stdout", 0), (errors, b"stderr", 1)):
        wanted = Counter(
            b"[%d]<%s>:%d" % (rank, name, i) for rank in range(4) for i in range(odd, 25_000, 2)
        )
        assert Counter(stream.splitlines()) == wanted
        for rank in range(4):
            lines = (tmp_path / "out" / f"rank.{rank}" / name.decode()).read_bytes().splitlines()
            prefix = b"[%d]<%s>:" % (rank, name)
            assert lines == [prefix + b"%d" % i for i in range(odd, 25_000, 2)]


def test_what_a_login_prints_does_no_harm(launcher: Launcher) -> None:
    done = launcher.run("-H", "chatty:1", "echo", "hi")
    assert (done.returncode, done.stdout) == (0, b"[0]<stdout>:hi\n")


def test_verbose_tells_the_commands_and_the_processes(launcher: Launcher) -> None:
    done = launcher.run("-H", "other:1", "--verbose", "true")
    assert b"horarun: host 'other': " in done.stderr
    assert b"--host-agent" in done.stderr
    assert re.search(rb"rank 0 is pid \d+ on other", done.stderr)


# Failures.


def test_the_first_failing_rank_gives_the_code_and_ends_all_hosts(launcher: Launcher) -> None:
    script = "[ $HORA_RANK = 2 ] && { echo why >&2; exit 7; }; exec sleep 1000"
    done = launcher.run("-H", "localhost:1,other-a:1,other-b:2", "sh", "-c", script)
    assert done.returncode == 7
    assert re.search(rb"rank 2 \(pid \d+ on other-b\) exited with status 7\.", done.stderr)
    assert b"  why" in done.stderr.splitlines()[-1]
    done = launcher.run("-H", "other-a:2", "sh", "-c", "[ $HORA_RANK = 1 ] && kill -9 $$; sleep 99")
    assert done.returncode == 137
    assert b"killed by signal 9" in done.stderr


def test_hosts_that_cannot_be_used_are_named_with_command_and_reason(launcher: Launcher) -> None:
    done = launcher.run("-H", "localhost:1,closed:1,stranger:1", "echo", "never")
    assert (done.returncode, done.stdout) == (1, b"")
    errors = done.stderr.decode()
    assert "host 'closed' cannot be used" in errors
    assert "exited with status 255" in errors
    assert "its command was: " in errors
    assert "  reach: connect to host closed: Connection refused" in errors
    assert "host 'stranger' cannot be used" in errors
    assert "it printed: this is not a horarun" in errors


def test_a_host_that_never_answers_is_given_up(launcher: Launcher) -> None:
    done = launcher.run("-H", "mute:1", "--start-timeout", "1", "true")
    assert done.returncode == 1
    assert b"host 'mute' is not ready within 1 s (--start-timeout)" in done.stderr


def test_a_missing_horarun_is_told_apart(launcher: Launcher) -> None:
    done = launcher.run("-H", "other:1", "--remote-horarun", "/no/such/horarun", "true")
    assert done.returncode == 1
    assert b"exited with status 127; is Hora installed there? --remote-horarun" in done.stderr
    assert b"  horarun: no /no/such/horarun on this host" in done.stderr


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("no-such-command", 127, "'no-such-command' was not found in PATH"),
        ("/no/such/command", 127, "No such file"),
    ],
)
def test_a_missing_command_is_said_by_the_host(
    launcher: Launcher, command: str, code: int, text: str
) -> None:
    done = launcher.run("-H", "other:2", command)
    assert (done.returncode, done.stdout) == (code, b"")
    assert text in done.stderr.decode()
    assert "host 'other'" in done.stderr.decode()


def test_a_program_that_does_not_start_ends_the_job(launcher: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("no interpreter line\n")
    script.chmod(0o755)
    done = launcher.run("-H", "other:2", str(script))
    assert done.returncode == 126
    assert b"host 'other': rank 0: cannot run" in done.stderr


def test_a_missing_directory_is_said_and_home_is_used(launcher: Launcher, tmp_path: Path) -> None:
    # A local rank would notice nothing, so ask an agent alone: its directory is gone by then.
    gone = tmp_path / "gone"
    gone.mkdir()
    command = launcher.command("-H", "other:1", "pwd")
    done = subprocess.run(
        ["sh", "-c", f'cd "{gone}" && rmdir "{gone}" && exec "$@"', "sh", *command],
        capture_output=True,
        timeout=LIMIT_S,
        env=launcher.environment,
        check=False,
    )
    assert b"host 'other': no directory" in done.stderr, done


def test_the_end_of_an_agent_is_the_end_of_its_host(launcher: Launcher) -> None:
    job = launcher.start(
        "-H", "localhost:1,other:2", *python("import time; print('up'); time.sleep(1000)")
    )
    read_lines(job, 3)
    send(pids_of(launcher, b"--host-agent"), signal.SIGKILL)
    _, errors = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 255
    assert b"host 'other' is lost: " in errors
    assert re.search(rb"rank [12] \(pid \d+ on other\) was lost with its host\.", errors)
    wait_until_gone(launcher.mark)


def test_an_agent_that_is_asked_to_end_says_so(launcher: Launcher) -> None:
    job = launcher.start("-H", "other:2", *python("import time; print('up'); time.sleep(1000)"))
    read_lines(job, 2)
    send(pids_of(launcher, b"--host-agent"), signal.SIGTERM)
    _, errors = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 137
    assert b"host 'other': its agent there got signal 15" in errors


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print('daemon', flush=True)
        time.sleep(1000)
    os._exit(0)
os.wait()
time.sleep(1000)
"""


@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_horarun_ends_all_hosts(launcher: Launcher, signo: signal.Signals) -> None:
    job = launcher.start("-H", "localhost:1,other:1", *python(DAEMON))
    read_lines(job, 2)
    job.send_signal(signo)
    job.communicate(timeout=LIMIT_S)
    assert job.returncode == 128 + signo
    wait_until_gone(launcher.mark, LEFTOVERS_LIMIT_S)


def test_a_signal_ends_the_dialing(launcher: Launcher) -> None:
    job = launcher.start("-H", "mute:1,other:1", "--verbose", "true")
    assert job.stderr is not None
    job.stderr.readline()
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=LIMIT_S)
    assert job.returncode == 130
    wait_until_gone(launcher.mark)


def test_killing_horarun_leaves_nothing_on_any_host(launcher: Launcher) -> None:
    job = launcher.start("-H", "localhost:1,other:2", *python(DAEMON))
    read_lines(job, 3)
    job.kill()
    job.communicate(timeout=LIMIT_S)
    wait_until_gone(launcher.mark)


def test_stop_and_go_reach_other_hosts(launcher: Launcher) -> None:
    job = launcher.start("-H", "other:2", *python(SAVES_AT_SIGUSR1))
    read_lines(job, 2)
    job.send_signal(signal.SIGUSR1)
    output, _ = job.communicate(timeout=LIMIT_S)
    assert sorted(output.splitlines()) == [b"[0]<stdout>:saved", b"[1]<stdout>:saved"]


def test_a_silent_horarun_is_no_horarun(launcher: Launcher) -> None:
    launcher.environment["HORA_HOST_TIMEOUT_MS"] = "1000"
    job = launcher.start("-H", "other:1", *python("import time; print('up'); time.sleep(1000)"))
    read_lines(job, 1)
    supervisor = int(Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text())
    workers = pids_of(launcher, b"time.sleep(1000)")
    here = {job.pid, supervisor}
    os.kill(supervisor, signal.SIGSTOP)
    try:
        remote = [pid for pid in workers if pid not in here]
        assert remote
        deadline = time.monotonic() + LIMIT_S
        while any(Path(f"/proc/{pid}").exists() for pid in remote):
            assert time.monotonic() < deadline
            pause()
    finally:
        os.kill(supervisor, signal.SIGCONT)
    job.communicate(timeout=LIMIT_S)
    assert job.returncode == 255


def test_an_agent_ends_with_what_is_no_horarun(launcher: Launcher) -> None:
    done = launcher.run("--host-agent", stdin=b"nonsense that is no frame")
    assert done.returncode == 1
    assert done.stdout.startswith(b"\n<hora host agent>\n")
