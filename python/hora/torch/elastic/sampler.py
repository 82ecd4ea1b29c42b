"""A sampler that goes on where training stood, with any number of ranks.

All ranks have the same order of the data set in an epoch, which the seed decides. What has been
processed is a number: that many samples at the head of the order. The rest is dealt out to the
ranks, card by card; the last round is filled up from the head of the rest, so that all ranks have
equally many. After a change of ranks or a restore the rest is dealt out anew.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sized
from typing import Any

import torch

from hora import _context

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler):  # type: ignore[type-arg]
    """Deals out a data set to the ranks, and knows what has been processed.

    Put it into a `TorchState`; call `record_batch` after each batch, and `set_epoch` at the end of
    an epoch.

    Parameters
    ----------
    dataset
        Has a length.
    shuffle
        Whether the order is random; otherwise it is that of the data set.
    seed
        With the epoch decides the order; the same on all ranks.

    Attributes
    ----------
    processed_num
        How many samples all ranks together have processed in this epoch.
    remaining_indices
        The samples that were left when they were dealt out last, in order.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.num_replicas = 0
        self.rank = 0
        self.remaining_indices: list[int] = []
        self.num_samples = 0
        self.total_size = 0
        self.indices: list[int] = []
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: nothing of it has been processed."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that each rank has processed a batch of this size."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """Return what has been processed."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deal out what has not been processed to the ranks that there are now."""
        context = _context.queried()
        self.num_replicas, self.rank = context.size, context.rank
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        rest = self.remaining_indices
        # The rest may be shorter than what fills up its last round.
        rounds = math.ceil(self.total_size / len(rest)) if rest else 0
        self.indices = (rest * rounds)[self.rank : self.total_size : self.num_replicas]
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
