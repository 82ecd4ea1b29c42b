"""horarun from outside: the real binary, real processes, plain shell and Python workers.

What a worker sees, what horarun shows of it, and how mistakes and failures are told.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.launching import (
    COMMAND_LINES_WITH,
    LIMIT_S,
    Launcher,
    launching,
    python,
    read_lines,
    wait_for_a_full_pipe,
)


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    yield from launching()


# What a worker sees.


def test_every_rank_learns_its_place(launcher: Launcher) -> None:
    done = launcher.run(
        "-np", "3", "sh", "-c",
        "echo $HORA_RANK/$HORA_SIZE $HORA_LOCAL_RANK/$HORA_LOCAL_SIZE"
        " $HORA_CROSS_RANK/$HORA_CROSS_SIZE",
    )  # fmt: skip
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [
        b"[%d]<stdout>:%d/3 %d/3 0/1" % (rank, rank, rank) for rank in range(3)
    ]


def test_ranks_share_a_secret_that_no_command_line_shows(launcher: Launcher) -> None:
    script = """
import os
secret = os.environ['HORA_SECRET']
print(secret, os.environ['HORA_JOB'], command_lines_with(secret))
"""
    done = launcher.run("-np", "2", *python(COMMAND_LINES_WITH + script))
    assert done.returncode == 0, done.stderr
    lines = {line.split(b":", 1)[1] for line in done.stdout.splitlines()}
    assert len(lines) == 1
    assert re.fullmatch(rb"[0-9a-f]{64} [0-9a-f]{32} 0", lines.pop())


def test_threads_are_shared_out_and_said(launcher: Launcher) -> None:
    environment = {k: v for k, v in launcher.environment.items() if k != "OMP_NUM_THREADS"}
    done = launcher.run("-np", "100", "--quiet", "true", environment=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    done = launcher.run("-np", "2", "sh", "-c", "echo $OMP_NUM_THREADS", environment=environment)
    threads = {line.split(b":", 1)[1] for line in done.stdout.splitlines()}
    assert len(threads) == 1
    assert b"OMP_NUM_THREADS=%s for each rank" % threads.pop() in done.stderr


def test_variables_of_the_command_line_reach_the_workers(launcher: Launcher) -> None:
    done = launcher.run(
        "-np", "1", "--env", "A=x y", "--start-timeout", "2.5",
        "sh", "-c", 'echo "$A|$HORA_START_TIMEOUT_MS"',
    )  # fmt: skip
    assert done.stdout == b"[0]<stdout>:x y|2500\n"


def test_horovods_names_of_the_place_are_set(launcher: Launcher) -> None:
    done = launcher.run(
        "-np", "3", "-H", "localhost:2,127.0.0.1:2", "sh", "-c",
        "echo $HOROVOD_HOSTNAME $HOROVOD_RANK/$HOROVOD_SIZE"
        " $HOROVOD_LOCAL_RANK/$HOROVOD_LOCAL_SIZE $HOROVOD_CROSS_RANK/$HOROVOD_CROSS_SIZE",
    )  # fmt: skip
    assert sorted(done.stdout.splitlines()) == [
        b"[0]<stdout>:localhost 0/3 0/2 0/2",
        b"[1]<stdout>:localhost 1/3 1/2 0/1",
        b"[2]<stdout>:127.0.0.1 2/3 0/1 1/2",
    ]


def test_hostfile_and_config_file(launcher: Launcher, tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# here\n\nlocalhost slots=1\n127.0.0.1:1\n")
    config = tmp_path / "config.yaml"
    config.write_text(
        "controller: gloo\nparams:\n  cache_capacity: 5\n  cycle_time_ms: 2\n"
        "timeline:\n  filename: a.json\n"
    )
    done = launcher.run(
        "--hostfile", str(hostfile), "--config-file", str(config), "--timeline-filename", "b.json",
        "sh", "-c", "echo $HOROVOD_HOSTNAME $HORA_CACHE_CAPACITY $HORA_TIMELINE",
    )  # fmt: skip
    assert sorted(done.stdout.splitlines()) == [
        b"[0]<stdout>:localhost 5 b.json",
        b"[1]<stdout>:127.0.0.1 5 b.json",
    ]
    assert done.stderr == (b"horarun: accepted, but without effect in Hora: params.cycle_time_ms\n")


def test_stdin_goes_to_rank_0_and_the_others_have_none(launcher: Launcher) -> None:
    done = launcher.run("-np", "3", "sh", "-c", "cat; echo end", stdin=b"one\ntwo\n")
    lines = Counter(done.stdout.splitlines())
    assert lines == Counter(
        [b"[0]<stdout>:one", b"[0]<stdout>:two", *(b"[%d]<stdout>:end" % r for r in range(3))]
    )


def test_input_that_rank_0_does_not_read_is_left_for_others(launcher: Launcher) -> None:
    loop = f"while read line; do '{launcher.binary}' -np 1 echo $line; done"
    done = subprocess.run(
        ["sh", "-c", loop],
        input=b"a\nb\nc\n",
        capture_output=True,
        timeout=LIMIT_S,
        env=launcher.environment,
        check=True,
    )
    assert done.stdout == b"[0]<stdout>:a\n[0]<stdout>:b\n[0]<stdout>:c\n"


def test_a_terminal_reaches_rank_0(launcher: Launcher) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        words = launcher.command(
            "-np", "2", *python("import sys; print('got', sys.stdin.readline())")
        )
        os.execve(words[0], words, launcher.environment)
    try:
        os.write(terminal, b"hello\n")
        text = b""
        with contextlib.suppress(OSError):  # the end of a terminal is an error
            while data := os.read(terminal, 4096):
                text += data
        assert b"[0]<stdout>:got hello\r\n" in text
        assert b"[1]<stdout>:got \r\n" in text
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        os.close(terminal)


# Output.


def test_lines_of_both_streams_are_prefixed_to_the_byte(launcher: Launcher) -> None:
    script = r"""
import os
os.write(1, b'a\x00\xff\xc3\n\nlast')
os.write(2, b'warn\r\n')
"""
    done = launcher.run("-np", "1", *python(script))
    assert done.stdout == b"[0]<stdout>:a\x00\xff\xc3\n[0]<stdout>:\n[0]<stdout>:last\n"
    assert done.stderr == b"[0]<stderr>:warn\r\n"


def test_a_progress_bar_is_shown_while_it_moves(launcher: Launcher, tmp_path: Path) -> None:
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    job = launcher.start(
        "-np", "1", "sh", "-c", f"printf '10%%\\r'; cat '{fifo}'; printf '20%%\\r'"
    )
    assert job.stdout is not None
    first = b"[0]<stdout>:10%\r"
    assert job.stdout.read(len(first)) == first
    fifo.write_bytes(b"")
    assert job.communicate(timeout=LIMIT_S)[0] == b"[0]<stdout>:20%\r"


def test_eight_writers_never_mix_inside_a_line(launcher: Launcher) -> None:
    script = r"""
import os
rank = int(os.environ['HORA_RANK'])
for i in range(2000):
    line = b'%d ' % i + b'abcdefgh'[rank:rank + 1] * (i * 37 % 500) + b'\n'
    half = len(line) // 2
    os.write(1 + i % 2, line[:half])
    os.write(1 + i % 2, line[half:])
"""
    done = subprocess.run(
        launcher.command("-np", "8", "--quiet", *python(script)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        env=launcher.environment,
        check=True,
    )
    wanted = Counter(
        b"[%d]<%s>:%d %s"
        % (
            rank,
            b"stderr" if i % 2 else b"stdout",
            i,
            b"abcdefgh"[rank : rank + 1] * (i * 37 % 500),
        )
        for rank in range(8)
        for i in range(2000)
    )
    assert Counter(done.stdout.splitlines()) == wanted


def test_a_very_long_line_is_cut_and_complete(launcher: Launcher) -> None:
    done = launcher.run("-np", "1", *python("print('x' * 3_000_000)"))
    pieces = done.stdout.split(b"[0]<stdout>:")
    assert b"".join(pieces).count(b"x") == 3_000_000
    assert max(map(len, pieces)) <= (1 << 20) + 1


def test_a_slow_reader_loses_nothing(launcher: Launcher) -> None:
    job = launcher.start("-np", "4", *python("for i in range(25_000): print(i)"))
    assert job.stdout is not None
    wait_for_a_full_pipe(job)
    lines = Counter(job.stdout.read().splitlines())
    assert job.wait(LIMIT_S) == 0
    assert lines == Counter(b"[%d]<stdout>:%d" % (r, i) for r in range(4) for i in range(25_000))


def test_ctrl_c_works_while_nobody_reads_the_output(launcher: Launcher) -> None:
    job = launcher.start("-np", "2", "yes")
    wait_for_a_full_pipe(job)
    job.send_signal(signal.SIGINT)
    assert job.wait(LIMIT_S) == 128 + signal.SIGINT


def test_a_closed_output_ends_the_job(launcher: Launcher) -> None:
    job = launcher.start("-np", "2", "yes")
    assert job.stdout is not None
    read_lines(job, 1)
    job.stdout.close()
    assert job.wait(LIMIT_S) == 128 + signal.SIGPIPE


def test_output_to_a_socket(launcher: Launcher) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        job = subprocess.Popen(
            launcher.command("-np", "2", *python("print('x' * 400_000)")),
            stdout=theirs,
            env=launcher.environment,
        )
        theirs.close()
        with ours.makefile("rb") as reader:
            lines = sorted(reader)
        assert job.wait(LIMIT_S) == 0
    assert lines == [b"[%d]<stdout>:" % rank + b"x" * 400_000 + b"\n" for rank in range(2)]


def test_output_files_hold_the_lines_of_each_rank(launcher: Launcher, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    done = launcher.run(
        "-np", "11", "--output-filename", str(folder),
        "sh", "-c", "echo $HORA_RANK; printf 'no newline' >&2",
    )  # fmt: skip
    assert done.returncode == 0
    assert sorted(p.name for p in folder.iterdir()) == [f"rank.{r:02}" for r in range(11)]
    for rank in range(11):
        files = folder / f"rank.{rank:02}"
        assert (files / "stdout").read_text() == f"[{rank}]<stdout>:{rank}\n"
        assert (files / "stderr").read_text() == f"[{rank}]<stderr>:no newline\n"
    assert b"[10]<stdout>:10\n" in done.stdout


def test_output_files_of_a_single_rank(launcher: Launcher, tmp_path: Path) -> None:
    script = r"printf 'a\r\n10%%\r20%%\r'"
    done = launcher.run("-np", "1", "--output-filename", str(tmp_path), "sh", "-c", script)
    assert done.returncode == 0
    wanted = b"[0]<stdout>:a\r\n[0]<stdout>:10%\r[0]<stdout>:20%\r"
    assert (tmp_path / "rank.0" / "stdout").read_bytes() == wanted == done.stdout


def test_timestamps_stand_before_the_prefix(launcher: Launcher) -> None:
    done = launcher.run("-np", "1", "--prefix-output-with-timestamp", "echo", "hi")
    assert re.fullmatch(
        rb"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\[0\]<stdout>:hi\n", done.stdout
    ), done.stdout


# Exit codes and reports.


def test_all_zero_is_zero_even_when_some_end_early(launcher: Launcher) -> None:
    done = launcher.run("-np", "4", "sh", "-c", "[ $HORA_RANK = 0 ] || sleep 0.3; exit 0")
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_first_failure_ends_the_job_with_its_code_and_last_lines(launcher: Launcher) -> None:
    script = """
import os, sys, time
if os.environ['HORA_RANK'] == '2':
    for i in range(30):
        print('line', i, file=sys.stderr)
    sys.exit(3)
time.sleep(1000)
"""
    done = launcher.run("-np", "4", *python(script))
    assert done.returncode == 3
    text = done.stderr.decode()
    assert "Process 2 exit with status code 3.\n" in text
    assert "Terminating remaining workers after failure of Process 2.\n" in text
    report = text[text.index("horarun: rank 2 (pid ") :]
    assert re.match(r"horarun: rank 2 \(pid \d+\) exited with status 3\.\n", report)
    tail = report[report.index("on stderr:\n") :].splitlines()[1:]
    assert tail == [f"  line {i}" for i in range(10, 30)]
    assert "Process 0" not in text


def test_a_killed_rank_is_named_with_its_signal(launcher: Launcher) -> None:
    done = launcher.run("-np", "3", "sh", "-c", "[ $HORA_RANK = 1 ] && kill -9 $$; exec sleep 1000")
    assert done.returncode == 137
    assert re.search(
        rb"horarun: rank 1 \(pid \d+\) was killed by signal 9 \(Killed\)\.", done.stderr
    )
    assert b"Process 1 exit with status code 137." in done.stderr


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(launcher: Launcher) -> None:
    script = "trap '' TERM; [ $HORA_RANK = 1 ] && exit 5; while :; do sleep 1; done"
    assert launcher.run("-np", "2", "bash", "-c", script).returncode == 5


def test_a_stopped_rank_is_ended_too(launcher: Launcher) -> None:
    script = "[ $HORA_RANK = 1 ] && exit 5; kill -STOP $$"
    assert launcher.run("-np", "2", "sh", "-c", script).returncode == 5


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["-np", "0", "true"], 2, "must be from 1 to 1024, not 0"),
        (["-np", "2000", "true"], 2, "must be from 1 to 1024, not 2000"),
        (["-np", "two", "true"], 2, "-np needs a number of processes, such as -np 4, not 'two'"),
        (["-np"], 2, "-np (or --num-proc) needs a value"),
        (["-np", "2"], 2, "no command to run"),
        (["true"], 2, "-np N"),
        (["-np", "2", "--nonsense", "true"], 2, "--nonsense"),
        (["-np", "2", "-H", "localhost", "true"], 2, "Invalid host input"),
        (["-np", "2", "--hostfile", "/no/such", "true"], 2, "--hostfile: cannot open '/no/such'"),
        (["-np", "2", "--config-file", "/etc", "true"], 2, "--config-file: cannot read '/etc'"),
        (["-np", "2", "--cache-capacity", "-1", "true"], 2, "--cache-capacity: '-1' is not"),
        (["-np", "2", "--log-level", "loud", "true"], 2, "HORA_LOG_LEVEL='loud' is not one of"),
        (["-np", "3", "-H", "localhost:2", "true"], 2, "Requested more processes (3)"),
        (["-np", "2", "--env", "HORA_SIZE=9", "true"], 2, "HORA_SIZE is set by horarun"),
        (["-np", "2", "--env", "HORA_WINDOW=x", "true"], 2, "HORA_WINDOW"),
        (["-np", "2", "--env", "HORA_FAULT=x", "true"], 2, "POINT one of kill-before-task"),
        (["-np", "2", "no-such-command"], 127, "'no-such-command' was not found in PATH"),
        (["-np", "2", "/no/such/command"], 127, "No such file"),
        (["-np", "2", "/etc/passwd"], 126, "not executable"),
        (["-np", "2", "/etc"], 126, "is a directory"),
    ],
)
def test_mistakes_are_said_before_anything_starts(
    launcher: Launcher, words: list[str], code: int, text: str
) -> None:
    done = launcher.run(*words)
    assert done.returncode == code
    assert done.stdout == b""
    assert text in done.stderr.decode()
    assert len(done.stderr.splitlines()) == 1


def test_help_and_version_are_answers(launcher: Launcher) -> None:
    assert b"HORA_HEARTBEAT_TIMEOUT_MS" in launcher.run("--help").stdout
    assert launcher.run("--version").stdout.startswith(b"horarun 0.")
    assert b"[X] shared memory" in launcher.run("--check-build").stdout
