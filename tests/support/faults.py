"""Jobs that a test hurts: start them, hurt a rank, and look at what the others say.

A job runs one of the scripts below on four ranks through horarun. Every rank prints ``ready`` when
it is in its loop and, when its loop ends with an error, ``ended SECONDS: MESSAGE``; SECONDS is the
monotonic clock, which all processes of a host share, so a test can say how long after a kill a rank
knew of it.

Every job carries a mark in its environment. When it is over nothing of it may be left: no process,
no entry in /dev/shm (a shared-memory file that is not in a file system goes with its last process).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SIZE = 4
#: How long the others may take to end after a rank was killed.
END_LIMIT_S = 5.0
MARK = "HORA_CHAOS_MARK"

#: Collectives of all kinds and sizes, until something breaks; every result is checked.
NUMPY_LOOP = """
    import os, sys, time
    import numpy as np
    rank = int(os.environ["HORA_RANK"])
    if len(sys.argv) > 1 and rank == int(sys.argv[1]):
        os.environ["HORA_FAULT"] = sys.argv[2]
    import hora.numpy as hvd

    def loop(size):
        for step in range(1_000_000):
            count = (1, 1000, 70_000, 300_000)[step % 4]
            given = np.full(count, rank + 1, dtype=np.float32)
            handle = hvd.allreduce_async(given[:50], op=hvd.Sum, name="handle")
            total = hvd.allreduce(given, op=hvd.Sum, name=f"sum{step % 4}")
            assert (total == size * (size + 1) / 2).all(), "a wrong sum"
            assert (given == rank + 1).all(), "a changed input"
            assert (hvd.synchronize(handle) == size * (size + 1) / 2).all(), "a wrong sum"
            rows = hvd.allgather(np.full((rank + 1, 3), rank), name="rows")
            assert (rows[:, 0] == np.repeat(np.arange(size), np.arange(1, size + 1))).all()
            root = step % size
            heard = hvd.broadcast(np.full(2000, rank), root_rank=root, name="heard")
            assert (heard == root).all(), "a wrong broadcast"
            if step == 0:
                print("ready", flush=True)

    try:
        hvd.init()
        loop(hvd.size())
    except hvd.HoraInternalError as error:
        print(f"ended {time.monotonic()}: {error}".replace("\\n", " "), flush=True)
        sys.exit(1)
"""

#: Training with a wrapped optimizer and a data loader whose workers are forked.
TORCH_LOOP = """
    import os, sys, time
    import torch
    import hora.torch as hvd
    from torch.utils.data import DataLoader, TensorDataset

    def loop():
        torch.manual_seed(hvd.rank())
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)
        )
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
        )
        data = TensorDataset(torch.randn(4096, 64), torch.randint(8, (4096,)))
        loader = DataLoader(data, batch_size=16, num_workers=2, multiprocessing_context="fork")
        while True:
            for step, (inputs, labels) in enumerate(loader):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
                if step == 0:
                    print("ready", flush=True)

    try:
        hvd.init()
        loop()
    except hvd.HoraInternalError as error:
        print(f"ended {time.monotonic()}: {error}".replace("\\n", " "), flush=True)
        sys.exit(1)
"""


def launcher() -> str:
    """Return the launcher's path; skip the test where there is none."""
    beside_python = os.path.dirname(sys.executable)
    path = beside_python + os.pathsep + os.environ.get("PATH", "")
    found = os.environ.get("HORARUN") or shutil.which("horarun", path=path)
    if not found:
        pytest.skip("horarun is neither $HORARUN nor installed")
    return found


def shared_memory() -> set[str]:
    """Return the names in /dev/shm that may be ours."""
    return {name for name in os.listdir("/dev/shm") if "hora" in name}


@dataclass
class HurtJob:
    """A running job, its lines by rank, and the clock at which each line was read."""

    process: subprocess.Popen[str]
    mark: str
    shared_before: set[str]
    lines: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    reader: threading.Thread | None = None
    over: bool = False

    @staticmethod
    def start(
        directory: Path,
        code: str,
        *arguments: str,
        env: dict[str, str] | None = None,
        options: tuple[str, ...] = (),
    ) -> HurtJob:
        """Start a script on all ranks, with further options of horarun."""
        script = directory / "loop.py"
        script.write_text(textwrap.dedent(code))
        mark = uuid.uuid4().hex
        shared = shared_memory()
        process = subprocess.Popen(
            [launcher(), "-np", str(SIZE), *options, sys.executable, str(script), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "OMP_NUM_THREADS": "1", MARK: mark, **(env or {})},
            start_new_session=True,
        )
        job = HurtJob(process, mark, shared)
        job.reader = threading.Thread(target=job._read)
        job.reader.start()
        return job

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.over = True
            self.changed.notify_all()

    def wait_for(self, pattern: str, count: int = 1, limit_s: float = 150) -> None:
        """Wait until `count` lines match; fails with the output."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.over or len(self.matching(pattern)) >= count, limit_s
            )
            done = len(self.matching(pattern)) >= count
        assert done, f"{pattern!r} did not come {count} times:\n{self.text()}"

    def matching(self, pattern: str) -> list[str]:
        """Return the lines that match."""
        return [line for line in self.lines if re.search(pattern, line)]

    def text(self) -> str:
        """Return the last of the output."""
        return "\n".join(self.lines[-60:])

    def pids(self) -> dict[int, int]:
        """Return the pid of each rank: the child of the supervisor that has its number."""
        found = {}
        for pid in self.processes():
            try:
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()[1])
                of_parent = Path(f"/proc/{parent}/environ").read_bytes()
            except OSError:
                continue
            # A data loader's worker has its rank's environment too; its parent is the rank.
            if b"loop.py" not in command or b"HORA_RANK=" in of_parent:
                continue
            rank = [v for v in variables if v.startswith(b"HORA_RANK=")]
            if rank:
                found[int(rank[0].split(b"=")[1])] = pid
        return found

    def processes(self) -> list[int]:
        """Return the living processes with this job's mark."""
        needle = f"{MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and needle in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def finish(self, limit_s: float = 60) -> int:
        """Wait for the end and see that nothing is left; returns horarun's status."""
        try:
            status = self.process.wait(limit_s)
        finally:
            self.end()
        assert self.reader is not None
        self.reader.join(10)
        assert self.processes() == [], f"processes are left\n{self.text()}"
        assert shared_memory() <= self.shared_before, "shared memory is left"
        return status

    def end(self) -> None:
        """Kill whatever is still there."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def check_loss(self, victim: int, killed_at: float | None, about: str) -> None:
        """After `victim` was killed: everybody ended, soon, and said who it was."""
        status = self.finish()
        where = f"{about}\n{self.text()}"
        assert status == 137, where
        assert self.matching(rf"^horarun: rank {victim} \(pid \d+\) was killed by signal 9"), where
        ends = self.matching(r"ended [\d.]+:")
        assert len(ends) == SIZE - 1, where
        for line in ends:
            assert re.search(rf"Hora lost rank {victim} \(pid \d+ ", line), f"{line}\n{where}"
            if killed_at is not None:
                ended = re.search(r"ended ([\d.]+):", line)
                assert ended is not None, f"{line}\n{where}"
                late = float(ended[1]) - killed_at
                assert late < END_LIMIT_S, f"{late:.1f} s: {line}\n{where}"


def kill_one(
    directory: Path, code: str, victim: int, delay_s: float, about: str, **env: str
) -> None:
    """Kill one rank `delay_s` after all are in their loop and check how the job ends."""
    job = HurtJob.start(directory, code, env=env)
    try:
        job.wait_for(r"ready$", SIZE)
        pid = job.pids()[victim]
        time.sleep(delay_s)  # The moment of the kill, not a wait for anything.
        killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        job.check_loss(victim, killed_at, about)
    finally:
        job.end()


def fault_at(directory: Path, victim: int, fault: str, **env: str) -> None:
    """Let a rank kill itself at a fault point and check how the job ends."""
    job = HurtJob.start(directory, NUMPY_LOOP, str(victim), fault, env=env)
    try:
        job.check_loss(victim, None, f"{fault} in rank {victim}, {env}")
    finally:
        job.end()
