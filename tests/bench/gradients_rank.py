"""One rank of gradients.py: a training step with ResNet-50's parameters and next to no arithmetic.

Usage: gradients_rank.py WAY BYTES:STEPS   with WAY a name of WAYS. Those of Hora are started by
horarun; the others find rank, size and a rendezvous file in the environment (BENCH_RANK,
BENCH_SIZE, BENCH_FILE).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Callable, NamedTuple

import numpy as np
import torch
from rank import join_torch_gloo, timed

Shape = tuple[int, ...]


def resnet50_shapes() -> list[Shape]:
    """Shapes of ResNet-50's 161 parameters (He et al., 2015), in the order of the model."""
    return [(64, 3, 7, 7), (64,), (64,), *_stages(), (1000, 2048), (1000,)]


def _stages() -> Iterator[Shape]:
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for shape in ((width, channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)):
                yield from (shape, shape[:1], shape[:1])  # a convolution and its normalization
            if block == 0:
                yield from ((4 * width, channels, 1, 1), (4 * width,), (4 * width,))
            channels = 4 * width


class Model(torch.nn.Module):
    """The parameters; the output is their sum, so that every gradient is the scale."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.zeros(shape)) for shape in resnet50_shapes()
        )

    def forward(self, scale: float) -> torch.Tensor:
        return torch.stack([weight.sum() for weight in self.weights]).sum() * scale


class Way(NamedTuple):
    """A way of training: who it is, the step that ends with averaged gradients, and the end."""

    rank: int
    size: int
    step: Callable[[], object]
    close: Callable[[], object]


def alone(model: Model) -> Way:
    return Way(int(os.environ["BENCH_RANK"]), 1, plain_step(model, model, 1.0), lambda: None)


def plain_step(model: Model, called: torch.nn.Module, scale: float) -> Callable[[], object]:
    def step() -> None:
        model.zero_grad()
        called(scale).backward()

    return step


def hora_optimizer(model: Model) -> Way:
    import hora.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    backward = plain_step(model, model, float(hvd.rank() + 1))

    def step() -> None:
        backward()
        optimizer.synchronize()

    return Way(hvd.rank(), hvd.size(), step, hvd.shutdown)


def hora_async(model: Model) -> Way:
    import hora.torch as hvd

    hvd.init()
    backward = plain_step(model, model, float(hvd.rank() + 1))

    def step() -> None:
        backward()
        handles = [
            hvd.allreduce_async_(weight.grad, name=f"gradient.{number}")
            for number, weight in reversed(list(enumerate(model.weights)))
        ]
        for handle in handles:
            hvd.synchronize(handle)

    return Way(hvd.rank(), hvd.size(), step, hvd.shutdown)


def torch_ddp(model: Model, view: bool = False) -> Way:
    rank, size = join_torch_gloo()
    wrapped = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=view)
    return Way(rank, size, plain_step(model, wrapped, rank + 1.0), torch.distributed.barrier)


def torch_ddp_view(model: Model) -> Way:
    return torch_ddp(model, view=True)


def torch_async(model: Model) -> Way:
    rank, size = join_torch_gloo()
    backward = plain_step(model, model, rank + 1.0)

    def step() -> None:
        backward()
        gradients = [weight.grad for weight in reversed(list(model.weights))]
        works = [torch.distributed.all_reduce(gradient, async_op=True) for gradient in gradients]
        for work in works:
            work.wait()
        for gradient in gradients:
            gradient /= size

    return Way(rank, size, step, torch.distributed.barrier)


WAYS: dict[str, Callable[[Model], Way]] = {
    "hora.torch optimizer": hora_optimizer,
    "hora.torch async": hora_async,
    "torch ddp": torch_ddp,
    "torch ddp view": torch_ddp_view,
    "torch async": torch_async,
    "no exchange": alone,
}


def main() -> None:
    """Check a step, warm up, time the rest; rank 0 prints."""
    torch.set_num_threads(1)
    model = Model()
    size_bytes, steps = map(int, sys.argv[2].split(":"))
    way = WAYS[sys.argv[1]](model)
    for _ in range(3):
        way.step()
    for number, weight in enumerate(model.weights):
        if weight.grad is None or not bool((weight.grad == (way.size + 1) / 2).all()):
            sys.exit(f"rank {way.rank}: wrong average of gradient {number}")
    samples, cpu = timed(way.step, steps)
    if way.rank == 0:
        median, p90 = 1e6 * np.quantile(samples, (0.5, 0.9), method="lower")
        result = {"bytes": size_bytes, "median_us": median, "p90_us": p90}
        print(json.dumps({**result, "cpu_us": cpu * int(os.environ["BENCH_SIZE"])}), flush=True)
    way.close()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
