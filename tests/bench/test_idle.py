"""The idle bench runs, and every rank reports what it can."""

from __future__ import annotations

import idle
import pytest


def test_share_is_percent_of_a_core() -> None:
    assert idle.share((1.0, 10.0), (3.0, 11.0)) == 50


def test_every_rank_reports() -> None:
    pytest.importorskip("hora.numpy")
    found = idle.measure(ranks=3, seconds=0.2)
    assert [one["rank"] for one in found] == [0, 1, 2]
    assert all(one["idle"] >= 0 for one in found)
    assert [one["waiting"] is None for one in found] == [False, False, True]
    assert found[2]["horarun"] >= 0
