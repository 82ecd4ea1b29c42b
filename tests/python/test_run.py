"""``hora.run``: functions of any kind on ranks of their own, and what comes back."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.launching import LIMIT_S, find_horarun, marked_processes

hora = pytest.importorskip("hora")
pytest.importorskip("cloudpickle")


@pytest.fixture(autouse=True)
def _horarun() -> None:
    find_horarun()


def test_results_come_in_rank_order_from_a_closure() -> None:
    base = 10

    def work(factor: int, plus: int = 0) -> tuple[int, int]:
        import hora as hvd

        hvd.init()
        return base * factor * hvd.rank() + plus, hvd.size()

    before = dict(os.environ)
    assert hora.run(work, (2,), {"plus": 1}, np=3) == [(1, 3), (21, 3), (41, 3)]
    assert dict(os.environ) == before


def test_ranks_communicate_and_may_outnumber_cores() -> None:
    pytest.importorskip("hora.numpy")

    def work() -> float:
        import numpy as np

        import hora.numpy as hvd

        hvd.init()
        return float(hvd.allreduce(np.ones(2), name="a", op=hvd.Sum)[0])

    assert hora.run(work, num_proc=5) == [5.0] * 5


def test_big_results_and_lambdas() -> None:
    results = hora.run(lambda: bytes(60_000_000), np=2)
    assert [len(result) for result in results] == [60_000_000] * 2
    made = hora.run(lambda: lambda x: x + 1, np=1)
    assert made[0](1) == 2


def test_the_exception_of_the_failing_rank_is_raised_with_its_traceback() -> None:
    def fail_on_one() -> None:
        import numpy as np

        import hora.numpy as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise KeyError("the reason")
        while True:
            hvd.allreduce(np.ones(2), name="a")

    pytest.importorskip("hora.numpy")
    with pytest.raises(KeyError, match="the reason") as caught:
        hora.run(fail_on_one, np=3)
    cause = str(caught.value.__cause__)
    assert "rank 1:" in cause
    assert "in fail_on_one" in cause


def test_an_exception_that_cannot_be_sent_is_told_by_its_text() -> None:
    def fail() -> None:
        class OddError(Exception):
            def __reduce__(self) -> Any:
                raise TypeError("no")

        raise OddError("peculiar")

    with pytest.raises(RuntimeError, match="peculiar"):
        hora.run(fail, np=1)


def test_a_rank_that_dies_without_words() -> None:
    with pytest.raises(RuntimeError, match=r"Process name: 0\nExit code: 137"):
        hora.run(lambda: os.kill(os.getpid(), 9), np=1)
    with pytest.raises(RuntimeError, match="without a result"):
        hora.run(lambda: os._exit(0), np=1)
    with pytest.raises(RuntimeError, match=r"sys.exit\(3\)"):
        hora.run(lambda: sys.exit(3), np=1)


def test_output_files_and_what_ranks_print(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hora.run(lambda: print("hello"), np=2, output_filename=str(tmp_path))
    assert (tmp_path / "rank.1" / "stdout").read_text() == "[1]<stdout>:hello\n"
    # A notebook's stdout is no descriptor either.
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "[0]<stdout>:hello",
        "[1]<stdout>:hello",
    ]


def test_arguments_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="hosts and hostfile only allow one"):
        hora.run(len, hosts="a:1", hostfile="f")
    with pytest.raises(ValueError, match="use_gloo and use_mpi only allow one"):
        hora.run(len, use_gloo=True, use_mpi=True)
    with pytest.raises(ValueError, match="slots, host_discovery_script: this version"):
        hora.run(len, np=1, slots=2, host_discovery_script="find")
    with pytest.raises(ValueError, match="min_np=1 and min_num_proc=2 are two names"):
        hora.run(len, np=3, min_np=1, min_num_proc=2)
    with pytest.raises(ValueError, match="two names of one number"):
        hora.run(len, np=1, num_proc=2)
    with pytest.raises(ValueError, match="cannot send"):
        hora.run(len, (sys._getframe(),), np=1)
    with pytest.raises(RuntimeError, match="ended with status 2"):
        hora.run(len, np=2, hosts="localhost:1")
    for most in ({"min_np": 3}, {"max_num_proc": 1}):
        with pytest.raises(RuntimeError, match="ended with status 2"):
            hora.run(len, np=2, **most)


def test_the_others_go_on_when_a_rank_dies() -> None:
    pytest.importorskip("hora.numpy")

    def work() -> tuple[int, int]:
        import numpy as np

        import hora.numpy as hvd

        hvd.init()
        born = hvd.rank()
        alive = 3
        while alive == 3:  # Not size(), which may shrink on one rank before it does on another.
            handle = hvd.allreduce_async(np.ones(2), name="a")
            alive = min(len(ranks) for _, ranks in hvd.contributors(handle))
            hvd.synchronize(handle)
            if born == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        return born, hvd.size()

    assert hora.run(work, np=3, min_num_proc=2, max_num_proc=3) == [(0, 2), (2, 2)]
    with pytest.raises(RuntimeError, match=r"Process name: 1\nExit code: 137"):
        hora.run(work, np=3, min_np=3)


SCRIPT = """
import os, time
import hora
def work():
    print('up', os.getpid(), flush=True)
    time.sleep(1000)
if os.environ.get('NESTED'):
    work = lambda: hora.run(lambda: os.getpid(), np=1)
print(hora.run(work, np=2), flush=True)
"""


def start(tmp_path: Path, **variables: str) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)  # no `if __name__`: ranks do not run it again
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HORARUN_TEST_MARK": str(tmp_path), **variables},
    )


@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGKILL])
def test_an_end_of_the_caller_ends_the_ranks(tmp_path: Path, signo: signal.Signals) -> None:
    job = start(tmp_path)
    assert job.stdout is not None
    for _ in range(2):
        assert "up" in job.stdout.readline()
    job.send_signal(signo)
    _, errors = job.communicate(timeout=LIMIT_S)  # until the last of them has closed its output
    assert job.returncode == -signo
    if signo == signal.SIGINT:
        assert "KeyboardInterrupt" in errors
        assert marked_processes(str(tmp_path)) == []


def test_a_job_in_a_job(tmp_path: Path) -> None:
    job = start(tmp_path, NESTED="1")
    output, errors = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 0, errors
    assert output.count("[") >= 2


APART = """#!/bin/sh
# Stands for ssh to a host that does not see the caller's temporary folder.
exec unshare --mount sh -c 'mount -t tmpfs none "$TMPDIR" && exec sh -c "$0"' "$2"
"""


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every host but this one have temporary folders of its own."""
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("no right to make mount namespaces")
    reach, private = tmp_path / "reach", tmp_path / "private"
    reach.write_text(APART)
    reach.chmod(0o755)
    private.mkdir()
    monkeypatch.setenv("HORA_SSH", str(reach))
    monkeypatch.setenv("TMPDIR", str(private))
    monkeypatch.setattr("tempfile.tempdir", None)


def place() -> tuple[str, int, bool]:
    import hora as hvd

    hvd.init()
    host = os.environ["HOROVOD_HOSTNAME"]
    return host, hvd.rank(), any(Path(os.environ["TMPDIR"]).iterdir())


@pytest.mark.usefixtures("apart")
def test_hosts_need_not_share_the_temporary_folder() -> None:
    here, there = hora.run(lambda: place(), hosts="localhost:1,elsewhere:1")
    assert here == ("localhost", 0, True)
    assert there == ("elsewhere", 1, False)
    large = hora.run(lambda: bytes(3_000_000), hosts="elsewhere:2")
    assert [len(result) for result in large] == [3_000_000] * 2


@pytest.mark.usefixtures("apart")
def test_an_exception_comes_from_another_host() -> None:
    def fail() -> None:
        raise KeyError("lost elsewhere")

    with pytest.raises(KeyError, match="lost elsewhere"):
        hora.run(fail, hosts="elsewhere:1")


def test_the_office_answers_nobody_who_does_not_know_the_key(tmp_path: Path) -> None:
    from hora._run_exchange import Office, Visitor

    (tmp_path / "task").write_bytes(b"a task")
    office = Office(tmp_path)
    try:
        port = int(office.variables["HORA_RUN_PORT"])
        for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(64), bytes(5000)):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
                # It may have closed before we have said everything.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    stranger.sendall(noise)
                with contextlib.suppress(OSError):
                    stranger.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    assert stranger.recv(1) == b""
        variables = {**office.variables, "HORA_RENDEZVOUS": "127.0.0.1:1"}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            visitor = Visitor()
            assert "HORA_RUN_KEY" not in os.environ
        assert visitor.task() == b"a task"
        visitor.give(3, b"a result")
        assert (tmp_path / "result.3").read_bytes() == b"a result"
        visitor._key = bytes(32)
        with pytest.raises(OSError, match="closed"):
            visitor._ask_once(b"task")
    finally:
        office.close()
