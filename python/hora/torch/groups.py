"""Grouped collectives: several tensors that are negotiated as a whole.

No tensor of a group is reduced or gathered before all ranks have submitted all of them, and when
one fails all do. A group has one handle. Its tensors may be of different dtypes and shapes; those
that allow it are fused. The rules of :mod:`hora.torch.ops` hold; the functions that return new
tensors and wait are differentiable.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from hora import _calls, _core
from hora._calls import Average
from hora._codec import words_of
from hora._refusals import told
from hora.process_sets import ProcessSet, global_process_set
from hora.torch import group_gradients
from hora.torch.compression import Compression
from hora.torch.group_calls import start, start_gather, start_reduce, start_scatter, written
from hora.torch.tensors import require_tensor, writable

__all__ = [
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
]


def _wants_gradients(tensors: list[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _members(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    members = _calls.members_of(tensors)
    for tensor in members:
        require_tensor(tensor)
    return members


@told(_core.ALLREDUCE)
def grouped_allreduce(
    tensors: Iterable[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce a group of tensors over all ranks; differentiable.

    Parameters
    ----------
    tensors
        The same number of tensors, with the same shapes and dtypes, on all ranks.
    average
        Deprecated: True means ``op=Average``, False ``op=Sum``.
    name
        Names the group, the same on all ranks; counted if None.
    compression
        `Compression.none`, `fp16`, `bf16` or `int8`, a codec (`hora.codec`), or your own
        compressor.
    op
        Average (if None), Sum, Min, Max, Product, or Adasum (for floating-point tensors).
    prescale_factor, postscale_factor
        Multiply each input before, and the result after the reduction.
    process_set
        Whose ranks take part; this rank must be one of them.

    Returns
    -------
    A new tensor for each one given.

    Raises
    ------
    IndexError
        There are no tensors.
    """
    op = _calls.reduction(op, average)
    sent, contexts = _calls.compressed(tensors, compression, _members)
    arguments = (
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        words_of(compression, op),
    )
    if _wants_gradients(sent):
        reduced = group_gradients.allreduce(sent, *arguments)
    else:
        reduced = _calls.synchronize(start_reduce(sent, *arguments))
    return _calls.decompressed(reduced, compression, contexts)


@told(_core.ALLREDUCE)
def grouped_allreduce_async(
    tensors: Iterable[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a `grouped_allreduce` into new tensors and return the handle of the group."""
    op = _calls.reduction(op, average)
    members = _calls.members_of(tensors)
    return start_reduce(members, name, op, prescale_factor, postscale_factor, process_set)


@told(_core.ALLREDUCE)
def grouped_allreduce_(
    tensors: Iterable[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce a group of tensors in place and return them; see `grouped_allreduce`."""
    handle = grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )
    reduced: list[torch.Tensor] = _calls.synchronize(handle)
    return reduced


@told(_core.ALLREDUCE)
def grouped_allreduce_async_(
    tensors: Iterable[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a `grouped_allreduce_` and return the handle of the group."""
    op = _calls.reduction(op, average)
    members = _calls.members_of(tensors)
    buffers = [writable(tensor) for tensor in members]
    finish = partial(written, members, buffers)
    scales = (prescale_factor, postscale_factor)
    return start(
        _core.ALLREDUCE, name, buffers, buffers, finish, op, *scales, process_set=process_set
    )


@told(_core.ALLGATHER)
def grouped_allgather(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Gather each tensor of a group, as `allgather` does; differentiable."""
    members = _members(tensors)
    if _wants_gradients(members):
        return group_gradients.allgather(members, name, process_set)
    gathered: list[torch.Tensor] = _calls.synchronize(start_gather(members, name, process_set))
    return gathered


@told(_core.ALLGATHER)
def grouped_allgather_async(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a `grouped_allgather` and return the handle of the group."""
    return start_gather(_calls.members_of(tensors), name, process_set)


@told(_core.REDUCESCATTER)
def grouped_reducescatter(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduce and scatter each tensor of a group, as `reducescatter` does; differentiable."""
    op = _calls.integer("op", op)
    sent, contexts = _calls.compressed(tensors, compression, _members)
    scales = (prescale_factor, postscale_factor)
    if _wants_gradients(sent):
        parts = group_gradients.reducescatter(sent, name, op, *scales, process_set)
    else:
        parts = _calls.synchronize(start_scatter(sent, name, op, *scales, process_set))
    return _calls.decompressed(parts, compression, contexts)


@told(_core.REDUCESCATTER)
def grouped_reducescatter_async(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a `grouped_reducescatter` and return the handle of the group."""
    op = _calls.integer("op", op)
    members = _calls.members_of(tensors)
    return start_scatter(members, name, op, prescale_factor, postscale_factor, process_set)
