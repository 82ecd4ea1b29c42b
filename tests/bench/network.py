"""Hora's all-reduce beside its peers between hosts, at 100 Mbit/s, 1 and 10 Gbit/s.

The hosts are namespaces with shaped links (hosts.py); every rank runs inside of its host, started
by hand as any cluster's starter would: rank, size and a meeting place in the environment, nothing
about what links there are. Rows: Hora without Python (``bench_hora``), as it is and with codecs
(int8 and topk with error feedback, as one trains), Gloo (``bench_gloo``), torch.distributed over
Gloo, and Open MPI with its own choice of algorithm and with a forced ring.
What is not installed is left out and named. With several ranks on some host there is also Hora with
its flat ring, for comparison with what it chooses by itself.

As in allreduce.py every round runs every row once, in an order that rotates, because the machine
drifts. But here the *mean* counts: a token bucket refills while nobody sends, so the median of
calls can exceed the line. A cell is the mean over the rounds of each round's mean.

Columns: time, mean and its range over the rounds; p90 of the calls; line, the share of the line
that the payload takes: 2(h-1)/h x bytes, what a link of h hosts must carry at least for an
uncompressed sum, over time and rate (headers take 4.4 %, so 95.6 % is all that there is; a codec
that sends less comes out above 100 %); CPU, user and system time of all ranks per call; ratio, time
of the fastest peer of that size divided by this row's. ``!`` marks a cell that other work on the
machine disturbed.

Usage: network.py [--rates 100,1000,10000] [--hosts 1,1,1,1] [--rounds 3] [--sizes BYTES,...]
                  [--rows TEXT,...] [--variant NAME:HORA_X=Y,...]... [--congestion NAME]
                  [--json FILE [--continue]] [--plot FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hosts
from allreduce import (
    FOREIGN_CORES_LIMIT,
    RANK_PY,
    ROOT,
    Launch,
    int_list,
    parse_results,
    program,
    run_launch,
    size_text,
    time_text,
)

DEFAULT_SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20, 102_400_000)
LONGEST_CALL_S = 5.0  # Larger calls are left out of the default sizes.
QUIET_CORES, QUIET_LIMIT_S = 0.1, 10.0
SECRET = "bench"
CODECS = {"bf16": "bf16", "int8": "int8+ef", "topk": "topk(ratio=0.01)+ef"}


@dataclass
class Cluster:
    """The hosts of a run and how many ranks each has."""

    hosts: hosts.Hosts
    ranks_of: list[int]

    @property
    def size(self) -> int:
        return sum(self.ranks_of)

    def host_of(self, rank: int) -> int:
        """The ranks of a host are consecutive."""
        host = 0
        while rank >= self.ranks_of[host]:
            rank -= self.ranks_of[host]
            host += 1
        return host

    def local_rank(self, rank: int) -> int:
        return rank - sum(self.ranks_of[: self.host_of(rank)])


@dataclass
class Row:
    """One way of reducing: whose it is, and what is added to its ranks' environment."""

    name: str
    kind: str  # hora, gloo, torch or mpi
    ours: bool
    program: str
    option: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    def launch(self, cluster: Cluster, steps: str, directory: str) -> Launch:
        return LAUNCHES[self.kind](self, cluster, steps, directory)


def on_every_rank(cluster: Cluster, command_of: Any, environment_of: Any) -> Launch:
    ranks = range(cluster.size)
    commands = [cluster.hosts.inside(cluster.host_of(r), command_of(r)) for r in ranks]
    return Launch(commands, [environment_of(r) for r in ranks])


def launch_hora(row: Row, cluster: Cluster, steps: str, directory: str) -> Launch:
    """HORA_* by hand: ranks and hosts, and where rank 0 serves the rendezvous."""

    def environment(rank: int) -> dict[str, str]:
        host = cluster.host_of(rank)
        return {
            "HORA_RANK": str(rank),
            "HORA_SIZE": str(cluster.size),
            "HORA_LOCAL_RANK": str(cluster.local_rank(rank)),
            "HORA_LOCAL_SIZE": str(cluster.ranks_of[host]),
            "HORA_CROSS_RANK": str(host),
            "HORA_CROSS_SIZE": str(len(cluster.ranks_of)),
            "HORA_JOB": Path(directory).name,
            "HORA_SECRET": SECRET,
            "MASTER_ADDR": cluster.hosts.address(0),
            "HORA_RENDEZVOUS_PORT": "29500",
            **dict(row.environment),
        }

    return on_every_rank(cluster, lambda _: [row.program, *row.option, steps], environment)


def launch_gloo(row: Row, cluster: Cluster, steps: str, directory: str) -> Launch:
    def command(rank: int) -> list[str]:
        address = cluster.hosts.address(cluster.host_of(rank))
        place = [str(rank), str(cluster.size), directory, address]
        return [row.program, *place, *row.option, steps]

    return on_every_rank(cluster, command, lambda _: {})


def launch_torch(row: Row, cluster: Cluster, steps: str, directory: str) -> Launch:
    def environment(rank: int) -> dict[str, str]:
        return {
            "BENCH_SIZE": str(cluster.size),
            "BENCH_RANK": str(rank),
            "BENCH_FILE": f"{directory}/store",
            "GLOO_SOCKET_IFNAME": "eth0",
        }

    return on_every_rank(cluster, lambda _: [row.program, RANK_PY, "torch", steps], environment)


# What mpirun starts its daemons with instead of ssh: AGENT [OPTION...] ADDRESS COMMAND... . A host
# name of its own is what makes a namespace a node to Open MPI.
AGENT = """#!/bin/sh
while case "$1" in -*) true ;; *) false ;; esac; do shift; done
host={prefix}$((${{1##*.}} - 1))
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
"""


def launch_mpi(row: Row, cluster: Cluster, steps: str, directory: str) -> Launch:
    """mpirun on host 0; it polls, and yields the core only if it is told to."""
    agent = Path(directory) / "agent"
    agent.write_text(AGENT.format(prefix=cluster.hosts.prefix))
    agent.chmod(0o755)
    where = ",".join(
        f"{cluster.hosts.address(host)}:{ranks}" for host, ranks in enumerate(cluster.ranks_of)
    )
    settings = {
        "plm": "rsh",
        "plm_rsh_agent": str(agent),
        "plm_rsh_no_tree_spawn": "1",
        "oob_tcp_if_include": "eth0",
        "btl": "tcp,vader,self",
        "btl_tcp_if_include": "eth0",
        "mpi_yield_when_idle": "1",
        "orte_leave_session_attached": "1",  # Or nobody could tell how much CPU they took.
    }
    options = [word for name, value in settings.items() for word in ("--mca", name, value)]
    mpirun = [
        *("mpirun", "--allow-run-as-root", "--bind-to", "none", *options, *row.option),
        *("--host", where, "-np", str(cluster.size), row.program, steps),
    ]
    node = cluster.hosts.name(0)
    start = ["unshare", "--uts", "sh", "-c", f'hostname {node}; exec "$@"', "sh", *mpirun]
    return Launch([cluster.hosts.inside(0, start)])


LAUNCHES = {"hora": launch_hora, "gloo": launch_gloo, "torch": launch_torch, "mpi": launch_mpi}
FORCED_RING = (
    *("--mca", "coll_tuned_use_dynamic_rules", "1"),
    *("--mca", "coll_tuned_allreduce_algorithm", "4"),
)


def hora_variant(text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Read "NAME:VARIABLE=VALUE,..."."""
    name, _, words = text.partition(":")
    pairs = [word.partition("=")[::2] for word in words.split(",") if word]
    return name, tuple(pairs)


def make_rows(
    build: Path, ranks_of: Sequence[int], variants: Sequence[str]
) -> tuple[list[Row], list[str]]:
    """All rows that this machine can run, and what is missing for the others."""
    rows, missing = [], []
    if hora := program(build, "bench_hora"):
        rows.append(Row("hora", "hora", True, hora))
        for name, words in CODECS.items():
            rows.append(Row(f"hora {name}", "hora", True, hora, option=(words,)))
        if max(ranks_of) > 1:
            ring = (("HORA_ALGORITHM", "ring"),)
            rows.append(Row("hora flat ring", "hora", True, hora, environment=ring))
        for name, environment in map(hora_variant, variants):
            rows.append(Row(f"hora {name}", "hora", True, hora, environment=environment))
    else:
        missing.append("hora: no bench_hora")
    if gloo := program(build, "bench_gloo"):
        for name in ("ring", "ring-chunked", "hd"):
            rows.append(Row(f"gloo {name}", "gloo", False, gloo, option=(name,)))
    else:
        missing.append("gloo: no bench_gloo (libgloo-dev)")
    if importlib.util.find_spec("torch") is not None:
        rows.append(Row("torch gloo", "torch", False, sys.executable))
    else:
        missing.append("torch: not installed")
    mpi = program(build, "bench_mpi")
    if mpi is not None and shutil.which("mpirun") is not None:
        rows.append(Row("mpi default", "mpi", False, mpi))
        rows.append(Row("mpi ring", "mpi", False, mpi, option=FORCED_RING))
    else:
        missing.append("mpi: no bench_mpi or mpirun (openmpi-bin, libopenmpi-dev)")
    return rows, missing


@dataclass
class Run:
    """What one start of one row gave."""

    row: str
    ours: bool
    ranks_of: list[int]
    rate_mbit: int
    congestion: str
    round: int
    foreign_cores: float
    results: list[dict[str, float]]
    error: str = ""


def least_seconds(size_bytes: int, host_count: int, rate_mbit: int) -> float:
    """What the payload of an uncompressed sum takes on the line, headers left out."""
    return 2 * (host_count - 1) / host_count * size_bytes * 8 / (rate_mbit * 1e6)


def iterations_of(size_bytes: int, host_count: int, rate_mbit: int) -> int:
    """So many calls that they take some seconds, however slow the line."""
    call = max(least_seconds(size_bytes, host_count, rate_mbit), 0.5e-3)
    return min(300, max(2, round(3 / call)))


def user_seconds() -> tuple[float, float]:
    """User time of everything on this machine, and of this process and its children.

    System time is left out: the kernel's work for these very links is nobody's.
    """
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:3]
    everything = sum(map(int, fields)) / os.sysconf("SC_CLK_TCK")
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return everything, sum(usage.ru_utime for usage in both)


def wait_for_quiet() -> None:
    """Wait until others use next to nothing of this machine, but not for ever."""
    deadline = time.monotonic() + QUIET_LIMIT_S
    while time.monotonic() < deadline:
        start, (busy, own) = time.monotonic(), user_seconds()
        time.sleep(1)
        busy_after, own_after = user_seconds()
        if busy_after - busy - (own_after - own) < QUIET_CORES * (time.monotonic() - start):
            return


def run_row(row: Row, cluster: Cluster, rate_mbit: int, number: int, sizes: Sequence[int]) -> Run:
    """One run of a row; repeated once if others used the machine meanwhile."""
    host_count = len(cluster.ranks_of)
    steps = ",".join(f"{size}:{iterations_of(size, host_count, rate_mbit)}" for size in sizes)
    for _ in range(2):
        wait_for_quiet()
        with tempfile.TemporaryDirectory(prefix="hora-bench-") as directory:
            start, (busy, own) = time.monotonic(), user_seconds()
            output, error = run_launch(row.launch(cluster, steps, directory))
            (busy_after, own_after), wall = user_seconds(), time.monotonic() - start
        run = Run(
            row.name,
            row.ours,
            cluster.ranks_of,
            rate_mbit,
            cluster.hosts.congestion,
            number,
            max((busy_after - busy - (own_after - own)) / wall, 0),
            parse_results(output),
            error,
        )
        if run.foreign_cores <= FOREIGN_CORES_LIMIT or error:
            break
    return run


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def summarize(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One entry per network, size and row: time, share of the line, CPU, ratio to the best peer."""
    cells: dict[tuple[Any, ...], list[tuple[Run, dict[str, float]]]] = {}
    for run in runs:
        for result in run.results:
            network = (tuple(run.ranks_of), run.congestion, run.rate_mbit)
            cells.setdefault((*network, int(result["bytes"]), run.row), []).append((run, result))
    table: list[dict[str, Any]] = []
    for (ranks_of, congestion, rate, size, row), measured in cells.items():
        means = [result["mean_us"] for _, result in measured]
        least_us = 1e6 * least_seconds(size, len(ranks_of), rate)
        table.append(
            {
                "ranks_of": list(ranks_of),
                "congestion": congestion,
                "rate_mbit": rate,
                "bytes": size,
                "row": row,
                "ours": measured[0][0].ours,
                "rounds": len(measured),
                "mean_us": mean(means),
                "least_us": min(means),
                "most_us": max(means),
                "p90_us": mean([result["p90_us"] for _, result in measured]),
                "line": least_us / mean(means),
                "cpu_us": mean([result["cpu_us"] for _, result in measured]),
                "disturbed": any(r.foreign_cores > FOREIGN_CORES_LIMIT for r, _ in measured),
            }
        )
    for cell in table:
        peers = [
            other["mean_us"]
            for other in table
            if block_of(other) == block_of(cell) and not other["ours"]
        ]
        cell["ratio"] = min(peers) / cell["mean_us"] if peers else None
    return table


def block_of(cell: dict[str, Any]) -> tuple[Any, ...]:
    """What the cells of one block of the table have in common."""
    return cell["ranks_of"], cell["congestion"], cell["rate_mbit"], cell["bytes"]


def rate_text(rate_mbit: int) -> str:
    return f"{rate_mbit // 1000} Gbit/s" if rate_mbit >= 1000 else f"{rate_mbit} Mbit/s"


def hosts_text(ranks_of: Sequence[int]) -> str:
    if len(set(ranks_of)) == 1:
        ranks = f"{ranks_of[0]} rank{'s' if ranks_of[0] > 1 else ''}"
        return f"{len(ranks_of)} hosts x {ranks}"
    return "hosts with " + " + ".join(map(str, ranks_of)) + " ranks"


def print_table(table: Sequence[dict[str, Any]]) -> None:
    header = (
        f"{'row':<16}{'mean':>11}  {'range of rounds':<25}{'p90':>11}{'line':>9}{'CPU':>11}"
        f"{'ratio':>7}"
    )
    block: tuple[Any, ...] = ()
    for cell in table:
        if block != block_of(cell):
            block = block_of(cell)
            what = (hosts_text(cell["ranks_of"]), rate_text(cell["rate_mbit"]))
            print(f"\n{', '.join(what)}, {size_text(cell['bytes'])} {cell['congestion']}\n{header}")
        spread = f"{time_text(cell['least_us'])} .. {time_text(cell['most_us'])}"
        ratio = f"{cell['ratio']:.2f}" if cell["ratio"] is not None else "-"
        print(
            f"{cell['row']:<16}{time_text(cell['mean_us']):>11}  {spread:<25}"
            f"{time_text(cell['p90_us']):>11}{100 * cell['line']:>7.1f} %"
            f"{time_text(cell['cpu_us']):>11}{ratio:>7}{' !' if cell['disturbed'] else ''}"
        )


def plot(table: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw effective bandwidth over size, a panel per network; needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = {}
    for cell in table:
        panel = panels.setdefault((tuple(cell["ranks_of"]), cell["rate_mbit"]), {})
        panel.setdefault(cell["row"], []).append(cell)
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(5 * len(panels), 4.5), squeeze=False, layout="constrained"
    )
    names = list(dict.fromkeys(cell["row"] for cell in table))
    for axis, ((ranks_of, rate), by_row) in zip(axes[0], panels.items()):
        for row, cells in by_row.items():
            cells = sorted(cells, key=lambda cell: cell["bytes"])
            style = {"marker": "o", "linewidth": 2.2} if cells[0]["ours"] else {"linestyle": "--"}
            speeds = [1e-3 * rate * cell["line"] for cell in cells]
            color = f"C{names.index(row)}"
            axis.plot([cell["bytes"] for cell in cells], speeds, label=row, color=color, **style)
        axis.axhline(rate / 1e3, color="black", linewidth=0.8)
        axis.set(
            title=f"{hosts_text(ranks_of)}, {rate_text(rate)}",
            xlabel="bytes reduced",
            ylabel="2(h-1)/h x bytes / time, Gbit/s",
            xscale="log",
            yscale="log",
        )
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def read_runs(path: Path) -> list[Run]:
    return [Run(**run) for run in json.loads(path.read_text())["runs"]]


def measure(options: argparse.Namespace, runs: list[Run], rows: Sequence[Row]) -> None:
    """All rounds of all networks; appends to `runs`."""
    with hosts.Hosts(len(options.hosts), options.congestion) as namespaces:
        cluster = Cluster(namespaces, options.hosts)
        first = 1 + max((run.round for run in runs), default=-1)
        for number in range(first, first + options.rounds):
            for rate in options.rates:
                namespaces.shape(rate)
                gbit = namespaces.probe_gbit()
                print(f"{rate_text(rate)}: one stream carries {gbit:.3f} Gbit/s", flush=True)
                sizes = options.sizes or [
                    size
                    for size in DEFAULT_SIZES
                    if least_seconds(size, len(options.hosts), rate) <= LONGEST_CALL_S
                ]
                start = number % max(len(rows), 1)
                for row in [*rows[start:], *rows[:start]]:
                    run = run_row(row, cluster, rate, number, sizes)
                    runs.append(run)
                    if run.error:
                        print(f"round {number}, {row.name}: {run.error}", flush=True)
            print(f"round {number} done", file=sys.stderr, flush=True)


def parse_options() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--rates", type=int_list, default=[100, 1000, 10000], help="in Mbit/s")
    parser.add_argument("--hosts", type=int_list, default=[1, 1, 1, 1], help="ranks of each host")
    parser.add_argument("--rounds", type=int, default=3, help="0: only report what --json has")
    parser.add_argument("--sizes", type=int_list, default=[])
    parser.add_argument("--rows", default="", help="only rows that contain one of these, by commas")
    parser.add_argument(
        "--variant", action="append", default=[], help="another row of Hora, NAME:HORA_X=Y,..."
    )
    parser.add_argument("--congestion", default="", help="congestion control of all connections")
    parser.add_argument("--json", type=Path, help="also write every run and the summary here")
    parser.add_argument(
        "--continue", dest="go_on", action="store_true", help="keep the runs that --json has"
    )
    parser.add_argument("--plot", type=Path, help="also draw the summary (PNG; needs matplotlib)")
    options = parser.parse_args()
    if len(options.hosts) < 2:
        parser.error("a network has at least two hosts")
    if unknown := set(options.rates) - set(hosts.BURSTS):
        parser.error(f"rates are {sorted(hosts.BURSTS)}, not {sorted(unknown)}")
    return options


def main() -> int:
    """Run the benchmark; 0 if every run of every row succeeded, or none could be made."""
    options = parse_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no namespace is left behind
    runs = read_runs(options.json) if options.go_on and options.json.exists() else []
    rows, missing = make_rows(options.build, options.hosts, options.variant)
    for line in missing:
        print(f"left out: {line}")
    wanted = [word for word in options.rows.split(",") if word]
    rows = [row for row in rows if not wanted or any(word in row.name for word in wanted)]
    if options.rounds > 0:
        if reason := hosts.why_not():
            print(f"skipped: {reason}")
            return 0
        measure(options, runs, rows)

    table = summarize(runs)
    order = {run.row: number for number, run in enumerate(runs)}
    order.update({row.name: number for number, row in enumerate(rows)})
    table.sort(key=lambda cell: (*block_of(cell), order[cell["row"]]))
    print_table(table)
    if options.json:
        report = {"runs": [asdict(run) for run in runs], "summary": table}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.plot:
        plot(table, options.plot)
    return 1 if any(run.error for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
