"""Checks of what DistributedOptimizer is given. The messages are Horovod's."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch


def check_passes(passes: int) -> None:
    """Raise ValueError unless a number of backward passes per step is possible."""
    if passes <= 0:
        raise ValueError("backward_passes_per_step must be > 0")


def checked_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    """Return the names of the parameters; empty if there are none."""
    named = list(named_parameters) if named_parameters is not None else []
    if not all(isinstance(entry, tuple) for entry in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually "
            "produced by model.named_parameters()."
        )
    counts = Counter(name for name, _ in named)
    duplicates = [name for name, count in counts.items() if count > 1]
    if duplicates:
        raise ValueError(
            "Parameter names in named_parameters must be unique. Found duplicates: "
            + ", ".join(duplicates)
        )
    names = {parameter: name for name, parameter in named}
    unnamed = [p for group in optimizer.param_groups for p in group["params"] if p not in names]
    if named and unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named. "
            f"Python object ids: {', '.join(str(id(p)) for p in unnamed)}"
        )
    return names


def check_groups(num_groups: int, groups: Any) -> None:
    """Raise ValueError unless `groups` is what Horovod takes: an integer or lists of tensors."""
    if num_groups != 0:
        warnings.warn(
            "Parameter num_groups is deprecated; use groups instead.",
            DeprecationWarning,
            stacklevel=3,
        )
    if groups is None or (isinstance(groups, int) and groups >= 0):
        return
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise ValueError(
            "groups should be a non-negative integer or a list of list of torch.Tensor."
        )
    members = [member for group in groups for member in group]
    if not all(isinstance(member, torch.Tensor) for member in members):
        raise ValueError("groups must consist of torch.Tensor.")
    if len({id(member) for member in members}) != len(members):
        raise ValueError("A parameter can only appear once in groups.")
