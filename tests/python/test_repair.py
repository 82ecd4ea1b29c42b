"""Ranks die, and the others finish what was in flight and go on (horarun --min-np).

A few kills, so that every run of the tests sees some; tests/chaos has hundreds.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path

import pytest
from support.faults import NUMPY_LOOP, SIZE, HurtJob, launcher
from support.survival import SURVIVAL_LOOP, survive_fault, survive_kill, survivors_of

KILLS = 10


def test_the_others_go_on_after_kills_at_random_moments(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    for kill in range(KILLS):
        victim, delay = dice.randrange(SIZE), dice.random() * 0.2
        transport = dice.choice(["shm", "tcp", ""])
        about = f"seed {seed} kill {kill}: rank {victim} after {delay:.3f} s over {transport}"
        survive_kill(tmp_path, victim, delay, about, HORA_TRANSPORT=transport)


@pytest.mark.parametrize(
    ("victim", "fault", "transport"),
    [
        (1, "kill-before-task:61", "shm"),
        (0, "kill-after-task:200", "shm"),
        (2, "kill-at-publish:33", "shm"),
        (3, "kill-before-task:150", "tcp"),
        (1, "kill-mid-frame:900000", "tcp"),
    ],
)
def test_a_rank_may_die_between_any_two_steps(
    tmp_path: Path, victim: int, fault: str, transport: str
) -> None:
    survive_fault(tmp_path, victim, fault, HORA_TRANSPORT=transport)


def test_a_second_death_leaves_two(tmp_path: Path) -> None:
    job = HurtJob.start(tmp_path, SURVIVAL_LOOP, "2", options=("--min-np", "2"))
    try:
        job.wait_for(r"ready$", SIZE)
        pids = job.pids()
        for victim in (0, 2):
            os.kill(pids[victim], signal.SIGKILL)
        survivors_of(job, {0, 2}, "ranks 0 and 2, one right after the other")
        assert job.matching("^horarun: rank 0 .*; [32] of 4 ranks are left, --min-np 2")
    finally:
        job.end()


@pytest.mark.parametrize("wakes", [True, False])
def test_a_rank_that_does_not_report_is_left_out(tmp_path: Path, wakes: bool) -> None:
    """Rank 3 is stopped while rank 1 dies: after 10 s the other two go on without both."""
    job = HurtJob.start(tmp_path, SURVIVAL_LOOP, "2", options=("--min-np", "2"))
    try:
        job.wait_for(r"ready$", SIZE)
        pids = job.pids()
        os.kill(pids[3], signal.SIGSTOP)
        os.kill(pids[1], signal.SIGKILL)
        job.wait_for(r"^horarun: 2 of 4 ranks go on .*rank 3 .*did not say how far", limit_s=40)
        if wakes:
            os.kill(pids[3], signal.SIGCONT)
            job.wait_for("the others go on without this worker")
        survivors_of(job, {1}, "rank 3 is stopped, rank 1 dies", left_out=frozenset({3}))
    finally:
        job.end()


def test_with_fewer_than_the_least_the_job_ends(tmp_path: Path) -> None:
    job = HurtJob.start(tmp_path, NUMPY_LOOP, options=("--min-np", "4"))
    try:
        job.wait_for(r"ready$", SIZE)
        os.kill(job.pids()[1], signal.SIGKILL)
        job.check_loss(1, None, "--min-np 4")
        assert job.matching("3 of 4 ranks are left, fewer than --min-np 4")
    finally:
        job.end()


def test_a_rank_that_fails_in_order_ends_the_job(tmp_path: Path) -> None:
    code = """
        import hora.numpy as hvd
        import numpy as np
        hvd.init()
        for step in range(10**9):
            hvd.allreduce(np.ones(10))
            if step == 20 and hvd.rank() == 2:
                raise RuntimeError("the data is gone")
    """
    job = HurtJob.start(tmp_path, code, options=("--min-np", "2"))
    try:
        assert job.finish() == 1
        assert job.matching("the data is gone")
        assert not job.matching("ranks are left")
    finally:
        job.end()


def test_sets_joins_and_adasum_are_refused(tmp_path: Path) -> None:
    code = """
        import numpy as np
        import hora.numpy as hvd
        try:
            hvd.init(process_sets=[hvd.ProcessSet([0, 1])])
        except Exception as error:
            assert "--min-np" in str(error), error
            print("refused", flush=True)
        hvd.init()
        for call in (
            lambda: hvd.add_process_set([0, 1]),
            lambda: hvd.allreduce(np.ones(3, np.float32), op=hvd.Adasum),
            hvd.join,
        ):
            try:
                call()
            except Exception as error:
                assert "--min-np" in str(error), error
                print("refused", flush=True)
        hvd.barrier()  # Whoever is done first ends the job.
    """
    job = HurtJob.start(tmp_path, code, options=("--min-np", "3"))
    try:
        assert job.finish() == 0, job.text()
        assert len(job.matching("refused")) == 4 * SIZE
    finally:
        job.end()


@pytest.mark.parametrize("least", ["0", "x", "5"])
def test_the_launcher_checks_the_least(least: str) -> None:
    command = [launcher(), "-np", "4", "--min-np", least, "true"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "--min-np" in ended.stderr
