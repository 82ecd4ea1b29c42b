"""Whole jobs that Horovod's users complain about; the list is in test_horovod_complaints."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from conftest import run_command
from support.launching import find_horarun

DONE_AT_ONCE = """
import os, sys
import hora.numpy as hvd
hvd.init()
if hvd.rank() == int(sys.argv[1]):
    sys.exit(0)
print('here')
"""


@pytest.mark.parametrize("leaver", [0, 1, 3])
def test_a_rank_that_is_done_at_once_harms_no_other(leaver: int, tmp_path: Path) -> None:
    script = tmp_path / "done.py"
    script.write_text(DONE_AT_ONCE)
    command = [find_horarun(), "-np", "4", sys.executable, str(script), str(leaver)]
    for _ in range(4):
        status, output = run_command(command, 60, {})
        assert status == 0, output
        assert output.count("<stdout>:here") == 3, output


# The timeline's thread writes now and then: the kill waits for a trace with something in it.
KILLED = r"""
import os, pathlib, signal, time
import torch
import hora.torch as hvd
hvd.init()
trace = pathlib.Path(os.environ["HOROVOD_TIMELINE"])
end = time.monotonic() + 60
while time.monotonic() < end:
    hvd.allreduce(torch.ones(100), name='quote " back\\slash \n é')
    written = trace.read_bytes()  # it may end in the middle of a character
    if hvd.rank() == 0 and b'"ALLREDUCE"' in written and b'CYCLE_START' in written:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_timeline_is_valid_after_kill_9(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    trace = tmp_path / "trace.json"
    env = {"HOROVOD_TIMELINE": str(trace), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
    command = [find_horarun(), "-np", "2", sys.executable, str(script)]
    status, output = run_command(command, 90, env)
    assert status == 128 + signal.SIGKILL, output
    names = {event.get("name") for event in json.loads(trace.read_text())}
    assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE", "CYCLE_START"} <= names


def test_no_more_processes_than_asked_for(tmp_path: Path) -> None:
    command = [find_horarun(), "-np", "2", "-H", "localhost:4", "sh", "-c", "echo $HOROVOD_SIZE"]
    status, output = run_command(command, 60, {})
    assert status == 0
    assert output.count("<stdout>:2") == 2, output


def test_run_hands_on_the_variables_as_they_are() -> None:
    pytest.importorskip("cloudpickle")
    program = """
import os, hora
found = hora.run(lambda: dict(os.environ), np=1)[0]
assert found["HOROVOD_FUSION_THRESHOLD"] == "1048576", found
assert "None" not in found.get("HOROVOD_CYCLE_TIME", "") + found.get("HOROVOD_CACHE_CAPACITY", "")
print("as they are")
"""
    env = {"HOROVOD_FUSION_THRESHOLD": "1048576"}
    status, output = run_command([sys.executable, "-c", program], 60, env)
    assert status == 0, output
    assert "as they are" in output
