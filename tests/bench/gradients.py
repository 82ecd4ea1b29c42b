"""A training step that exchanges ResNet-50's gradients: Hora beside PyTorch's own ways.

The 161 gradients, 102,228,128 bytes of float32, are averaged over the ranks of one host; there is
next to no arithmetic, so what a step takes is what the exchange costs (``no exchange``: what it
takes without). The rows:

    hora.torch optimizer   hvd.DistributedOptimizer
    hora.torch async       an allreduce_async_ for each gradient, then synchronize
    torch ddp, ddp view    DistributedDataParallel over Gloo; gradients as views of its buckets
    torch async            torch.distributed.all_reduce of each gradient, then wait

Rounds, columns and marks are those of allreduce.py.

Usage: gradients.py [--ranks 2,4] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from allreduce import Launch, Row, compare, find_horarun, int_list

RANK = str(Path(__file__).resolve().parent / "gradients_rank.py")
GRADIENT_BYTES = 102_228_128
STEPS = 12
OURS = ("hora.torch optimizer", "hora.torch async")
THEIRS = ("torch ddp", "torch ddp view", "torch async")


def launch(way: str, horarun: str, ranks: int, steps: str, directory: str) -> Launch:
    """Ranks of ours start by horarun, the others find each other by a file."""
    command = [sys.executable, RANK, way, steps]
    shared = {"BENCH_SIZE": str(ranks), "BENCH_FILE": f"{directory}/store"}
    if way in OURS:
        return Launch([[horarun, "-np", str(ranks), *command]], [shared])
    return Launch([command] * ranks, [{**shared, "BENCH_RANK": str(r)} for r in range(ranks)])


def rows(horarun: str) -> list[Row]:
    def row(way: str) -> Row:
        def start(ranks: int, steps: str, directory: str) -> Launch:
            return launch(way, horarun, ranks, steps, directory)

        return Row(way, way not in THEIRS, start)

    return [row(way) for way in (*OURS, *THEIRS, "no exchange")]


def main() -> int:
    """Run the benchmark; 0 if every run of every row succeeded."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int_list, default=[2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write every run and the summary here")
    options = parser.parse_args()
    horarun = find_horarun()
    if horarun is None:
        sys.exit("there is no horarun: install Hora first")
    steps = f"{GRADIENT_BYTES}:{STEPS}"
    return compare(rows(horarun), steps, options.ranks, options.rounds, options.json)


if __name__ == "__main__":
    sys.exit(main())
