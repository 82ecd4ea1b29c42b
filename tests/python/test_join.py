"""join: ranks that have different numbers of steps to do."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hora.numpy as hvd


@pytest.mark.parametrize("size", [1, 2, 4])
def test_join(checked: Callable[..., list[Any]], check: Callable[[], Any], size: int) -> None:
    """Run every check of this file."""
    results = checked(check, size)
    assert results == results[:1] * size


def uneven(steps: int, first: int) -> int:
    """Rank r makes `steps` steps more than rank r-1, counted from `first`; return who was last."""
    size = hvd.size()
    place = (hvd.rank() - first) % size
    mine = steps * (place + 1)
    for step in range(mine):
        there = [rank for rank in range(size) if steps * ((rank - first) % size + 1) > step]
        total = sum(rank + 1 for rank in there)
        handles = [
            hvd.allreduce_async(np.full(count, hvd.rank() + 1.0), op=op, name=f"{count}.{op}")
            for count in (1, 100, 70_000)
            for op in (hvd.Sum, hvd.Average)
        ]
        sums, averages = handles[::2], handles[1::2]
        for handle in sums:
            assert (hvd.synchronize(handle) == total).all(), step
        for handle in averages:
            assert (hvd.synchronize(handle) == total / size).all(), step
    return hvd.join()


def check_uneven_steps() -> list[int]:
    """The averages divide by all ranks; the last one is known to all."""
    hvd.init()
    lasts = [uneven(3, first) for first in range(hvd.size())]
    assert lasts == [(first - 1) % hvd.size() for first in range(hvd.size())]
    return lasts


def check_unnamed_calls_are_in_step_again_after_a_join() -> list[int]:
    """Each rank makes another number of unnamed calls before it joins."""
    hvd.init()
    lasts = []
    for first in range(hvd.size()):
        if hvd.rank() != first:
            with pytest.raises(hvd.HoraInternalError, match="not supported with Join"):
                hvd.allgather(np.ones(2))
        for _ in range((hvd.rank() - first) % hvd.size()):
            hvd.allreduce(np.ones(3))
        lasts.append(hvd.join())
        assert (hvd.allgather(np.ones(2)) == 1).all()
        assert (hvd.allreduce(np.ones(3)) == 1).all()
    return lasts


def check_all_join_at_once() -> list[int]:
    hvd.init()
    lasts = [hvd.join(), hvd.join(device=0)]
    assert all(0 <= last < hvd.size() for last in lasts)
    return lasts


def check_zeros_in_every_reduction_and_dtype() -> None:
    hvd.init()
    if hvd.size() == 1:
        return
    for known in (False, True):
        if hvd.rank() == 0:
            hvd.join()
            continue
        for dtype in ("uint8", "int32", "int64", "float16", "float32", "float64"):
            value = np.full(5, hvd.rank() + 1, dtype)
            others = range(2, hvd.size() + 1)
            for op, expected in (
                (hvd.Sum, sum(others)),
                (hvd.Min, 0),
                (hvd.Max, hvd.size()),
                (hvd.Product, 0),
            ):
                result = hvd.allreduce(value, op=op, name=f"{dtype}.{op}")
                assert result.tolist() == [expected] * 5, known
            scaled = hvd.allreduce(value, op=hvd.Sum, prescale_factor=2.0, name=f"{dtype}.scaled")
            assert scaled.tolist() == [2 * sum(others)] * 5
        hvd.join()


def check_collectives_that_need_the_joined_rank() -> None:
    hvd.init()
    if hvd.size() == 1:
        return
    for first in range(hvd.size()):
        if hvd.rank() == first:
            assert hvd.join() != first
            continue
        text = "is not supported with Join at this time."
        for call, message in (
            (
                lambda: hvd.allgather([1.0], name="gather"),
                f"Allgather {text} Specify sparse_to_dense=True if using DistributedOptimizer",
            ),
            (lambda root=first: hvd.broadcast([1.0], root, name="cast"), f"Broadcast {text}"),
            (
                lambda: hvd.alltoall(np.ones(hvd.size()), name="all"),
                f"Alltoall {text}",
            ),
            (
                lambda: hvd.reducescatter([1.0], name="scatter"),
                f"Reducescatter {text}",
            ),
            (lambda: hvd.add_process_set([0]), f"Add process set {text}"),
        ):
            with pytest.raises(hvd.HoraInternalError, match=message) as caught:
                call()
            assert caught.value.kind == "mismatch"
            assert f"rank {first} has joined" in str(caught.value)
        hvd.barrier()
        hvd.barrier()
        assert hvd.join() != first
    # What failed before works now, with the same names.
    assert hvd.allgather([hvd.rank()], name="gather").tolist() == list(range(hvd.size()))
    assert hvd.broadcast([hvd.rank()], 1, name="cast").tolist() == [1]


def check_what_was_started_before_the_join_is_real() -> None:
    hvd.init()
    handles = [
        hvd.allreduce_async(np.full(10, 1.0 + i), op=hvd.Sum, name=f"early{i}") for i in range(5)
    ]
    gathered = hvd.allgather_async([hvd.rank()], name="early")
    if hvd.rank() % 2 == 0:
        hvd.join()
    for i, handle in enumerate(handles):
        assert (hvd.synchronize(handle) == (1.0 + i) * hvd.size()).all()
    assert hvd.synchronize(gathered).tolist() == list(range(hvd.size()))
    if hvd.rank() % 2 == 1:
        hvd.join()


def check_joined_ranks_of_process_sets() -> None:
    hvd.init()
    if hvd.size() < 4:
        return
    left, right = hvd.add_process_set([0, 1]), hvd.add_process_set([1, 2, 3])
    if hvd.rank() != 1:
        mine = left if hvd.rank() == 0 else right
        for step in range(10):
            value = np.full(40_000, hvd.rank() + 1.0)
            result = hvd.allreduce(value, op=hvd.Sum, name="same", process_set=mine)
            assert (result == (1.0 if mine is left else 7.0)).all(), step
            average = hvd.allreduce(value, process_set=mine)
            assert (average == (0.5 if mine is left else 7 / 3)).all()
            hvd.barrier(mine)
        with pytest.raises(hvd.HoraInternalError, match="Allgather is not supported with Join"):
            hvd.allgather([1.0], process_set=mine)
        with pytest.raises(hvd.HoraInternalError, match="Remove process set is not supported"):
            hvd.remove_process_set(left)
    hvd.join()
    assert hvd.allreduce([1.0], op=hvd.Sum).tolist() == [hvd.size()]
    hvd.remove_process_set(left)
    hvd.remove_process_set(right)


def wait_for_file(path: Path) -> None:
    """Wait until another rank has made the file."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


def joined_rank_shuts_down() -> str:
    """Rank 0 leaves the job while its main thread is in join; return what each rank is told."""
    told = Path(os.environ["JOINED"])

    def leave() -> None:
        wait_for_file(told)
        hvd.shutdown()

    hvd.init()
    thread = threading.Thread(target=leave)
    if hvd.rank() == 0:
        thread.start()
        with pytest.raises(hvd.HoraInternalError) as caught:
            hvd.join()
        thread.join()
    else:
        hvd.allreduce([1.0], name="done only if rank 0 has joined")
        told.touch()
        with pytest.raises(hvd.HoraInternalError) as caught:  # noqa: PT012
            while True:
                hvd.allreduce([1.0])
    return str(caught.value.kind)


def a_rank_dies_while_others_have_joined() -> str:
    """Rank 2 is killed; those in join are told who it was."""
    hvd.init()
    hvd.allreduce([1.0])
    if hvd.rank() == 2:
        hvd.allreduce([1.0], name="done only if all others have joined")
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(hvd.HoraInternalError, match="Hora lost rank 2") as caught:
        hvd.join()
    assert caught.value.peer == 2
    return str(caught.value.kind)


def test_a_joined_rank_can_leave_the_job(run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    job = run_ranks(3, joined_rank_shuts_down, env={"JOINED": str(tmp_path / "joined")})
    assert job.results("joined_rank_shuts_down") == ["shutdown"] * 3


def test_a_death_ends_a_join(run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(3, a_rank_dies_while_others_have_joined)
    assert job.status != 0
    outcomes = job.outcomes["a_rank_dies_while_others_have_joined"]
    # Who is quick enough says so before the launcher ends it.
    assert all(outcome == (True, "peer_lost") for outcome in outcomes if outcome is not None)
    assert outcomes[2] is None
