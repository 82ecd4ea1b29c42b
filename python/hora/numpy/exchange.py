"""Collectives that give each rank something else: `reducescatter` and `alltoall`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hora import _calls, _context, _core
from hora._calls import Average
from hora._refusals import told
from hora.numpy.arrays import NUMBERS, Array, core_output, readable
from hora.numpy.compression import Compression
from hora.process_sets import ProcessSet, global_process_set, registered_id

Splits = NDArray[np.int32]


@told(_core.REDUCESCATTER)
def reducescatter(
    tensor: ArrayLike,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """Reduce a tensor over all ranks and give each rank a part of the result.

    Parameters
    ----------
    tensor
        The same shape, of at least one dimension, and dtype on all ranks.
    name
        Names the call, the same on all ranks; counted if None.
    compression
        `Compression.none` or `Compression.fp16`.
    op
        Average or Sum.
    process_set
        Whose ranks take part; they alone call.
    prescale_factor, postscale_factor
        Multiply each input before, and the result after the reduction.

    Returns
    -------
    This rank's rows of the result. Rows are dealt in rank order: each rank gets ``rows // size``
    of them, the first ``rows % size`` ranks get one more.

    Raises
    ------
    ValueError
        The tensor is a scalar, another argument is wrong, or the name is still in flight.
    HoraInternalError
        The operation is none of the two, the ranks disagree, or the job has failed.
    """
    op = _calls.integer("op", op)
    if compression is not Compression.none:
        _calls.require_compressor(compression)
    compressed, ctx = compression.compress(np.asarray(tensor))
    source = readable(compressed)
    handle = _context.current().runtime.produce(
        _core.REDUCESCATTER,
        name,
        NUMBERS[source.dtype],
        source.shape,
        _core.address(source),
        source,
        op,
        prescale_factor,
        postscale_factor,
        process_set=registered_id(process_set, "reducescatter"),
    )
    result: Array = compression.decompress(core_output(source.dtype, source, handle), ctx)
    return result


@told(_core.REDUCESCATTER)
def reducescatter_async(
    tensor: ArrayLike,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a `reducescatter` and return its handle."""
    op = _calls.integer("op", op)
    source = readable(tensor)
    return _calls.start(
        _core.REDUCESCATTER,
        name,
        NUMBERS[source.dtype],
        source.shape,
        _core.address(source),
        0,
        partial(core_output, source.dtype, source),
        op,
        prescale_factor,
        postscale_factor,
        process_set=process_set,
    )


def _split_list(splits: ArrayLike | None) -> Sequence[int] | None:
    if splits is None:
        return None
    array = np.asarray(splits)
    if array.ndim != 1:
        raise ValueError(f"alltoall expects a 1D splits tensor, not one of shape {array.shape}.")
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ValueError("alltoall expects splits to contain 32-bit integer elements.")
    numbers: list[int] = array.tolist()
    return numbers


def _exchanged(source: Array, handle: _core.Handle) -> tuple[Array, Splits]:
    received = np.array(handle.first_dims, np.int32)
    return core_output(source.dtype, source, handle), received


@told(_core.ALLTOALL)
def alltoall(
    tensor: ArrayLike,
    splits: ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array | tuple[Array, Splits]:
    """Give each rank some rows of a tensor, and get some of everybody's.

    Parameters
    ----------
    tensor
        At least one dimension; all dimensions but the first, and the dtype, equal on all ranks.
    splits
        Rows for each rank: the first ``splits[0]`` go to the first rank, and so on. Rows that are
        left over go nowhere. If None, the rows are split evenly.
    name
        Names the call, the same on all ranks; counted if None.
    process_set
        Whose ranks take part; they alone call.

    Returns
    -------
    What the ranks have for this one, in rank order; with `splits` a tuple: that, and the number of
    rows that came from each rank.

    Raises
    ------
    ValueError
        `splits` does not fit the tensor or the number of ranks, another argument is wrong, or the
        name is still in flight.
    HoraInternalError
        The ranks disagree, or the job has failed.
    """
    source = readable(tensor)
    handle = _context.current().runtime.produce(
        _core.ALLTOALL,
        name,
        NUMBERS[source.dtype],
        source.shape,
        _core.address(source),
        source,
        splits=_calls.checked_splits(_split_list(splits), source.shape, process_set),
        process_set=registered_id(process_set, "alltoall"),
    )
    output, received = _exchanged(source, handle)
    return output if splits is None else (output, received)


@told(_core.ALLTOALL)
def alltoall_async(
    tensor: ArrayLike,
    splits: ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an `alltoall`; `synchronize` returns (output, received_splits) in any case."""
    source = readable(tensor)
    return _calls.start(
        _core.ALLTOALL,
        name,
        NUMBERS[source.dtype],
        source.shape,
        _core.address(source),
        0,
        partial(_exchanged, source),
        splits=_calls.checked_splits(_split_list(splits), source.shape, process_set),
        process_set=process_set,
    )
