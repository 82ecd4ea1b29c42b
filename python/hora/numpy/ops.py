"""Reductions, gathers and broadcasts on NumPy arrays; see :mod:`hora.numpy`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hora import _calls, _context, _core, _objects, _parameters
from hora._codec import words_of
from hora._refusals import told
from hora.numpy.arrays import NUMBERS, Array, core_output, readable, writable, write_back
from hora.numpy.compression import Compression
from hora.process_sets import ProcessSet, global_process_set, registered_id


@told(_core.ALLREDUCE)
def allreduce(
    tensor: ArrayLike,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Reduce a tensor over the ranks of a process set.

    Parameters
    ----------
    tensor
        The same shape and dtype on all ranks of the set.
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
    A new array of the same shape, equal on all ranks of the set to the last bit.

    Raises
    ------
    ValueError
        An argument is wrong, or the name is still in flight.
    HoraInternalError
        The ranks disagree, or the job has failed.
    """
    op = _calls.reduction(op, average)
    if compression is not Compression.none:
        _calls.require_compressor(compression)
    compressed, ctx = compression.compress(np.asarray(tensor))
    source = readable(compressed)
    output = np.empty(source.shape, source.dtype)
    _context.current().runtime.run(
        _core.ALLREDUCE,
        name,
        NUMBERS[source.dtype],
        source.shape,
        _core.address(source),
        _core.address(output),
        (source, output),
        op,
        prescale_factor,
        postscale_factor,
        0,
        registered_id(process_set, "allreduce"),
        words_of(compression, op),
    )
    result: Array = _context.afterwards(compression.decompress, output, ctx)
    return result


@told(_core.ALLREDUCE)
def allreduce_async(
    tensor: ArrayLike,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an `allreduce` and return its handle."""
    op = _calls.reduction(op, average)
    source = readable(tensor)
    output = np.empty(source.shape, source.dtype)
    finish = partial(_calls.output, source, output)
    return _start_allreduce(
        name, source, output, finish, op, prescale_factor, postscale_factor, process_set
    )


@told(_core.ALLREDUCE)
def allreduce_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Reduce in place and return the same array; see `allreduce`."""
    op = _calls.reduction(op, average)
    buffer = writable(tensor)
    address = _core.address(buffer)
    _context.current().runtime.run(
        _core.ALLREDUCE,
        name,
        NUMBERS[buffer.dtype],
        buffer.shape,
        address,
        address,
        buffer,
        op,
        prescale_factor,
        postscale_factor,
        0,
        registered_id(process_set, "allreduce"),
    )
    return write_back(tensor, buffer)


@told(_core.ALLREDUCE)
def allreduce_async_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an `allreduce_` and return its handle."""
    op = _calls.reduction(op, average)
    buffer = writable(tensor)
    finish = partial(write_back, tensor, buffer)
    return _start_allreduce(
        name, buffer, buffer, finish, op, prescale_factor, postscale_factor, process_set
    )


def _start_allreduce(
    name: str | None,
    source: Array,
    output: Array,
    finish: _context.Finish,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> int:
    return _calls.start(
        _core.ALLREDUCE,
        name,
        NUMBERS[source.dtype],
        source.shape,
        _core.address(source),
        _core.address(output),
        finish,
        op,
        prescale,
        postscale,
        process_set=process_set,
    )


@told(_core.ALLGATHER)
def allgather(
    tensor: ArrayLike,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Concatenate the tensors of the set's ranks along their first dimension, in rank order.

    The first dimension may differ between ranks, also be 0; the others must be equal.
    """
    source = readable(tensor)
    handle = _context.current().runtime.produce(
        _core.ALLGATHER,
        name,
        NUMBERS[source.dtype],
        source.shape,
        _core.address(source),
        source,
        process_set=registered_id(process_set, "allgather"),
    )
    return core_output(source.dtype, source, handle)


@told(_core.ALLGATHER)
def allgather_async(
    tensor: ArrayLike,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an `allgather` and return its handle."""
    source = readable(tensor)
    return _calls.start(
        _core.ALLGATHER,
        name,
        NUMBERS[source.dtype],
        source.shape,
        _core.address(source),
        0,
        partial(core_output, source.dtype, source),
        process_set=process_set,
    )


@told(_core.BROADCAST)
def broadcast(
    tensor: ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Return the root's tensor on every rank of the set, as a new array.

    `root_rank` is a rank of the job, not a place in the set. Shape and dtype must be equal on all
    ranks of the set.
    """
    buffer = np.array(tensor, order="C")
    return broadcast_(buffer, root_rank, name, process_set)


@told(_core.BROADCAST)
def broadcast_async(
    tensor: ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a `broadcast` and return its handle."""
    buffer = np.array(tensor, order="C")
    return broadcast_async_(buffer, root_rank, name, process_set)


@told(_core.BROADCAST)
def broadcast_(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Overwrite the tensor with the root's, in place, and return it."""
    root = _calls.checked_root(root_rank, process_set)
    buffer = writable(tensor)
    address = _core.address(buffer)
    _context.current().runtime.run(
        _core.BROADCAST,
        name,
        NUMBERS[buffer.dtype],
        buffer.shape,
        address,
        address,
        buffer,
        root=root,
        process_set=registered_id(process_set, "broadcast"),
    )
    return write_back(tensor, buffer)


@told(_core.BROADCAST)
def broadcast_async_(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a `broadcast_` and return its handle."""
    root = _calls.checked_root(root_rank, process_set)
    buffer = writable(tensor)
    address = _core.address(buffer)
    return _calls.start(
        _core.BROADCAST,
        name,
        NUMBERS[buffer.dtype],
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


def broadcast_parameters(params: Mapping[str, Array] | Iterable[Any], root_rank: int) -> None:
    """Overwrite arrays with the root's, in place.

    Parameters
    ----------
    params
        A dict of arrays, or an iterable of arrays or (name, array) tuples; in the same order on
        all ranks.
    root_rank
        Whose values they get.
    """
    _parameters.broadcast_all(params, root_rank, broadcast_async_)


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's object on every rank of the set; None will do on the other ranks."""
    return _objects.broadcast_object(obj, root_rank, name, process_set)
