"""Strangers at every door of a running job: they are dropped, and the run does not notice.

A job of two ranks reduces without end while connections with nonsense are made to every listener
that horarun or a rank has: TCP ports and abstract unix sockets, found in /proc. The suite makes
some hundred; HORA_TEST_STRANGERS sets another number.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.launching import LIMIT_S, Launcher, launching, marked_processes, python, read_lines

COUNT = int(os.environ.get("HORA_TEST_STRANGERS", "600"))
# What a process may grow by: the kernel's and the allocator's own moods.
MOST_GROWTH_BYTES = 16 << 20

WORK = """
import os, sys
import numpy as np
import hora.numpy as hvd
hvd.init()
size, done = hvd.size(), sys.argv[1]
print('ready')
ended, rounds = 0.0, 0
while not ended:
    mine = np.array([1.0, hvd.rank() == 0 and os.path.exists(done)])
    total, ended = hvd.allreduce(mine, name='a', op=hvd.Sum)
    assert total == size
    rounds += 1
print('rounds', rounds)
"""

Door = tuple[int, object]  # family, address


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    yield from launching()


def sockets_of(pids: list[int]) -> set[str]:
    """Inodes of the sockets that the processes have open."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link))
                if match:
                    inodes.add(match[1])
    return inodes


def doors_of(pids: list[int]) -> list[Door]:
    """Everything on which the processes listen."""
    inodes = sockets_of(pids)
    doors: list[Door] = []
    for name, host in (("tcp", "127.0.0.1"), ("tcp6", "::1")):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                family = socket.AF_INET if name == "tcp" else socket.AF_INET6
                doors.append((family, (host, int(fields[1].rsplit(":", 1)[1], 16))))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        # Flags 00010000: it listens.
        if fields[3] == "00010000" and fields[6] in inodes and len(fields) > 7:
            doors.append((socket.AF_UNIX, fields[7].replace("@", "\0", 1)))
    return doors


def visit(door: Door, number: int, kept: list[socket.socket]) -> None:
    """Connect, say something that no member of the job would, and leave in one of several ways."""
    family, address = door
    noise = random.Random(number)
    words = (
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(noise.randrange(1, 4000)),
        noise.randbytes(noise.randrange(1, 4000)),
        b"\xff" * 300,
    )
    # A door may be closed again, or its backlog full: that is a way of refusing, too.
    with contextlib.suppress(OSError):
        stranger = socket.socket(family, socket.SOCK_STREAM)
        stranger.settimeout(1)
        stranger.connect(address)  # type: ignore[arg-type]
        kept.append(stranger)
        stranger.sendall(words[number % len(words)])
        if number % 3 == 0:
            stranger.shutdown(socket.SHUT_WR)
        if number % 7 != 0:
            stranger.close()
    while len(kept) > 200:
        kept.pop(0).close()


def resident_bytes(pids: list[int]) -> dict[int, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    return {pid: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page for pid in pids}


def test_a_run_does_not_notice_strangers(launcher: Launcher, tmp_path: Path) -> None:
    pytest.importorskip("hora.numpy")
    done = tmp_path / "done"
    job = launcher.start("-np", "2", *python(WORK), str(done))
    read_lines(job, 2)
    pids = marked_processes(launcher.mark)
    doors = doors_of(pids)
    assert any(family == socket.AF_INET for family, _ in doors), "horarun's own port at least"
    kept: list[socket.socket] = []
    for number in range(min(COUNT, 200)):
        visit(doors[number % len(doors)], number, kept)
    before = resident_bytes(pids)
    for number in range(COUNT):
        visit(doors[number % len(doors)], number, kept)
    after = resident_bytes(pids)
    done.touch()
    output, errors = job.communicate(timeout=LIMIT_S)
    for stranger in kept:
        stranger.close()
    assert job.returncode == 0, errors
    assert len(re.findall(rb"rounds \d+", output)) == 2
    told = [line for line in errors.decode().splitlines() if "OMP_NUM_THREADS" not in line]
    assert len(told) == 1, errors
    count = re.match(r"horarun: (\d+) connections without the job's secret were dropped", told[0])
    assert count is not None, errors
    assert int(count[1]) > 0
    growth = {pid: after[pid] - before[pid] for pid in pids}
    assert max(growth.values()) < MOST_GROWTH_BYTES, growth
    print(f"{COUNT} strangers at {len(doors)} doors; growth {growth}")
