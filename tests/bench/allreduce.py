"""Hora's all-reduce beside its peers, on the ranks of one host.

One *row* is one way of reducing: Hora without Python (``bench_hora``), through ``hora.torch`` and
through ``hora.numpy``; Gloo (``bench_gloo``), torch.distributed over Gloo, and Open MPI
(``bench_mpi``) with the three settings of its shared memory of which now one, now another is
fastest. What is not installed is left out and named.

The machine drifts by a quarter within hours, so only numbers of one run compare: every round runs
every row once, for every number of ranks, in an order that rotates from round to round. Reported is
the median over the rounds of each round's median, with the quartiles over the rounds beside it.
While a row runs, the CPU time that others use is watched; a run with more than 0.15 core of it is
repeated once, and marked ``!`` in the table if that did not help.

Columns: latency; bus bandwidth, 2(p-1)/p x bytes / latency; CPU, user and system time of all ranks
per call; ratio, the latency of the fastest peer of that size divided by this row's (more than 1:
faster than every peer). Latency can be bought with cores, so read it beside CPU: ranks that poll
keep all cores busy.

Usage: allreduce.py [--ranks 2,4,8] [--rounds 5] [--sizes BYTES,...] [--rows TEXT,...] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Callable

ROOT = Path(__file__).resolve().parent.parent.parent
RANK_PY = str(Path(__file__).resolve().parent / "rank.py")
DEFAULT_SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20, 102_400_000)
FOREIGN_CORES_LIMIT = 0.15
RUN_LIMIT_S = 180

Command = list[str]


@dataclass
class Launch:
    """Processes to start together: their commands and what to add to each one's environment."""

    commands: list[Command]
    environments: list[dict[str, str]] = field(default_factory=list)


@dataclass
class Row:
    """One way of reducing: its name, whose it is, and how `ranks` of it start."""

    name: str
    ours: bool
    launch: Callable[[int, str, str], Launch]  # ranks, steps, an empty directory


@dataclass
class Run:
    """What one start of one row gave."""

    row: str
    ranks: int
    round: int
    foreign_cores: float
    results: list[dict[str, float]]
    error: str = ""


def iterations_of(size_bytes: int) -> int:
    """So many calls that a run takes about as long for every size."""
    for limit, iterations in ((4 << 10, 500), (256 << 10, 300), (4 << 20, 100), (32 << 20, 20)):
        if size_bytes <= limit:
            return iterations
    return 6


def program(build: Path, name: str) -> str | None:
    path = build / "tests" / "bench" / name
    return str(path) if path.exists() else None


def find_horarun() -> str | None:
    return shutil.which("horarun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def hora_rows(build: Path) -> tuple[list[Row], list[str]]:
    horarun = find_horarun()
    if horarun is None:
        return [], ["hora: no horarun"]

    def under_horarun(*command: str) -> Callable[[int, str, str], Launch]:
        return lambda ranks, steps, _: Launch([[horarun, "-np", str(ranks), *command, steps]])

    rows, missing = [], []
    if raw := program(build, "bench_hora"):
        rows.append(Row("hora raw", True, under_horarun(raw)))
    else:
        missing.append("hora raw: no bench_hora")
    for library in ("hora.torch", "hora.numpy"):
        if library == "hora.torch" and importlib.util.find_spec("torch") is None:
            missing.append("hora.torch: no torch")
            continue
        rows.append(Row(library, True, under_horarun(sys.executable, RANK_PY, library)))
    return rows, missing


def gloo_rows(build: Path) -> tuple[list[Row], list[str]]:
    gloo = program(build, "bench_gloo")
    if gloo is None:
        return [], ["gloo: no bench_gloo (libgloo-dev)"]

    def each_rank(algorithm: str) -> Callable[[int, str, str], Launch]:
        return lambda ranks, steps, directory: Launch(
            [
                [gloo, str(r), str(ranks), directory, "127.0.0.1", algorithm, steps]
                for r in range(ranks)
            ]
        )

    return [Row(f"gloo {name}", False, each_rank(name)) for name in ("ring", "ring-old", "hd")], []


def torch_rows() -> tuple[list[Row], list[str]]:
    if importlib.util.find_spec("torch") is None:
        return [], ["torch: not installed"]

    def launch(ranks: int, steps: str, directory: str) -> Launch:
        command = [sys.executable, RANK_PY, "torch", steps]
        shared = {"BENCH_SIZE": str(ranks), "BENCH_FILE": f"{directory}/store"}
        return Launch([command] * ranks, [{**shared, "BENCH_RANK": str(r)} for r in range(ranks)])

    return [Row("torch gloo", False, launch)], []


def mpi_rows(build: Path) -> tuple[list[Row], list[str]]:
    mpi, mpirun = program(build, "bench_mpi"), shutil.which("mpirun")
    if mpi is None or mpirun is None:
        return [], ["mpi: no bench_mpi or mpirun (openmpi-bin, libopenmpi-dev)"]
    settings = {
        "mpi default": (),
        "mpi no cma": ("--mca", "btl_vader_single_copy_mechanism", "none"),
        "mpi ring": (
            *("--mca", "coll_tuned_use_dynamic_rules", "1"),
            *("--mca", "coll_tuned_allreduce_algorithm", "4"),
        ),
    }

    def under_mpirun(options: Sequence[str]) -> Callable[[int, str, str], Launch]:
        start = [mpirun, "--allow-run-as-root", "--oversubscribe", *options]
        return lambda ranks, steps, _: Launch([[*start, "-np", str(ranks), mpi, steps]])

    return [Row(name, False, under_mpirun(options)) for name, options in settings.items()], []


def busy_core_seconds() -> float:
    """CPU time that this machine has used for anything since it started."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq = fields[:7]
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def own_core_seconds() -> float:
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


def run_launch(launch: Launch) -> tuple[str, str]:
    """Start the processes, each in a group of its own, and wait; output and error."""
    environments = launch.environments or [{}] * len(launch.commands)
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as complaints:
        processes = [
            subprocess.Popen(
                command,
                env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=complaints,
                start_new_session=True,
            )
            for command, environment in zip(launch.commands, environments)
        ]
        deadline = time.monotonic() + RUN_LIMIT_S
        error = ""
        try:
            for process in processes:
                status = process.wait(max(deadline - time.monotonic(), 0.1))
                if status != 0 and not error:
                    error = f"status {status}"
        except subprocess.TimeoutExpired:
            error = f"not finished after {RUN_LIMIT_S} s"
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        output.seek(0)
        complaints.seek(0)
        if error:
            error += ": " + " ".join(complaints.read().split())[-400:]
        return output.read(), error


def parse_results(output: str) -> list[dict[str, float]]:
    """Rank 0's lines of JSON; a launcher may have put a rank in front of them."""
    lines = (line[line.find("{") :] for line in output.splitlines() if '{"bytes"' in line)
    return [json.loads(line) for line in lines]


def run_row(row: Row, ranks: int, number: int, steps: str) -> Run:
    """One run of a row; repeated once if others used the machine meanwhile."""
    run = Run(row.name, ranks, number, 0, [])
    for _ in range(2):
        with tempfile.TemporaryDirectory(prefix="hora-bench-") as directory:
            start, busy, own = time.monotonic(), busy_core_seconds(), own_core_seconds()
            output, error = run_launch(row.launch(ranks, steps, directory))
            wall = time.monotonic() - start
            foreign = (busy_core_seconds() - busy) - (own_core_seconds() - own)
        run = Run(row.name, ranks, number, max(foreign / wall, 0), parse_results(output), error)
        if run.foreign_cores <= FOREIGN_CORES_LIMIT or error:
            break
    return run


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile; all the same for a single value."""
    if len(values) < 2:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def summarize(runs: Sequence[Run], ours: set[str]) -> list[dict[str, Any]]:
    """One entry per (ranks, size, row): quartiles over the rounds, bandwidth, CPU and ratio."""
    cells: dict[tuple[int, int, str], list[tuple[Run, dict[str, float]]]] = {}
    for run in runs:
        for result in run.results:
            cells.setdefault((run.ranks, int(result["bytes"]), run.row), []).append((run, result))
    table: list[dict[str, Any]] = []
    for (ranks, size, row), measured in sorted(cells.items(), key=lambda item: item[0][:2]):
        low, median, high = quartiles([result["median_us"] for _, result in measured])
        table.append(
            {
                "ranks": ranks,
                "bytes": size,
                "row": row,
                "rounds": len(measured),
                "q1_us": low,
                "median_us": median,
                "q3_us": high,
                "p90_us": statistics.median(result["p90_us"] for _, result in measured),
                "bus_gb_per_s": 2 * (ranks - 1) / ranks * size / median / 1e3,
                "cpu_us": statistics.median(result["cpu_us"] for _, result in measured),
                "disturbed": any(r.foreign_cores > FOREIGN_CORES_LIMIT for r, _ in measured),
            }
        )
    for cell in table:
        peers = [
            other["median_us"]
            for other in table
            if (other["ranks"], other["bytes"]) == (cell["ranks"], cell["bytes"])
            and other["row"] not in ours
        ]
        cell["ratio"] = min(peers) / cell["median_us"] if peers else None
    return table


def size_text(size: int) -> str:
    for unit, factor in (("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size / 1e6:g} MB" if size >= 1e6 else f"{size} B"


def time_text(us: float) -> str:
    return f"{us / 1e3:.2f} ms" if us >= 1e3 else f"{us:.1f} us"


def print_table(table: Sequence[dict[str, Any]]) -> None:
    """The summary for people, one block per number of ranks and size."""
    header = (
        f"{'row':<21}{'median':>11}  {'quartiles':<23}{'p90':>11}{'GB/s':>8}{'CPU':>11}{'ratio':>8}"
    )
    block: tuple[int, int] | None = None
    for cell in table:
        if block != (cell["ranks"], cell["bytes"]):
            block = (cell["ranks"], cell["bytes"])
            print(f"\n{cell['ranks']} ranks, {size_text(cell['bytes'])}\n{header}")
        spread = f"{time_text(cell['q1_us'])} .. {time_text(cell['q3_us'])}"
        ratio = f"{cell['ratio']:.2f}" if cell["ratio"] is not None else "-"
        print(
            f"{cell['row']:<21}{time_text(cell['median_us']):>11}  {spread:<23}"
            f"{time_text(cell['p90_us']):>11}{cell['bus_gb_per_s']:>8.2f}"
            f"{time_text(cell['cpu_us']):>11}{ratio:>8}{' !' if cell['disturbed'] else ''}"
        )


def compare(
    rows: Sequence[Row], steps: str, rank_counts: Sequence[int], rounds: int, json_file: Path | None
) -> int:
    """Run the rounds and report them; 0 if every run of every row succeeded."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no rank is left behind
    runs = []
    for number in range(rounds):
        for ranks in rank_counts:
            start = number % max(len(rows), 1)
            for row in [*rows[start:], *rows[:start]]:
                run = run_row(row, ranks, number, steps)
                runs.append(run)
                if run.error:
                    print(f"round {number}, {ranks} ranks, {row.name}: {run.error}", flush=True)
        print(f"round {number + 1} of {rounds} done", file=sys.stderr, flush=True)

    table = summarize(runs, {row.name for row in rows if row.ours})
    order = {row.name: number for number, row in enumerate(rows)}
    table.sort(key=lambda cell: (cell["ranks"], cell["bytes"], order[cell["row"]]))
    print_table(table)
    if json_file:
        report = {"runs": [asdict(run) for run in runs], "summary": table}
        json_file.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if not runs or any(run.error for run in runs) else 0


def int_list(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> int:
    """Run the benchmark; 0 if every run of every row succeeded."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--ranks", type=int_list, default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int_list, default=list(DEFAULT_SIZES))
    parser.add_argument("--rows", default="", help="only rows that contain one of these, by commas")
    parser.add_argument("--json", type=Path, help="also write every run and the summary here")
    options = parser.parse_args()

    found = [hora_rows(options.build), gloo_rows(options.build), torch_rows()]
    found.append(mpi_rows(options.build))
    rows = [row for some, _ in found for row in some]
    for line in (line for _, lines in found for line in lines):
        print(f"left out: {line}")
    wanted = [word for word in options.rows.split(",") if word]
    rows = [row for row in rows if not wanted or any(word in row.name for word in wanted)]

    steps = ",".join(f"{size}:{iterations_of(size)}" for size in options.sizes)
    return compare(rows, steps, options.ranks, options.rounds, options.json)


if __name__ == "__main__":
    sys.exit(main())
