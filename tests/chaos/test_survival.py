"""Hundreds of kills that the others survive: `pytest -m chaos tests/chaos`. See test_chaos.py."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest
from support.dice import PARTS, SEED, kills_of
from support.faults import SIZE
from support.survival import CODEC_LOOP, TRAINING_LOOP, survive_kill

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("part", range(PARTS))
def test_the_others_go_on_after_kills(tmp_path: Path, part: int) -> None:
    for kill in kills_of(part, "survival."):
        survive_kill(tmp_path, kill.victim, kill.delay, kill.about, HORA_TRANSPORT=kill.transport)


@pytest.mark.parametrize("codec", ["int8+ef", "fp16+ef"])
def test_the_others_go_on_with_what_they_kept(tmp_path: Path, codec: str) -> None:
    for kill in islice(kills_of(0, codec), 5):
        about = f"{kill.about} with {codec}"
        transport = {"HORA_TRANSPORT": kill.transport}
        survive_kill(tmp_path, kill.victim, kill.delay, about, CODEC_LOOP, (codec,), **transport)


def test_training_goes_on_after_kills(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    dice = random.Random(f"{SEED}.training")
    for kill in range(3):
        compression = ("none", "int8", "bf16")[kill % 3]
        victim, delay = dice.randrange(SIZE), dice.random()
        about = f"HORA_CHAOS_SEED={SEED} kill {kill}: rank {victim}, {delay:.3f} s, {compression}"
        told = survive_kill(tmp_path, victim, delay, about, TRAINING_LOOP, (compression,))
        for facts in told:
            before, after = facts["losses"]
            assert after < before, about
