"""How one gradient travels: out as what the wire takes, back into the parameter.

    gradient --compress--> tensor --memory order--> contiguous memory --allreduce in place-->
             <-decompress- tensor <---- a view of the same memory ----

A gradient of any dense layout (channels_last, transposed) travels as it lies in memory, without a
copy: what is reduced is a contiguous view of its memory. That is right only if the layout is the
same on all ranks, so the view's shape tells the layout: dimensions of 1 are put in front of it, as
many as the number of its permutation. Ranks whose layouts differ get the error of a shape mismatch.

A sparse gradient travels as its indices and values; or as a dense one, if the user says so, and
becomes sparse again. Complex numbers travel as pairs.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Callable, Union

import torch

from hora import _core
from hora._calls import synchronize
from hora._refusals import telling
from hora.process_sets import ProcessSet
from hora.torch.ops import allreduce_async_
from hora.torch.sparse import sparse_allreduce_async

# A tensor's layout is a permutation of its dimensions; those with higher numbers are copied.
_MOST_MARKS = 16

# What is waited for: a handle, or a function that waits and returns the result.
Ticket = Union[int, Callable[[], torch.Tensor]]


@dataclass
class Manner:
    """How gradients travel: what DistributedOptimizer was told about it."""

    compression: Any
    op: int
    prescale: float
    postscale: float
    sparse_as_dense: bool
    process_set: ProcessSet


@dataclass
class Flight:
    """A gradient under way."""

    parameter: torch.Tensor
    gradient: torch.Tensor
    # What the compressor made of the gradient, and what it needs to undo that.
    compressed: torch.Tensor
    context: Any
    ticket: Ticket
    compression: Any

    def wait(self) -> torch.Tensor:
        """Wait for the reduction; its result lies in `compressed`, unless it is sparse."""
        if callable(self.ticket):
            return self.ticket()
        synchronize(self.ticket)
        return self.compressed

    def land(self) -> None:
        """Wait, and give the parameter its reduced gradient, unless it has been taken from it."""
        reduced: torch.Tensor = self.compression.decompress(self.wait(), self.context)
        gradient = self.gradient
        if gradient.is_sparse:
            gradient = reduced if reduced.is_sparse else reduced.to_sparse(gradient.sparse_dim())
        elif reduced is not gradient:
            gradient.copy_(reduced)
        if self.parameter.grad is not None:
            self.parameter.grad = gradient


def launch(parameter: torch.Tensor, gradient: torch.Tensor, name: str, manner: Manner) -> Flight:
    """Start the reduction of a gradient; it must not be touched until it has landed.

    If that fails the other ranks are told.
    """
    with telling_of(gradient, name, manner):
        return _launch(parameter, gradient, name, manner)


def telling_of(
    gradient: torch.Tensor, name: str, manner: Manner
) -> contextlib.AbstractContextManager[None]:
    """Tell the other ranks if what leads to the reduction of a gradient fails; see `telling`."""
    if gradient.is_sparse and not manner.sparse_as_dense:
        return telling(_core.ALLGATHER, name, manner.process_set, members=2)
    return telling(_core.ALLREDUCE, name, manner.process_set)


def _launch(parameter: torch.Tensor, gradient: torch.Tensor, name: str, manner: Manner) -> Flight:
    source = gradient
    if gradient.is_sparse and manner.sparse_as_dense:
        source = gradient.to_dense()
    compressed, context = manner.compression.compress(source)
    if compressed.is_sparse:
        # The factors of a predivided average cancel each other.
        gathering = sparse_allreduce_async(compressed, name, manner.op, manner.process_set)
        return Flight(parameter, gradient, compressed, context, gathering, manner.compression)
    ticket = allreduce_async_(
        in_memory_order(compressed),
        name=name,
        op=manner.op,
        prescale_factor=manner.prescale,
        postscale_factor=manner.postscale,
        process_set=manner.process_set,
        compression=manner.compression,
    )
    return Flight(parameter, gradient, compressed, context, ticket, manner.compression)


def zeros_for(parameter: torch.Tensor, sparse_dims: int) -> torch.Tensor:
    """Return the gradient of a parameter that was not used; 0 `sparse_dims`: a dense one."""
    if sparse_dims == 0:
        return torch.zeros_like(parameter, requires_grad=False)
    indices = torch.empty((sparse_dims, 0), dtype=torch.int64)
    values = torch.empty((0, *parameter.shape[sparse_dims:]), dtype=parameter.dtype)
    return torch.sparse_coo_tensor(indices, values, parameter.shape)


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous view of a dense tensor's memory that tells its layout by its shape.

    A tensor whose memory has gaps or overlaps, or whose layout is too unusual, is returned as it
    is: collectives copy it.
    """
    if tensor.is_sparse or tensor.is_conj() or tensor.is_neg():
        return tensor
    if not tensor.is_contiguous():
        order = memory_order(tensor)
        marks = permutation_number(order)
        view = tensor.permute(order)
        if marks > _MOST_MARKS or not view.is_contiguous():
            return tensor
        tensor = view[(None,) * marks]
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def memory_order(tensor: torch.Tensor) -> list[int]:
    """Return the dimensions, the one with the largest stride first.

    Strides of dimensions of length 1 mean nothing: these come first, in their order, so that the
    same memory has the same order on all ranks.
    """
    strides = tensor.stride()
    single = [d for d, length in enumerate(tensor.shape) if length == 1]
    longer = [d for d, length in enumerate(tensor.shape) if length != 1]
    return single + sorted(longer, key=lambda d: -strides[d])


def permutation_number(order: list[int]) -> int:
    """Return a permutation's place in the list of all of its length, in lexical order."""
    number = 0
    for i, dimension in enumerate(order):
        number *= len(order) - i
        number += sum(later < dimension for later in order[i + 1 :])
    return number
