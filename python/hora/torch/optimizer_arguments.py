"""Checks of what DistributedOptimizer is given. The messages are Horovod's."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from hora import _calls, _objects
from hora.process_sets import ProcessSet


def check_passes(passes: int) -> None:
    """Raise ValueError unless a number of backward passes per step is possible."""
    if _calls.integer("backward_passes_per_step", passes) <= 0:
        raise ValueError("backward_passes_per_step must be > 0")


def check_optimizer(optimizer: Any) -> None:
    """Raise ValueError unless `optimizer` has parameters and steps."""
    if not hasattr(optimizer, "param_groups") or not hasattr(optimizer, "step"):
        raise ValueError(f"optimizer must be a torch optimizer, not {type(optimizer).__name__}.")


def check_predivide_factor(factor: float) -> None:
    """Raise ValueError unless gradients can be divided by `factor`."""
    if not isinstance(factor, (int, float)) or not math.isfinite(factor) or factor == 0:
        raise ValueError(f"gradient_predivide_factor must be a number other than 0, not {factor!r}")


def _is_named(entry: Any) -> bool:
    return (
        isinstance(entry, tuple)
        and len(entry) == 2
        and isinstance(entry[0], str)
        and isinstance(entry[1], torch.Tensor)
    )


def checked_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    """Return the names of the parameters; empty if there are none."""
    named: list[Any]
    try:
        named = list(named_parameters) if named_parameters is not None else []
    except TypeError:
        named = [None]  # Refused below.
    if not all(map(_is_named, named)):
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


def checked_groups(
    num_groups: int,
    groups: Any,
    optimizer: torch.optim.Optimizer,
    names: dict[torch.Tensor, str],
    process_set: ProcessSet,
) -> list[list[torch.Tensor]]:
    """Return the parameters that are reduced together; those that are not in a list go alone.

    Groups that are asked for by number are cut from the parameters in the order that they
    have on the first rank, the same on all ranks.
    """
    if num_groups != 0:
        warnings.warn(
            "Parameter num_groups is deprecated; use groups instead.",
            DeprecationWarning,
            stacklevel=3,
        )
        groups = num_groups if groups is None else groups
    if groups is None:
        return []
    if isinstance(groups, int) and groups >= 0:
        return _cut(optimizer, names, groups, process_set)
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise ValueError(
            "groups should be a non-negative integer or a list of list of torch.Tensor."
        )
    members = [member for group in groups for member in group]
    if not all(isinstance(member, torch.Tensor) for member in members):
        raise ValueError("groups must consist of torch.Tensor.")
    if len({id(member) for member in members}) != len(members):
        raise ValueError("A parameter can only appear once in groups.")
    return [list(group) for group in groups]


def _cut(
    optimizer: torch.optim.Optimizer,
    names: dict[torch.Tensor, str],
    count: int,
    process_set: ProcessSet,
) -> list[list[torch.Tensor]]:
    """Return the parameters that require a gradient, in `count` groups of nearly equal length."""
    if count == 0 or not process_set.included():
        return []
    parameters = [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    ]
    if names:
        mine = [names[parameter] for parameter in parameters]
        root = process_set.ranks[0]
        order = _objects.broadcast_object(mine, root, "distributed_optimizer.groups", process_set)
        places = {name: place for place, name in enumerate(order)}
        if places.keys() != set(mine):
            raise ValueError(
                f"groups: rank {root} has parameters of other names than this rank: "
                f"{', '.join(sorted(places.keys() ^ set(mine))[:10])}"
            )
        parameters.sort(key=lambda parameter: places[names[parameter]])
    count = min(count, len(parameters))
    cuts = [len(parameters) * i // count for i in range(count + 1)] if count else []
    return [parameters[start:end] for start, end in zip(cuts, cuts[1:])]
