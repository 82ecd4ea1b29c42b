"""A small network that learns to read digits, on any number of ranks.

    horarun -np 2 python examples/torch_digits.py

Every rank trains on its own share of each batch. DistributedOptimizer averages the gradients, so
all ranks keep the same weights, and the run equals one on a single process with the whole batch.
The data (1,797 images of 8 x 8 pixels) come with scikit-learn; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from tqdm import tqdm

import hora.torch as hvd

TEST_IMAGES = 360


class Network(nn.Sequential):
    """Two convolutions and two dense layers: 8 x 8 pixels in, 10 scores out."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )


def load() -> tuple[torch.Tensor, torch.Tensor]:
    """Return all images and labels, in an order that is the same on all ranks."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    pixels = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    return pixels[order], torch.tensor(labels)[order]


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    images: torch.Tensor,
    labels: torch.Tensor,
    batch_size: int,
    epoch: int,
) -> float:
    """Train on every image once and return the mean loss over all ranks."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1 + epoch))
    batches = order.split(batch_size)
    total = torch.zeros(())
    for batch in tqdm(batches, desc=f"epoch {epoch + 1}", leave=False, disable=hvd.rank() != 0):
        mine = batch[hvd.rank() :: hvd.size()]
        optimizer.zero_grad()
        # Shares differ by an image when the batch cannot be divided: weigh the loss by the share.
        losses = F.cross_entropy(model(images[mine]), labels[mine], reduction="sum")
        loss = losses * hvd.size() / len(batch)
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.detach()
    return float(hvd.allreduce(total / len(batches), name="loss"))


@torch.no_grad()
def test_accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of digits read correctly; every rank reads its part."""
    mine = slice(hvd.rank(), None, hvd.size())
    right = (model(images[mine]).argmax(1) == labels[mine]).sum()
    return float(hvd.allreduce(right, op=hvd.Sum, name="right")) / len(labels)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=48, help="over all ranks together")
    parser.add_argument("--require-accuracy", type=float, default=0.0, metavar="PERCENT")
    return parser.parse_args()


def main() -> int:
    """Train, test and report; the exit status says whether the accuracy is as required."""
    arguments = parse_arguments()
    hvd.init()
    torch.manual_seed(42)
    torch.set_num_threads(1)
    images, labels = load()
    train, test = slice(TEST_IMAGES, None), slice(TEST_IMAGES)

    model = Network()
    optimizer = torch.optim.Adam(model.parameters())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    steps = arguments.epochs * -(-len(labels[train]) // arguments.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    started = time.perf_counter()
    for epoch in range(arguments.epochs):
        loss = train_epoch(
            model,
            optimizer,
            schedule,
            images[train],
            labels[train],
            arguments.batch_size,
            epoch,
        )
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1:2}  loss {loss:.4f}", flush=True)
    seconds = time.perf_counter() - started
    accuracy = 100 * test_accuracy(model, images[test], labels[test])
    if hvd.rank() == 0:
        rate = arguments.epochs * len(labels[train]) / seconds
        print(
            f"{hvd.size()} rank(s)  test accuracy {accuracy:.2f} %  {rate:.0f} images/s", flush=True
        )
    return 0 if accuracy >= arguments.require_accuracy else 1


if __name__ == "__main__":
    sys.exit(main())
