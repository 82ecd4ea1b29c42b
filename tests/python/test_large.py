"""More than 2^31 elements in one call, on machines with the memory for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hora.torch as hvd

COUNT = 2**31 + 10
RANKS = 2


def reduce_and_broadcast() -> list[list[int]]:
    """Return the elements around 2^31 after an allreduce and after a broadcast."""
    hvd.init()
    tensor = torch.full((COUNT,), 1 + hvd.rank(), dtype=torch.uint8)
    tensor[2**31 :] = torch.arange(10)
    hvd.allreduce_(tensor, op=hvd.Sum, name="large")
    told = [tensor[2**31 - 2 :].tolist()]
    tensor[2**31 :] += hvd.rank()
    hvd.broadcast_(tensor, 1, name="large")
    return [*told, tensor[2**31 - 2 :].tolist()]


def test_more_elements_than_an_int_counts(run_ranks: Callable[..., Any]) -> None:
    found = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    if found is None or int(found[1]) << 10 < 2 * RANKS * COUNT:
        pytest.skip("not enough free memory")
    results = run_ranks(RANKS, reduce_and_broadcast, timeout=200).results("reduce_and_broadcast")
    summed = [3, 3, *range(0, 20, 2)]
    heard = [3, 3, *range(1, 21, 2)]
    assert results == [[summed, heard]] * RANKS
