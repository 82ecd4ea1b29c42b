"""One rank of an all-reduce benchmark in Python; the counterpart of driver.cc.

Usage: rank.py LIBRARY BYTES:ITERATIONS,...   with LIBRARY one of

    hora.torch   hora.numpy   started by horarun
    torch        torch.distributed's gloo back end; rank, size and a rendezvous file in the
                 environment (BENCH_RANK, BENCH_SIZE, BENCH_FILE)
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from typing import Any, Callable, NamedTuple

import numpy as np


class Library(NamedTuple):
    """What the driver needs of a library."""

    rank: int
    size: int
    make: Callable[[int], Any]  # elements -> a zeroed float32 buffer
    allreduce: Callable[[Any, str], object]  # sums a buffer in place
    close: Callable[[], object]


def hora_torch() -> Library:
    import torch

    import hora.torch as hvd

    hvd.init()
    torch.set_num_threads(1)

    def allreduce(buffer: Any, name: str) -> object:
        return hvd.allreduce_(buffer, name=name, op=hvd.Sum)

    return Library(hvd.rank(), hvd.size(), torch.zeros, allreduce, hvd.shutdown)


def hora_numpy() -> Library:
    import hora.numpy as hvd

    hvd.init()

    def allreduce(buffer: Any, name: str) -> object:
        return hvd.allreduce_(buffer, name=name, op=hvd.Sum)

    def make(elements: int) -> Any:
        return np.zeros(elements, np.float32)

    return Library(hvd.rank(), hvd.size(), make, allreduce, hvd.shutdown)


def join_torch_gloo() -> tuple[int, int]:
    """Join the ranks of torch.distributed that the environment names: own rank, and how many."""
    import torch.distributed as dist

    rank, size = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])
    store = dist.FileStore(os.environ["BENCH_FILE"], size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    return rank, size


def torch_gloo() -> Library:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, size = join_torch_gloo()
    return Library(
        rank, size, torch.zeros, lambda buffer, name: dist.all_reduce(buffer), dist.barrier
    )


LIBRARIES = {"hora.torch": hora_torch, "hora.numpy": hora_numpy, "torch": torch_gloo}


def cpu_us() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return 1e6 * (usage.ru_utime + usage.ru_stime)


def timed(call: Callable[[], object], iterations: int) -> tuple[Any, float]:
    """Seconds of each call, as an array, and this process's CPU microseconds per call."""
    samples = np.empty(iterations)
    cpu_before = cpu_us()
    before = time.perf_counter()
    for i in range(iterations):
        call()
        now = time.perf_counter()
        samples[i] = now - before
        before = now
    return samples, (cpu_us() - cpu_before) / iterations


def measure(library: Library, size_bytes: int, iterations: int) -> dict[str, float]:
    """One size: a checked call, warm-up, timed calls; see driver.h."""
    name = f"bench.{size_bytes}"
    buffer = library.make(max(size_bytes // 4, 1))
    buffer[:] = library.rank + 1
    library.allreduce(buffer, name)
    expected = library.size * (library.size + 1) // 2
    if not bool((buffer == expected).all()):
        sys.exit(f"rank {library.rank}: wrong sum of {size_bytes} bytes")
    buffer[:] = 0
    for _ in range(max(2, iterations // 10)):
        library.allreduce(buffer, name)
    samples, own_cpu_us = timed(lambda: library.allreduce(buffer, name), iterations)
    cpu = library.make(1)
    cpu[0] = own_cpu_us
    library.allreduce(cpu, "bench.cpu")
    p10, median, p90 = 1e6 * np.quantile(samples, (0.1, 0.5, 0.9), method="lower")
    return {
        "bytes": size_bytes,
        "iterations": iterations,
        "median_us": float(median),
        "p10_us": float(p10),
        "p90_us": float(p90),
        "mean_us": float(1e6 * samples.mean()),
        "cpu_us": float(cpu[0]),
    }


def main() -> None:
    """Measure every size; rank 0 prints."""
    library = LIBRARIES[sys.argv[1]]()
    for step in sys.argv[2].split(","):
        size_bytes, iterations = map(int, step.split(":"))
        result = measure(library, size_bytes, iterations)
        if library.rank == 0:
            print(json.dumps(result), flush=True)
    library.close()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
