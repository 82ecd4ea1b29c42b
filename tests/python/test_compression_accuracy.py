"""The digits example with codecs: as accurate as without, and nearer to it with error feedback.

Four ranks train the network of examples/torch_digits.py from five seeds, with and without codecs.
Two things are compared with the float32 runs: the mean accuracy, after enough steps to be good, and
the distance of the parameters after few small ones, before differences have grown by themselves: a
rectifier that opens on one side only is the end of any comparison. The long runs have no momentum:
what topk has kept for many steps and gives at once would go on for ten more.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import hora
import hora.torch as hvd

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torch_digits.py"
SEEDS = 5
EPOCHS, FALLING, RATE = 14, 3, 0.3
FEW_STEPS, SMALL_RATE, MOMENTUM = 25, 0.01, 0.9
TOPK = "topk(ratio=0.01)+ef"


def example() -> Any:
    """Import the example."""
    spec = importlib.util.spec_from_file_location("torch_digits", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["torch_digits"] = module
    spec.loader.exec_module(module)
    return module


class Training:
    """A network, its optimizer and this rank's share of the images."""

    def __init__(self, digits: Any, run: str, words: str, seed: int, **options: float) -> None:
        torch.manual_seed(seed)
        images, labels = digits.load()
        self.test = images[: digits.TEST_IMAGES], labels[: digits.TEST_IMAGES]
        self.images, self.labels = images[digits.TEST_IMAGES :], labels[digits.TEST_IMAGES :]
        self.model = digits.Network()
        named = [(f"{run}.{words}.{seed}.{n}", p) for n, p in self.model.named_parameters()]
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), **options),
            named_parameters=named,
            compression=hora.codec(words),
        )
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)

    def batches(self, epoch: int) -> tuple[torch.Tensor, ...]:
        """Return the batches of an epoch, the same on all ranks."""
        random = torch.Generator().manual_seed(epoch)
        return torch.randperm(len(self.labels), generator=random).split(48)

    def step(self, batch: torch.Tensor) -> None:
        """Train on this rank's share of a batch."""
        mine = batch[hvd.rank() :: hvd.size()]
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(self.images[mine]), self.labels[mine]).backward()
        self.optimizer.step()


def accuracy(digits: Any, words: str, seed: int) -> float:
    """Train, at a rate that falls to 0 in the last epochs, and return the test's accuracy."""
    training = Training(digits, "long", words, seed, lr=RATE)
    steps = len(training.batches(0))
    falling = torch.optim.lr_scheduler.LambdaLR(
        training.optimizer, lambda step: min(1.0, (EPOCHS - step / steps) / FALLING)
    )
    for epoch in range(EPOCHS):
        for batch in training.batches(epoch):
            training.step(batch)
            falling.step()
    return float(digits.test_accuracy(training.model, *training.test))


def early_parameters(digits: Any, words: str, seed: int) -> torch.Tensor:
    """Return all parameters after a few steps."""
    training = Training(digits, "short", words, seed, lr=SMALL_RATE, momentum=MOMENTUM)
    for batch in training.batches(0)[:FEW_STEPS]:
        training.step(batch)
    return torch.cat([p.detach().flatten() for p in training.model.parameters()])


def train_all() -> tuple[dict[str, float], dict[str, float]]:
    """Return mean accuracies and mean distances from the float32 runs, by codec."""
    hvd.init()
    torch.set_num_threads(1)
    digits = example()
    accuracies = {"none": 0.0, "int8+ef": 0.0, TOPK: 0.0}
    distances = {"int8": 0.0, "int8+ef": 0.0}
    for seed in range(SEEDS):
        for words in accuracies:
            accuracies[words] += accuracy(digits, words, seed) / SEEDS
        reference = early_parameters(digits, "none", seed)
        for words in distances:
            distance = (early_parameters(digits, words, seed) - reference).norm()
            distances[words] += float(distance) / SEEDS
    return accuracies, distances


def test_codecs_do_not_cost_accuracy(run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(4, train_all, timeout=280)
    results = job.results("train_all")
    assert all(result == results[0] for result in results)
    accuracies, distances = results[0]
    print(accuracies, distances)
    assert accuracies["none"] > 0.95
    assert accuracies["int8+ef"] > accuracies["none"] - 0.005
    assert accuracies[TOPK] > accuracies["none"] - 0.005
    # Error feedback is what keeps int8 near: without it the same codec is more than twice as far.
    assert 0 < distances["int8+ef"] < 0.5 * distances["int8"]
