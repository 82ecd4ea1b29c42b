"""From import to exit: init, shutdown, errors, signals, forks and the end of the interpreter."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hora.numpy as hvd

RunRanks = Callable[..., Any]


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in one process without a launcher."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **env},
    )


def script(directory: Path, code: str) -> Path:
    """Write a script."""
    path = directory / "script.py"
    path.write_text(textwrap.dedent(code))
    return path


def test_without_a_launcher_it_is_a_job_of_one() -> None:
    done = python(
        """
        import hora, hora.numpy as hvd
        hora.init()
        hora.init()
        assert (hora.rank(), hora.size()) == (0, 1)
        assert hvd.allreduce([1, 2]).tolist() == [1, 2]
        hora.shutdown()
        hora.shutdown()
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_variables_that_cannot_work_are_named(tmp_path: Path, run_ranks: RunRanks) -> None:
    start = "import hora; hora.init(); print('started')"
    done = python(start, HORA_TIMELINE="/no/such/folder/t.json")
    assert "HORA_TIMELINE='/no/such/folder/t.json': " in done.stderr
    done = python(start, HORA_FAULT="kill")
    assert "ValueError: HORA_FAULT='kill' is not POINT:NUMBER" in done.stderr
    done = python(start, HORA_FUSON_BYTES="1M")
    assert done.stdout == "started\n"
    assert len(done.stderr.splitlines()) == 1
    assert "HORA_FUSON_BYTES is none of Hora's variables" in done.stderr
    assert "the nearest is HORA_FUSION_BYTES" in done.stderr
    job = run_ranks(2, script(tmp_path, start), env={"HORA_CONGESTION": "pigeon"})
    assert job.status != 0
    assert "HORA_CONGESTION='pigeon' is not one of this kernel's: " in job.output


@pytest.mark.parametrize("rank", [0, 1])
def test_ctrl_c_ends_init_while_another_rank_never_comes(rank: int) -> None:
    done = python(
        """
        import os, signal, threading
        import hora

        try:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            hora.init()
        except KeyboardInterrupt:
            assert not hora.is_initialized()
            print("interrupted")
        """,
        HORA_RANK=str(rank),
        HORA_SIZE="2",
        HORA_JOB=f"lonely.{os.getpid()}.{rank}",
        HORA_START_TIMEOUT_MS="600000",
    )
    assert done.stdout == "interrupted\n", done.stderr


def test_a_stall_is_reported_with_who_has_what(tmp_path: Path, run_ranks: RunRanks) -> None:
    job = run_ranks(
        2,
        script(
            tmp_path,
            """
            import signal
            import hora.numpy as hvd

            hvd.init()
            if hvd.rank() == 1:
                signal.pause()
            hvd.allreduce([1.0], name="early")
            """,
        ),
        env={"HORA_STALL_CHECK_TIME_SECONDS": "0.2", "HORA_STALL_SHUTDOWN_TIME_SECONDS": "3"},
    )
    assert job.status != 0
    log = [line[12:] for line in job.output.splitlines() if line.startswith("[0]<stderr>:")]
    warned = next(i for i, line in enumerate(log) if " warning [rank 0 epoch 1] " in line)
    assert "for more than 0.2 seconds" in log[warned]
    assert log[warned + 1 : warned + 4] == [
        "Missing ranks:",
        "1: [allreduce.early] (rank 1 has not submitted anything yet; it is alive: its "
        "heartbeats come)",
        "Waiting tensors:",
    ]
    who = r"'allreduce\.early' \(ALLREDUCE\): rank 0 has it, rank 1 does not, for \d+(\.\d+)? s"
    assert re.match(who, log[warned + 4])
    assert "the limit is HORA_STALL_SHUTDOWN_TIME_SECONDS" in job.output


def test_queries_of_features() -> None:
    assert not hvd.mpi_built()
    assert not hvd.mpi_enabled()
    assert hvd.gloo_built()
    assert hvd.nccl_built() == 0
    assert not hvd.cuda_built()
    with pytest.raises(ValueError, match="MPI"):
        hvd.mpi_threads_supported()
    with pytest.raises(ValueError, match="MPI"):
        hvd.init(comm=object())  # type: ignore[arg-type]
    assert hvd.HorovodInternalError is hvd.HoraInternalError
    assert issubclass(hvd.HoraInternalError, RuntimeError)
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 2, 3, 4, 5)


def test_torch_is_imported_by_nobody_else_and_missed_clearly(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    done = python("import hora.numpy, sys; assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr
    done = python(
        "import sys; sys.path.insert(0, '" + str(tmp_path) + "'); import hora.torch",
    )
    assert done.returncode != 0
    assert "hora.torch needs PyTorch, which is not installed" in done.stderr


@pytest.mark.parametrize("order", ["torch, hora.torch", "hora.torch, torch"])
def test_torch_may_be_imported_first_or_last(order: str) -> None:
    done = python(
        f"import {order}\nhora.torch.init(); assert hora.torch.allreduce(torch.ones(3)).sum() == 3"
    )
    assert done.returncode == 0, done.stderr


def held() -> tuple[int, int, int]:
    """Return how many descriptors, threads and bytes of memory this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    threads = len(os.listdir("/proc/self/task"))
    return len(os.listdir("/proc/self/fd")), threads, pages * os.sysconf("SC_PAGE_SIZE")


def settled(threads: int) -> tuple[int, int, int]:
    """Return `held()` without threads that end: one that was joined is listed for a moment."""
    end = time.monotonic() + 10
    while (now := held())[1] > threads and time.monotonic() < end:
        os.sched_yield()
    return now


def many_lives() -> None:
    """Run 50 jobs in one process, one after the other, each with handles that stay open."""
    threads = held()[1]
    early = held()
    for life in range(50):
        if life == 5:
            early = settled(threads)
        hvd.init()
        hvd.init()
        for number in range(3):
            hvd.allreduce_async(np.ones(3), name=f"of {hvd.rank()} alone {number}")
        result = hvd.allreduce(np.full(3, float(life)), op=hvd.Sum)
        assert (result == life * hvd.size()).all()
        hvd.shutdown()
        hvd.shutdown()
        assert not hvd.is_initialized()
    late = settled(early[1])
    assert late[0] <= early[0]
    assert late[1] <= early[1]
    assert late[2] < early[2] + (16 << 20), "memory grows"


def a_second_init_keeps_handles() -> None:
    """Synchronize a handle after another init; numbers are never used again."""
    hvd.init()
    handle = hvd.allreduce_async(np.ones(3), name="kept")
    hvd.init()
    assert hvd.synchronize(handle).tolist() == [1, 1, 1]
    hvd.barrier()
    hvd.shutdown()
    hvd.init()
    assert hvd.allreduce_async(np.ones(3), name="kept") > handle
    hvd.barrier()


def interrupted_wait_can_be_repeated() -> None:
    """A signal handler ends a wait; the collective goes on."""
    hvd.init()

    def on_alarm(*_: object) -> None:
        raise TimeoutError("alarm")

    if hvd.rank() == 0:
        signal.signal(signal.SIGALRM, on_alarm)
        handle = hvd.allreduce_async(np.ones(4), op=hvd.Sum, name="slow")
        with pytest.raises(TimeoutError, match="alarm"):  # noqa: PT012
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            hvd.synchronize(handle)
        with pytest.raises(TimeoutError, match="alarm"):  # noqa: PT012
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            hvd.allreduce(np.ones(2), op=hvd.Sum, name="blocked")
        hvd.allreduce(np.ones(1), name="go")
    else:
        hvd.allreduce(np.ones(1), name="go")
        handle = hvd.allreduce_async(np.ones(4), op=hvd.Sum, name="slow")
        hvd.allreduce(np.ones(2), op=hvd.Sum, name="blocked")
    assert (hvd.synchronize(handle) == hvd.size()).all()
    hvd.barrier()


def test_lives_handles_and_signals(run_ranks: RunRanks) -> None:
    functions = [many_lives, a_second_init_keeps_handles, interrupted_wait_can_be_repeated]
    job = run_ranks(2, functions, timeout=200)
    for function in functions:
        job.results(function.__name__)
    assert job.status == 0, job.output


def ends_without_shutdown() -> None:
    """Leave a handle and daemon threads at work, and return.

    The threads come back from the core while the interpreter ends: some wait for what nobody else
    calls, some are somewhere in a loop.
    """
    hvd.init()
    hvd.barrier()
    hvd.allreduce_async(np.ones(3), name=f"never finished {hvd.rank()}")

    def reduce_forever(name: str) -> None:
        while True:
            hvd.allreduce(np.ones(3), name=name)

    for number in range(4):
        for name in (f"waits {number} on {hvd.rank()}", f"loops {number}"):
            threading.Thread(target=reduce_forever, args=(name,), daemon=True).start()
    hvd.barrier()


@pytest.mark.parametrize("attempt", range(5))
def test_exit_without_shutdown_does_not_hang(run_ranks: RunRanks, attempt: int) -> None:
    job = run_ranks(3, ends_without_shutdown, timeout=120)
    job.results("ends_without_shutdown")
    assert job.status == 0, job.output


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("raise ArithmeticError('loss is nan')", "ArithmeticError: loss is nan"),
        ("sys.exit(3)", "sys.exit(3)"),
        ("signal.raise_signal(signal.SIGINT)", "KeyboardInterrupt"),
    ],
)
def test_last_words_reach_the_other_ranks(
    run_ranks: RunRanks, tmp_path: Path, statement: str, words: str
) -> None:
    code = f"""
        import signal, sys, numpy as np, hora.numpy as hvd
        hvd.init()
        hvd.barrier()
        if hvd.rank() == 1:
            open_handle = hvd.allreduce_async(np.ones(3), name="of 1 alone")
            {statement}
        try:
            open_handle = hvd.allreduce_async(np.ones(3), name="of 0 alone")
            hvd.allreduce(np.ones(3), name="x")
        except hvd.HoraInternalError as error:
            with open({str(tmp_path)!r} + f"/heard.{{hvd.rank()}}", "w") as out:
                out.write(f"{{error.kind}} {{error}}")
            raise
        """
    job = run_ranks(2, script(tmp_path, code), timeout=120)
    assert job.status != 0
    assert words in (tmp_path / "heard.0").read_text()


def forked_children() -> None:
    """Call hora in a forked child: queries work, collectives say what is wrong, exit is quiet."""
    hvd.init()
    hvd.barrier()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert hvd.rank() in (0, 1)
            words = (
                rf"forked from the rank {hvd.rank()} process \(pid {parent}\); call hora from the"
            )
            for call in (lambda: hvd.allreduce(np.ones(1)), hvd.barrier, hvd.init):
                with pytest.raises(hvd.HoraInternalError, match=words):
                    call()
            hvd.shutdown()
            status = 0
        finally:
            # Through the interpreter's exit handlers, as multiprocessing does not.
            import atexit

            atexit._run_exitfuncs()
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0
    subprocess.run(["true"], check=True)
    assert (hvd.allreduce(np.ones(5), op=hvd.Sum) == hvd.size()).all()
    hvd.barrier()


def test_forked_children_are_told_and_harm_nobody(run_ranks: RunRanks) -> None:
    job = run_ranks(2, forked_children, timeout=120)
    job.results("forked_children")


def test_data_loader_workers(run_ranks: RunRanks, tmp_path: Path) -> None:
    code = """
        import torch, hora.torch as hvd
        from torch.utils.data import DataLoader, Dataset

        class Numbers(Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, i):
                return torch.tensor(float(i))

        def main():
            hvd.init()
            for context in ("fork", "spawn"):
                total = 0.0
                loader = DataLoader(
                    Numbers(), batch_size=2, num_workers=1, multiprocessing_context=context
                )
                for batch in loader:
                    total += hvd.allreduce(batch.sum(), op=hvd.Sum).item()
                assert total == 28 * hvd.size(), total

        if __name__ == "__main__":
            main()
        """
    job = run_ranks(2, script(tmp_path, code), timeout=200)
    assert job.status == 0, job.output


def test_ctrl_c_ends_a_waiting_job(tmp_path: Path) -> None:
    code = """
        import os, signal, threading, numpy as np, hora.numpy as hvd
        hvd.init()
        main = os.getpid()
        try:
            threading.Timer(0.3, lambda: os.kill(main, signal.SIGINT)).start()
            handle = hvd.allreduce_async(np.ones(1), name="x")
            if hvd.size() == 1:
                signal.pause()
        except KeyboardInterrupt:
            print("interrupted")
        """
    done = subprocess.run(
        [sys.executable, str(script(tmp_path, code))],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "interrupted\n", done.stderr
