"""Collectives on torch tensors.

Tensors may be of any supported dtype and any dense layout. Results are new contiguous tensors; the
functions that end in ``_`` work in place. `allreduce`, `allgather` and `broadcast` are
differentiable (:mod:`hora.torch.autograd`); the others do not take part in autograd.

The functions that end in ``_async`` return a handle for `poll` and `synchronize`; until then the
input must not be changed, nor the output of an in-place function be used. Two in-place collectives
on one tensor at once race with each other. All ranks must call with the same names; unnamed calls
are counted, each kind of collective for itself, so they must come in the same order.

All raise ValueError for a wrong argument or a name that is still in flight, and HoraInternalError
when the ranks disagree or the job has failed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from hora import _calls, _context, _core
from hora._codec import words_of
from hora._refusals import told
from hora.process_sets import ProcessSet, global_process_set
from hora.torch import autograd
from hora.torch.blocking import (
    broadcast_in_place,
    broadcast_new,
    gather_new,
    own_copy,
    reduce_in_place,
    reduce_new,
)
from hora.torch.compression import Compression
from hora.torch.sparse import reduce_sparse
from hora.torch.tensors import (
    DTYPES,
    core_output,
    output_for,
    readable,
    require_tensor,
    writable,
    write_back,
)

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
]


@told(_core.ALLREDUCE)
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over the ranks of a process set; differentiable.

    Parameters
    ----------
    tensor
        The same shape and dtype on all ranks of the set. A sparse (COO) tensor becomes an
        uncoalesced one with the entries of all ranks, without a gradient.
    average
        Deprecated: True means ``op=Average``, False ``op=Sum``.
    name
        Names the call, the same on all ranks; counted if None.
    compression
        `Compression.none`, `fp16`, `bf16` or `int8`, a codec (`hora.codec`), or your own
        compressor.
    op
        Average (if None), Sum, Min, Max, Product, or Adasum (for floating-point tensors).
    prescale_factor, postscale_factor
        Multiply each input before, and the result after the reduction.
    process_set
        Whose ranks reduce; they alone call.

    Returns
    -------
    A new tensor of the same shape, equal on all ranks of the set to the last bit.
    """
    op = _calls.reduction(op, average)
    require_tensor(tensor)
    arguments = (name, op, prescale_factor, postscale_factor, process_set)
    if compression is Compression.none:
        return _reduced(tensor, arguments, "")
    _calls.require_compressor(compression)
    codec = words_of(compression, op)
    compressed, ctx = compression.compress(tensor)
    reduced = _reduced(compressed, arguments, codec)
    result: torch.Tensor = _context.afterwards(compression.decompress, reduced, ctx)
    return result


def _reduced(
    tensor: torch.Tensor,
    arguments: tuple[str | None, int, float, float, ProcessSet],
    codec: str,
) -> torch.Tensor:
    if tensor.layout is torch.sparse_coo:
        return reduce_sparse(tensor, *arguments)
    if tensor.requires_grad and torch.is_grad_enabled():
        return autograd.allreduce(tensor, *arguments, codec)
    return reduce_new(tensor, *arguments, codec)


@told(_core.ALLREDUCE)
def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an allreduce into a new tensor and return its handle; see `allreduce`."""
    op = _calls.reduction(op, average)
    source = readable(tensor)
    output = output_for(tensor, source)
    finish = partial(_calls.output, source, output)
    return _start_allreduce(
        name, source, output, finish, op, prescale_factor, postscale_factor, process_set
    )


@told(_core.ALLREDUCE)
def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor in place and return it; see `allreduce`."""
    op = _calls.reduction(op, average)
    return reduce_in_place(tensor, name, op, prescale_factor, postscale_factor, process_set)


@told(_core.ALLREDUCE)
def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Any = Compression.none,
) -> int:
    """Start an in-place allreduce and return its handle; see `allreduce`.

    Of compressors only codecs (`hora.codec`) have an effect: others would need another tensor.
    """
    op = _calls.reduction(op, average)
    buffer = writable(tensor)
    finish = partial(write_back, tensor, buffer)
    codec = words_of(compression, op)
    return _start_allreduce(
        name, buffer, buffer, finish, op, prescale_factor, postscale_factor, process_set, codec
    )


def _start_allreduce(
    name: str | None,
    source: torch.Tensor,
    output: torch.Tensor,
    finish: _context.Finish,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    codec: str = "",
) -> int:
    return _calls.start(
        _core.ALLREDUCE,
        name,
        DTYPES[source.dtype],
        source.shape,
        source.data_ptr(),
        output.data_ptr(),
        finish,
        op,
        prescale,
        postscale,
        process_set=process_set,
        codec=codec,
    )


@told(_core.ALLGATHER)
def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Concatenate the tensors of the set's ranks along their first dimension, in rank order;
    differentiable.

    The first dimension may differ between ranks, also be 0; the others must be equal.
    """
    require_tensor(tensor)
    if tensor.requires_grad and torch.is_grad_enabled():
        return autograd.allgather(tensor, name, process_set)
    return gather_new(tensor, name, process_set)[0]


@told(_core.ALLGATHER)
def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an allgather and return its handle; see `allgather`."""
    source = readable(tensor)
    return _calls.start(
        _core.ALLGATHER,
        name,
        DTYPES[source.dtype],
        source.shape,
        source.data_ptr(),
        0,
        partial(core_output, source),
        process_set=process_set,
    )


@told(_core.BROADCAST)
def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Return the root's tensor on every rank of the set, as a new tensor; differentiable.

    `root_rank` is a rank of the job, not a place in the set. Shape and dtype must be equal on all
    ranks of the set.
    """
    require_tensor(tensor)
    if tensor.requires_grad and torch.is_grad_enabled():
        return autograd.broadcast(tensor, root_rank, name, process_set)
    return broadcast_new(tensor, root_rank, name, process_set)


@told(_core.BROADCAST)
def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a broadcast into a new tensor and return its handle; see `broadcast`."""
    return broadcast_async_(own_copy(tensor), root_rank, name, process_set)


@told(_core.BROADCAST)
def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Overwrite a tensor with the root's, in place, and return it."""
    return broadcast_in_place(tensor, root_rank, name, process_set)


@told(_core.BROADCAST)
def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an in-place broadcast and return its handle."""
    root = _calls.checked_root(root_rank, process_set)
    buffer = writable(tensor)
    address = buffer.data_ptr()
    return _calls.start(
        _core.BROADCAST,
        name,
        DTYPES[buffer.dtype],
        buffer.shape,
        address,
        address,
        partial(write_back, tensor, buffer),
        root=root,
        process_set=process_set,
    )


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the set have come here."""
    _calls.barrier(process_set)
