"""What ranks cost that have nothing to do: the share of a core that each process uses.

    idle      initialized, and no collective is asked for
    waiting   in an allreduce that one rank (the last) does not come to

Run as a program it starts the ranks by horarun and prints a table:
``idle.py [--ranks 4] [--seconds 10]``. It asserts nothing: the machine's mood is in the numbers.
Aims: less than 1 % idle, less than 5 % waiting.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def cpu_seconds() -> float:
    """Processor time of this process, user and system, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def cpu_seconds_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Percent of a core between two (time, processor time)."""
    return 100 * (after[1] - before[1]) / (after[0] - before[0])


def run_rank(seconds: float) -> None:
    """One rank: measures itself, and the last one horarun, too; prints a JSON object."""
    import numpy as np

    import hora.numpy as hvd

    def now() -> tuple[float, float]:
        return time.monotonic(), cpu_seconds()

    hvd.init()
    last = hvd.rank() == hvd.size() - 1
    hvd.allreduce(np.ones(1), name="all are here")
    launcher = os.getppid()
    launcher_before = time.monotonic(), cpu_seconds_of(launcher)
    begin = now()
    time.sleep(seconds)
    idle = share(begin, now())
    hvd.allreduce(np.ones(1), name="all have idled")
    begin = now()
    if last:
        time.sleep(seconds)
    hvd.allreduce(np.ones(1), name="the late one")
    waiting = share(begin, now())
    found = {"rank": hvd.rank(), "idle": idle, "waiting": None if last else waiting}
    if last:
        launcher_after = time.monotonic(), cpu_seconds_of(launcher)
        found["horarun"] = share(launcher_before, launcher_after)
    print(json.dumps(found))


def measure(ranks: int, seconds: float) -> list[dict[str, Any]]:
    """Run the ranks; what each found, in rank order."""
    from support.launching import find_horarun

    program = [sys.executable, str(Path(__file__).resolve()), "--rank", "--seconds", str(seconds)]
    done = subprocess.run(
        [find_horarun(), "--quiet", "-np", str(ranks), *program],
        capture_output=True,
        text=True,
        timeout=60 + 3 * seconds,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    found = [json.loads(line.split(":", 1)[1]) for line in done.stdout.splitlines()]
    return sorted(found, key=lambda one: int(one["rank"]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Processor time of ranks that do nothing.")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        run_rank(options.seconds)
        return
    print(f"{options.ranks} ranks, {options.seconds:g} s each; percent of a core")
    print("rank     idle  waiting")
    for one in measure(options.ranks, options.seconds):
        waiting = "-" if one["waiting"] is None else f"{one['waiting']:.2f}"
        print(f"{one['rank']:4} {one['idle']:8.2f} {waiting:>8}")
        if "horarun" in one:
            print(f"horarun {one['horarun']:5.2f} over both")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
