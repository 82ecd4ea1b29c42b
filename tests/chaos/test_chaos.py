"""Hundreds of kills: `pytest -m chaos tests/chaos`. Minutes, so not part of `make test`.

What is random comes from tests/support/dice.py.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from support.dice import PARTS, SEED, kills_of
from support.faults import NUMPY_LOOP, SIZE, TORCH_LOOP, HurtJob, fault_at, kill_one

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("part", range(PARTS))
def test_kills_of_random_ranks_at_random_moments(tmp_path: Path, part: int) -> None:
    for kill in kills_of(part, ""):
        environment = {"HORA_TRANSPORT": kill.transport}
        kill_one(tmp_path, NUMPY_LOOP, kill.victim, kill.delay, kill.about, **environment)


def test_kills_in_training_with_forking_data_loaders(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    dice = random.Random(f"{SEED}.torch")
    for kill in range(10):
        victim, delay = dice.randrange(SIZE), dice.random()
        about = f"HORA_CHAOS_SEED={SEED} kill {kill} with torch: rank {victim} after {delay:.3f} s"
        kill_one(tmp_path, TORCH_LOOP, victim, delay, about)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_stopped_rank_is_named_and_may_go_on(tmp_path: Path, transport: str) -> None:
    env = {"HORA_TRANSPORT": transport, "HORA_HEARTBEAT_TIMEOUT_MS": "2000"}
    job = HurtJob.start(tmp_path, NUMPY_LOOP, env=env)
    try:
        job.wait_for(r"ready$", SIZE)
        pid = job.pids()[2]
        stopped_at = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        job.wait_for(r"rank 2 \(pid \d+.*no heartbeat.*stopped", limit_s=20)
        assert time.monotonic() - stopped_at < 2 + 5
        os.kill(pid, signal.SIGCONT)
        job.wait_for(r"rank 2 \(pid \d+.*sends heartbeats again", limit_s=20)
        assert job.process.poll() is None
        assert not job.matching("ended ")
        killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        job.check_loss(2, killed_at, f"a kill after a stop, over {transport}")
    finally:
        job.end()


@pytest.mark.parametrize(
    ("point", "transport"),
    [
        ("kill-before-task", "shm"),
        ("kill-before-task", "tcp"),
        ("kill-after-task", "shm"),
        ("kill-after-task", "tcp"),
        ("kill-at-publish", "shm"),
    ],
)
def test_a_rank_dies_at_each_of_its_first_steps(tmp_path: Path, point: str, transport: str) -> None:
    for number in [*range(12), 25, 60, 150]:
        fault_at(tmp_path, number % SIZE, f"{point}:{number}", HORA_TRANSPORT=transport)


def test_a_rank_dies_within_a_frame(tmp_path: Path) -> None:
    for sent in [1, 63, 64, 65, 127, 129, 200, 333, 1000, 4096, 65536, 131135, 131136, 131300]:
        fault_at(tmp_path, sent % SIZE, f"kill-mid-frame:{sent}", HORA_TRANSPORT="tcp")
