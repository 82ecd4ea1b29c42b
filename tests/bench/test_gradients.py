"""The gradients that are exchanged are ResNet-50's, and each way is one that the rank knows."""

from __future__ import annotations

import math

import gradients
import pytest


def test_shapes_are_those_of_resnet50() -> None:
    pytest.importorskip("torch")
    import gradients_rank

    shapes = gradients_rank.resnet50_shapes()
    assert len(shapes) == 161
    assert 4 * sum(map(math.prod, shapes)) == gradients.GRADIENT_BYTES
    assert shapes[-2:] == [(1000, 2048), (1000,)]


def test_every_row_is_a_way_of_the_rank() -> None:
    pytest.importorskip("torch")
    import gradients_rank

    rows = gradients.rows("horarun")
    assert {row.name for row in rows} == set(gradients_rank.WAYS)
    for row in rows:
        started = row.launch(3, "1:1", "directory")
        assert len(started.commands) == (1 if row.name in gradients.OURS else 3)
