"""A few kills of ranks, so that every run of the tests sees some; tests/chaos has hundreds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.faults import NUMPY_LOOP, SIZE, fault_at, kill_one

KILLS = 10


def test_killed_ranks_are_named_by_all_others(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    for kill in range(KILLS):
        victim, delay = dice.randrange(SIZE), dice.random() * 0.2
        transport = dice.choice(["shm", "tcp"])
        about = f"seed {seed} kill {kill}: rank {victim} after {delay:.3f} s over {transport}"
        kill_one(tmp_path, NUMPY_LOOP, victim, delay, about, HORA_TRANSPORT=transport)


@pytest.mark.parametrize(
    ("fault", "transport"),
    [
        ("kill-before-task:7", "shm"),
        ("kill-after-task:20", "shm"),
        ("kill-at-publish:3", "shm"),
        ("kill-mid-frame:100", "tcp"),
    ],
)
def test_a_rank_may_die_between_any_two_steps(tmp_path: Path, fault: str, transport: str) -> None:
    fault_at(tmp_path, 1, fault, HORA_TRANSPORT=transport)
