"""Hundreds of kills that the others survive: `pytest -m chaos tests/chaos`. See test_chaos.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.dice import PARTS, kills_of
from support.survival import survive_kill

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("part", range(PARTS))
def test_the_others_go_on_after_kills(tmp_path: Path, part: int) -> None:
    for kill in kills_of(part, "survival."):
        survive_kill(tmp_path, kill.victim, kill.delay, kill.about, HORA_TRANSPORT=kill.transport)
