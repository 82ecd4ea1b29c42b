"""The timeline from outside: from the environment, and started and stopped while the job runs."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hora.torch as hvd


@pytest.mark.parametrize("size", [1, 2])
def test_timeline(checked: Callable[..., list[Any]], check: Callable[[], Any], size: int) -> None:
    """Run every check of this file."""
    checked(check, size)


def folder() -> Path:
    """Return a folder that all ranks have in common."""
    made = tempfile.mkdtemp() if hvd.rank() == 0 else None
    return Path(hvd.broadcast_object(made, 0))


def names_of(path: Path) -> list[str]:
    """Return the names of all events of a trace."""
    return [event["name"] for event in json.loads(path.read_text()) if "name" in event]


def check_it_cannot_start_before_init() -> None:
    for call in (lambda: hvd.start_timeline("trace.json"), hvd.stop_timeline):
        with pytest.raises(ValueError, match="not been initialized"):
            call()


def check_it_starts_and_stops_many_times() -> None:
    hvd.init()
    directory = folder()
    hvd.stop_timeline()
    for i in range(5):
        trace = directory / f"{i // 2}.json"  # some of the files are written twice
        hvd.start_timeline(trace, mark_cycles=i % 2 == 0)
        hvd.allreduce(torch.ones(3), name=f'a "quoted" \\ name {i}')
        if i == 3:
            hvd.start_timeline(str(trace))
            hvd.allreduce(torch.ones(3), name="again")
        hvd.stop_timeline()
        hvd.allreduce(torch.ones(3), name="unseen")
        hvd.barrier()
        names = names_of(trace)
        assert "ALLREDUCE" in names
        assert "NEGOTIATE_ALLREDUCE" in names
        assert ("CYCLE_START" in names) == (i % 2 == 0)
        assert "unseen" not in trace.read_text()
        hvd.barrier()
    assert sorted(os.listdir(directory)) == ["0.json", "1.json", "2.json"]


def check_every_rank_may_have_its_own() -> None:
    directory = folder()
    hvd.start_timeline(str(directory / "of_%r.json"))
    hvd.allreduce(torch.ones(3), name="tensor")
    hvd.stop_timeline()
    assert "ALLREDUCE" in names_of(directory / f"of_{hvd.rank()}.json")


def check_what_is_in_flight_is_not_disturbed() -> None:
    directory = folder()
    handles = []
    for i in range(20):
        handles.append(hvd.allreduce_async(torch.full((1000,), float(i)), name=str(i)))
        hvd.start_timeline(str(directory / "trace.json"))
    for i, handle in enumerate(handles):
        assert torch.equal(hvd.synchronize(handle), torch.full((1000,), float(i)))
    hvd.stop_timeline()
    hvd.barrier()
    names_of(directory / "trace.json")


def check_a_file_that_cannot_be_written_is_an_error() -> None:
    directory = folder()
    (directory / str(hvd.rank())).mkdir()
    with pytest.raises(ValueError, match="not a regular file"):
        hvd.start_timeline(directory / "%r")
    with pytest.raises(hvd.HorovodInternalError, match="no/such"):
        hvd.start_timeline("/no/such/%r.json")
    hvd.allreduce(torch.ones(1))


def traced() -> str:
    """Run something with HOROVOD_TIMELINE set; returns what was written."""
    hvd.init()
    hvd.allreduce(torch.ones(3), name="test_allreduce")
    hvd.shutdown()
    return Path(os.environ["HOROVOD_TIMELINE"]).read_text()


def test_variables_of_horovod(run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    env = {"HOROVOD_TIMELINE": str(trace), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
    text = run_ranks(2, traced, env=env).results("traced")[0]
    for part in ("allreduce.test_allreduce", "NEGOTIATE_ALLREDUCE", "CYCLE_START"):
        assert part in text
    json.loads(trace.read_text())
