"""Small all-reduces that travel with negotiation, from outside.

A tensor is known from its second call on, so the first call of a name goes the ordinary way and
the next ones are carried. Segments are counted of ordinary ones alone.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hora.numpy
import hora.torch as hvd
from hora import _context
from hora.exceptions import HoraInternalError

OPS = (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product)
DTYPES = (
    *(torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_small_calls(
    checked: Callable[..., list[Any]], check: Callable[[], Any], size: int
) -> None:
    """Run every check of this file."""
    checked(check, size)


def segments() -> int:
    """Return how many segments this rank has run."""
    stats: dict[str, int] = _context.current().runtime.stats()
    return stats["segments"]


def numbers(dtype: torch.dtype, count: int) -> torch.Tensor:
    """Return numbers that differ from rank to rank, and with them the order of additions."""
    generator = torch.Generator().manual_seed(hvd.rank())
    values = 100 * torch.randn(count, generator=generator, dtype=torch.float64)
    return (values > 0) if dtype is torch.bool else values.to(dtype)


def check_they_are_the_same_bytes_as_others() -> None:
    hvd.init()
    for dtype in DTYPES:
        for op in OPS:
            tensor = numbers(dtype, 33)
            name = f"{dtype} {op}"
            results, counts = [], [segments()]
            for _ in range(3):
                results.append(hvd.allreduce(tensor, name=name, op=op, prescale_factor=0.5))
                counts.append(segments())
            assert counts[1] > counts[0]
            assert counts[1:] == [counts[1]] * 3
            for result in results[1:]:
                assert torch.equal(result.view(torch.uint8), results[0].view(torch.uint8))
            rows = hvd.allgather(results[1].unsqueeze(0))
            assert all(torch.equal(row, rows[0]) for row in rows)


def check_numpy_and_in_place() -> None:
    hvd.init()
    total = hvd.size() * (hvd.size() + 1) / 2
    for count in (1, 255, 1024):  # the last is 4 KB
        array = np.empty(count, np.float32)
        tensor = torch.empty(count)
        for _ in range(3):
            array[:] = hvd.rank() + 1
            tensor.fill_(hvd.rank() + 1)
            before = segments()
            hora.numpy.allreduce_(array, name=f"array {count}", op=hvd.Sum)
            hvd.allreduce_(tensor, name=f"tensor {count}", op=hvd.Sum)
            assert (array == total).all()
            assert (tensor == total).all()
        assert segments() == before


def check_larger_ones_go_the_ordinary_way() -> None:
    hvd.init()
    for _ in range(3):
        before = segments()
        hvd.allreduce(torch.ones(1025), name="larger")
        assert segments() == before + 1


def check_an_average_of_float16_does_not_overflow() -> None:
    hvd.init()
    tensor = torch.full((7,), 60000.0, dtype=torch.float16)
    for _ in range(3):
        assert torch.equal(hvd.allreduce(tensor, name="half"), tensor)


def check_groups() -> None:
    hvd.init()
    for _ in range(3):
        tensors = [torch.full((i + 1,), float(hvd.rank() + i)) for i in range(20)]
        mean = (hvd.size() - 1) / 2
        for i, result in enumerate(hvd.grouped_allreduce(tensors, name="group")):
            assert torch.equal(result, torch.full((i + 1,), mean + i))


def check_process_sets() -> None:
    hvd.init()
    members = [rank for rank in range(hvd.size()) if rank > 0] or [0]
    process_set = hvd.add_process_set(members) if hvd.size() > 1 else hvd.global_process_set
    if hvd.rank() in members:
        for step in range(3):
            result = hvd.allreduce(
                torch.full((3,), hvd.rank() + step), name="set", op=hvd.Sum, process_set=process_set
            )
            assert torch.equal(result, torch.full((3,), sum(members) + step * len(members)))
    hvd.barrier()


def check_with_a_rank_that_has_joined() -> None:
    hvd.init()
    tensor = torch.full((5,), float(hvd.rank() + 1))
    for _ in range(2):
        hvd.allreduce(tensor, name="joined", op=hvd.Sum)
    if hvd.rank() > 0:
        for _ in range(3):
            result = hvd.allreduce(tensor, name="joined", op=hvd.Sum)
            assert result[0].item() == hvd.size() * (hvd.size() + 1) / 2 - 1
    hvd.join()


def check_ranks_that_disagree() -> None:
    hvd.init()
    for _ in range(2):
        hvd.allreduce(torch.ones(4), name="agreed")
    if hvd.size() > 1:
        tensor = torch.ones(4 + hvd.rank() % 2)
        with pytest.raises(HoraInternalError, match=r"'allreduce\.agreed'"):
            hvd.allreduce_(tensor, name="agreed")
        assert torch.equal(tensor, torch.ones(4 + hvd.rank() % 2))
    for _ in range(2):
        assert torch.equal(hvd.allreduce(torch.ones(4), name="agreed"), torch.ones(4))


def check_a_wrong_argument_of_one_rank() -> None:
    hvd.init()
    for _ in range(2):
        hvd.allreduce(torch.ones(4), name="refused")
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match="op must be"):
            hvd.allreduce(torch.ones(4), name="refused", op=77)
    else:
        with pytest.raises(HoraInternalError, match="op must be"):
            hvd.allreduce(torch.ones(4), name="refused")
    for _ in range(2):
        assert torch.equal(hvd.allreduce(torch.ones(4), name="refused"), torch.ones(4))


def check_the_timeline_has_both_phases() -> None:
    hvd.init()
    made = tempfile.mkdtemp() if hvd.rank() == 0 else None
    trace = Path(hvd.broadcast_object(made, 0)) / "trace.json"
    for _ in range(2):
        hvd.allreduce(torch.ones(3), name="traced")
    before = segments()
    hvd.start_timeline(trace)
    hvd.allreduce(torch.ones(3), name="traced")
    hvd.stop_timeline()
    assert segments() == before
    hvd.barrier()
    text = trace.read_text()
    assert '"NEGOTIATE_ALLREDUCE"' in text
    assert '"ALLREDUCE"' in text
    hvd.barrier()


def test_they_can_be_switched_off(run_ranks: Callable[..., Any]) -> None:
    """HORA_CARRY_BYTES=0."""
    job = run_ranks(2, count_segments, env={"HORA_CARRY_BYTES": "0"})
    assert job.results("count_segments") == [3, 3]


def count_segments() -> int:
    """Return how many segments three calls take."""
    hvd.init()
    before = segments()
    for _ in range(3):
        hvd.allreduce(torch.ones(3), name="x")
    return segments() - before


COUNT_SEGMENTS = """
import torch
import hora.torch as hvd
from hora import _context
hvd.init()
for _ in range(3):
    hvd.allreduce(torch.ones(3), name="x")
print("segments:", _context.current().runtime.stats()["segments"])
"""


def test_not_where_members_may_be_lost() -> None:
    """There a result has a position in a lane, so that the survivors know who has it."""
    from support.launching import find_horarun  # Ranks, which load this file, have no tests' path.

    command = [find_horarun(), "--min-np", "1", "-np", "2", sys.executable, "-c", COUNT_SEGMENTS]
    job = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("segments: 3") == 2
