"""Hundreds of kills that the others survive: `pytest -m chaos tests/chaos`. See test_chaos.py."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from support.faults import SIZE
from support.survival import survive_kill

pytestmark = pytest.mark.chaos

SEED = int(os.environ.get("HORA_CHAOS_SEED", "0")) or random.randrange(1, 2**32)
KILLS = int(os.environ.get("HORA_CHAOS_KILLS", "200"))
PARTS = 10


@pytest.mark.parametrize("part", range(PARTS))
def test_the_others_go_on_after_kills(tmp_path: Path, part: int) -> None:
    dice = random.Random(f"{SEED}.survival.{part}")
    for kill in range(-(-KILLS // PARTS)):
        victim, delay = dice.randrange(SIZE), dice.random() * 0.3
        transport = dice.choice(["shm", "tcp", ""])
        about = f"HORA_CHAOS_SEED={SEED} part {part} kill {kill}: rank {victim}, {delay:.3f} s"
        survive_kill(tmp_path, victim, delay, about, HORA_TRANSPORT=transport)
