"""horarun ends what its ranks started: no process, descriptor or shared memory is left, ever.

Ranks die, hang, ignore signals and start daemons; horarun is interrupted, stopped and killed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.launching import (
    LIMIT_S,
    SAVES_AT_SIGUSR1,
    Launcher,
    launching,
    marked_processes,
    python,
    read_lines,
    wait_for_line,
    wait_for_state,
    wait_until_gone,
)


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    yield from launching()


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print('daemon', flush=True)
        time.sleep(1000)
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize("end", ["", "sys.exit(7)", "os.kill(os.getpid(), 9)", "time.sleep(1000)"])
def test_a_daemon_is_gone_when_horarun_returns(launcher: Launcher, end: str) -> None:
    fails = "if os.environ['HORA_RANK'] == '1': sys.exit(7)\n" if "sleep" in end else ""
    done = launcher.run("-np", "2", *python(DAEMON + fails + end))
    assert done.returncode == {"": 0, "sys.exit(7)": 7, "time.sleep(1000)": 7}.get(end, 137)


def test_helpers_may_clean_up_before_they_are_killed(launcher: Launcher) -> None:
    name = f"hora_test_{launcher.mark}"
    script = f"""
import os
from multiprocessing import shared_memory
shared_memory.SharedMemory(name='{name}' + os.environ['HORA_RANK'], create=True, size=4096)
os.kill(os.getpid(), 9)
"""
    assert launcher.run("-np", "2", *python(script)).returncode == 137
    assert list(Path("/dev/shm").glob(f"{name}*")) == []


@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_to_horarun_ends_everything(launcher: Launcher, signo: signal.Signals) -> None:
    job = launcher.start("-np", "2", *python(DAEMON + "time.sleep(1000)"))
    read_lines(job, 2)
    job.send_signal(signo)
    _, errors = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 128 + signo
    assert b"got signal %d" % signo in errors
    assert marked_processes(launcher.mark) == []


def test_a_second_ctrl_c_kills_at_once(launcher: Launcher) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 1; done"
    job = launcher.start("-np", "2", "bash", "-c", script)
    assert job.stderr is not None
    read_lines(job, 2)
    job.send_signal(signal.SIGINT)
    assert b"got signal 2" in job.stderr.readline()
    job.send_signal(signal.SIGINT)
    assert job.wait(LIMIT_S) == 130
    assert marked_processes(launcher.mark) == []


def test_an_ignored_hangup_stays_ignored(launcher: Launcher) -> None:
    script = "echo ready; kill -HUP $PPID; kill -HUP $$; exit 0"
    done = subprocess.run(
        [
            "sh",
            "-c",
            'trap "" HUP; exec "$@"',
            "sh",
            *launcher.command("-np", "1", "sh", "-c", script),
        ],
        capture_output=True,
        timeout=LIMIT_S,
        env=launcher.environment,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"[0]<stdout>:ready\n")


def test_user_signals_reach_the_workers(launcher: Launcher) -> None:
    job = launcher.start("-np", "2", *python(SAVES_AT_SIGUSR1))
    read_lines(job, 2)
    job.send_signal(signal.SIGUSR1)
    output, _ = job.communicate(timeout=LIMIT_S)
    assert sorted(output.splitlines()) == [b"[0]<stdout>:saved", b"[1]<stdout>:saved"]
    assert job.returncode == 0


def test_killing_horarun_leaves_no_process(launcher: Launcher) -> None:
    job = launcher.start("-np", "3", *python(DAEMON + "time.sleep(1000)"))
    read_lines(job, 3)
    job.kill()
    job.communicate(timeout=LIMIT_S)
    wait_until_gone(launcher.mark)


def test_killing_the_supervising_process_leaves_no_process(launcher: Launcher) -> None:
    job = launcher.start("-np", "3", *python(DAEMON + "time.sleep(1000)"))
    read_lines(job, 3)
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    assert len(children) == 1
    os.kill(int(children[0]), signal.SIGKILL)
    _, errors = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 137
    assert b"the supervising process was killed by signal 9 (Killed)" in errors
    assert marked_processes(launcher.mark) == []


def test_ctrl_z_stops_the_workers_and_fg_lets_them_go_on(launcher: Launcher) -> None:
    job = launcher.start(
        "-np", "2", *python("import os, time; print(os.getpid()); time.sleep(1000)")
    )
    pids = [int(line.split(b":")[1]) for line in read_lines(job, 2)]
    for signo, state in [(signal.SIGTSTP, "T"), (signal.SIGCONT, "S")]:
        job.send_signal(signo)
        for pid in pids:
            wait_for_state(pid, state)
    job.terminate()
    job.communicate(timeout=LIMIT_S)
    assert job.returncode == 143


def test_many_short_jobs_leave_nothing(launcher: Launcher) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for number in range(200):
        code = number % 3
        done = subprocess.run(
            launcher.command("-np", "2", "sh", "-c", f"echo x; exit $((HORA_RANK * {code}))"),
            capture_output=True,
            timeout=LIMIT_S,
            env=launcher.environment,
            check=False,
        )
        assert done.returncode == code
        assert sorted(done.stdout.splitlines()) == [b"[0]<stdout>:x", b"[1]<stdout>:x"]
    assert marked_processes(launcher.mark) == []
    assert set(os.listdir("/proc/self/fd")) == before


# Together with the runtime.

MEET = """
import atexit, os, signal, sys, time
import numpy as np
atexit.register(lambda: time.sleep(1.5 if os.environ['HORA_RANK'] == '2' else 0))
import hora.numpy as hvd
hvd.init()
hvd.allreduce(np.ones(3, np.float32), name='first')
if hvd.rank() == 2:
    print('ready', os.getpid())
    END
while True:
    hvd.allreduce(np.ones(3, np.float32), name='next')
"""


def test_peers_of_a_killed_rank_say_who_died_and_how(launcher: Launcher) -> None:
    pytest.importorskip("hora.numpy")
    done = launcher.run("-np", "3", *python(MEET.replace("END", "os.kill(os.getpid(), 9)")))
    assert done.returncode == 137
    for rank in (b"0", b"1"):
        assert re.search(
            rb"\[%s\]<stderr>:.*rank 2 \(pid \d+ on .*killed by signal 9 \(Killed\)" % rank,
            done.stderr,
        ), done.stderr


def test_a_rank_that_fails_in_order_is_the_cause_though_its_peers_end_first(
    launcher: Launcher,
) -> None:
    pytest.importorskip("hora.numpy")
    done = launcher.run("-np", "3", *python(MEET.replace("END", "sys.exit(5)")))
    assert done.returncode == 5
    assert re.search(rb"horarun: rank 2 \(pid \d+\) exited with status 5\.", done.stderr)


def test_a_stopped_rank_is_named_and_so_is_its_return(launcher: Launcher) -> None:
    pytest.importorskip("hora.numpy")
    job = launcher.start("-np", "3", *python(MEET.replace("END", "pass")))
    assert job.stderr is not None
    pid = int(read_lines(job, 1)[0].split()[-1])
    os.kill(pid, signal.SIGSTOP)
    wait_for_line(job, rb"horarun: rank 2 \(pid %d on .* no heartbeat for .*stopped" % pid)
    os.kill(pid, signal.SIGCONT)
    wait_for_line(job, rb"horarun: rank 2 \(pid %d on " % pid)
    job.terminate()
    job.communicate(timeout=LIMIT_S)
    assert job.returncode == 143
