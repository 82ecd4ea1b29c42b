"""Collectives that give each rank something else: `reducescatter` and `alltoall`.

The rules of :mod:`hora.torch.ops` hold. `reducescatter` and `alltoall` are differentiable.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any, Union

import torch

from hora import _calls, _context, _core
from hora._calls import Average
from hora._refusals import told
from hora.process_sets import ProcessSet, global_process_set
from hora.torch import autograd
from hora.torch.blocking import exchange_new, scatter_new
from hora.torch.compression import Compression
from hora.torch.tensors import DTYPES, core_output, readable, require_tensor

__all__ = ["alltoall", "alltoall_async", "reducescatter", "reducescatter_async"]

# What may say how many rows go to each rank: a tensor of int32, or any sequence of integers.
Splits = Union[torch.Tensor, Sequence[int]]


@told(_core.REDUCESCATTER)
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce a tensor over all ranks and give each rank a part of the result; differentiable.

    Parameters
    ----------
    tensor
        The same shape, of at least one dimension, and dtype on all ranks.
    name
        Names the call, the same on all ranks; counted if None.
    compression
        `Compression.none`, `Compression.fp16` or your own compressor.
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
    """
    op = _calls.integer("op", op)
    require_tensor(tensor)
    if compression is not Compression.none:
        _calls.require_compressor(compression)
    compressed, ctx = compression.compress(tensor)
    if compressed.requires_grad and torch.is_grad_enabled():
        scatter = autograd.reducescatter
    else:
        scatter = scatter_new
    part = scatter(compressed, name, op, prescale_factor, postscale_factor, process_set)
    result: torch.Tensor = _context.afterwards(compression.decompress, part, ctx)
    return result


@told(_core.REDUCESCATTER)
def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a reducescatter and return its handle; see `reducescatter`."""
    op = _calls.integer("op", op)
    source = readable(tensor)
    return _calls.start(
        _core.REDUCESCATTER,
        name,
        DTYPES[source.dtype],
        source.shape,
        source.data_ptr(),
        0,
        partial(core_output, source),
        op,
        prescale_factor,
        postscale_factor,
        process_set=process_set,
    )


def _split_list(splits: Splits | None) -> Sequence[int] | None:
    if splits is None:
        return None
    if isinstance(splits, torch.Tensor):
        if splits.dtype != torch.int32:
            raise ValueError(
                f"alltoall expects splits to contain 32-bit integer elements, not {splits.dtype}."
            )
        if splits.dim() != 1:
            raise ValueError(
                f"alltoall expects a 1D splits tensor, not one of shape {list(splits.shape)}."
            )
        numbers: list[int] = splits.tolist()
        return numbers
    try:
        return [operator.index(count) for count in splits]
    except TypeError as error:
        raise ValueError(f"alltoall expects splits to be integers: {error}.") from error


@told(_core.ALLTOALL)
def alltoall(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Give each rank some rows of a tensor, and get some of everybody's; differentiable.

    Parameters
    ----------
    tensor
        At least one dimension; all dimensions but the first, and the dtype, equal on all ranks.
    splits
        Rows for each rank, as a tensor of int32 or a sequence: the first ``splits[0]`` go to the
        first rank, and so on. Rows that are left over go nowhere. If None, the rows are split
        evenly.
    name
        Names the call, the same on all ranks; counted if None.
    process_set
        Whose ranks take part; they alone call.

    Returns
    -------
    What the ranks have for this one, in rank order; with `splits` a tuple: that, and an int32
    tensor of the number of rows that came from each rank.
    """
    require_tensor(tensor)
    numbers = _split_list(splits)
    if tensor.requires_grad and torch.is_grad_enabled():
        output, received = autograd.alltoall(tensor, numbers, name, process_set)
    else:
        output, rows = exchange_new(tensor, numbers, name, process_set)
        received = torch.tensor(rows, dtype=torch.int32)
    return output if splits is None else (output, received)


def _exchanged(source: torch.Tensor, handle: _core.Handle) -> tuple[torch.Tensor, torch.Tensor]:
    received = torch.tensor(handle.first_dims, dtype=torch.int32)
    return core_output(source, handle), received


@told(_core.ALLTOALL)
def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an alltoall; `synchronize` returns (output, received_splits) in any case."""
    numbers = _split_list(splits)
    source = readable(tensor)
    return _calls.start(
        _core.ALLTOALL,
        name,
        DTYPES[source.dtype],
        source.shape,
        source.data_ptr(),
        0,
        partial(_exchanged, source),
        splits=_calls.checked_splits(numbers, source.shape, process_set),
        process_set=process_set,
    )
