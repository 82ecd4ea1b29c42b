"""What is said, and what happens, when some ranks do not submit what others wait for."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hora.numpy as hvd

# Nobody is called silent because the machine is busy.
PATIENT = {"HORA_HEARTBEAT_TIMEOUT_MS": "60000"}


def wait_for_each_other() -> str:
    """Ranks 0 and 1 wait for 'a', rank 2 for 'b'."""
    hvd.init()
    hvd.allreduce(np.ones(3), name="common")
    try:
        hvd.allreduce(np.ones(3), name="b" if hvd.rank() == 2 else "a")
    except hvd.HorovodInternalError as error:
        return str(error)
    return ""


def test_all_ranks_fail_together_with_the_report(run_ranks: Callable[..., Any]) -> None:
    """The text says who waits for whom, what missing ranks did last, and that they live."""
    limits = {"HORA_STALL_CHECK_TIME_SECONDS": "1", "HORA_STALL_SHUTDOWN_TIME_SECONDS": "3"}
    job = run_ranks(3, wait_for_each_other, env={**PATIENT, **limits})
    texts = job.results("wait_for_each_other")
    assert texts[0] == texts[1] == texts[2]
    time = r"\d+(\.\d+)? s"
    alive = "it is alive: its heartbeats come"
    for line in (
        rf"2: \[allreduce\.a\] \(rank 2 last submitted 'allreduce\.b' {time} ago, which waits for "
        rf"ranks 0,1; {alive}\)",
        rf"0: \[allreduce\.b\] \(rank 0 last submitted 'allreduce\.a' {time} ago, which waits for "
        rf"rank 2; {alive}\)",
        rf"'allreduce\.a' \(ALLREDUCE\): ranks 0,1 have it, rank 2 does not, for {time}",
        rf"'allreduce\.b' \(ALLREDUCE\): rank 2 has it, ranks 0,1 do not, for {time}",
        "Will shutdown: the limit is HORA_STALL_SHUTDOWN_TIME_SECONDS",
    ):
        assert re.search(line, texts[0]), f"{line}\n{texts[0]}"
    # The first report was a warning, on rank 0.
    assert "for more than 1 seconds" in job.output


def wait_for_a_stopped_rank() -> str:
    """Rank 1 stops, the others wait for it; when the job has ended rank 0 lets it go on."""
    hvd.init()
    pids = hvd.allgather(np.array([os.getpid()]), name="common")
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    with pytest.raises(hvd.HorovodInternalError) as caught:
        hvd.allreduce(np.ones(3), name="a")
    if hvd.rank() == 0:
        os.kill(int(pids[1]), signal.SIGCONT)
    return str(caught.value)


def test_a_stopped_rank_is_not_called_alive(run_ranks: Callable[..., Any]) -> None:
    """Its heartbeats do not come, and the report says why."""
    limits = {"HORA_HEARTBEAT_TIMEOUT_MS": "1000", "HORA_STALL_SHUTDOWN_TIME_SECONDS": "5"}
    texts = run_ranks(3, wait_for_a_stopped_rank, env=limits).results("wait_for_a_stopped_rank")
    line = (
        r"1: \[allreduce\.a\] \(rank 1 last submitted 'allgather\.common' \d+(\.\d+)? s ago; "
        r"has sent no heartbeat for \d+\.\d s; state T \(stopped\)\)"
    )
    for rank in (0, 2):
        assert re.search(line, texts[rank]), texts[rank]
