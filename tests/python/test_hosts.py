"""Two hosts on one machine: HORA_HOST_ID keeps memory apart, so real processes use both links."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import run_command
from support.launching import find_horarun

SCRIPT = """
import numpy as np
import hora.numpy as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
for count in (0, 1, 7, 1000, 300_000):
    for op, expected in ((hvd.Sum, size * (size + 1) / 2), (hvd.Average, (size + 1) / 2)):
        out = hvd.allreduce(np.full(count, rank + 1, np.float32), name=f"{count}{op}", op=op)
        assert (out == expected).all(), (count, op)
# All ranks must end with the same bytes, whatever the order in which they were added.
noise = np.random.default_rng(rank).standard_normal(123_457).astype(np.float32)
total = hvd.allreduce(noise, name="noise", op=hvd.Sum)
everybody = hvd.allgather(total[None, :], name="results")
assert (everybody == total).all()
print(f"rank {rank} is fine", flush=True)
"""


@pytest.mark.parametrize(
    ("size", "host_of"),
    [(4, "$((HORA_RANK / 2))"), (4, "$((HORA_RANK % 2))"), (3, "$((HORA_RANK / 2))")],
    ids=["2+2", "2+2 in turn", "2+1"],
)
def test_processes_on_two_hosts_sum_and_agree(size: int, host_of: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    rank = f'HORA_HOST_ID="host {host_of}" exec "$0" "$1"'
    start = [find_horarun(), "-np", str(size), "sh", "-c", rank, sys.executable, str(script)]
    status, output = run_command(start, 120, {})
    assert status == 0, output
    for number in range(size):
        assert f"rank {number} is fine" in output
