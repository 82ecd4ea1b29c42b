"""Collectives that wait, without autograd: what `ops` and the gradients in `autograd` are made of.

Each crosses into C++ once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hora import _calls, _context, _core
from hora.process_sets import ProcessSet, global_process_set, registered_id
from hora.torch.tensors import DTYPES, core_output, output_for, readable, writable, write_back


def reduce_new(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet = global_process_set,
    codec: str = "",
) -> torch.Tensor:
    """Reduce into a new tensor."""
    source = readable(tensor)
    output = output_for(tensor, source)
    _context.current().runtime.run(
        _core.ALLREDUCE,
        name,
        DTYPES[source.dtype],
        source.shape,
        source.data_ptr(),
        output.data_ptr(),
        (source, output),
        op,
        prescale,
        postscale,
        0,
        registered_id(process_set, "allreduce"),
        codec,
    )
    return output


def reduce_in_place(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce in place."""
    buffer = writable(tensor)
    address = buffer.data_ptr()
    _context.current().runtime.run(
        _core.ALLREDUCE,
        name,
        DTYPES[buffer.dtype],
        buffer.shape,
        address,
        address,
        buffer,
        op,
        prescale,
        postscale,
        0,
        registered_id(process_set, "allreduce"),
    )
    return write_back(tensor, buffer)


def gather_new(
    tensor: torch.Tensor, name: str | None, process_set: ProcessSet = global_process_set
) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Gather: the result, and the first dimension of each rank."""
    source = readable(tensor)
    handle = _context.current().runtime.produce(
        _core.ALLGATHER,
        name,
        DTYPES[source.dtype],
        source.shape,
        source.data_ptr(),
        source,
        process_set=registered_id(process_set, "allgather"),
    )
    return core_output(source, handle), handle.first_dims


def scatter_new(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce, and return this rank's rows of the result."""
    source = readable(tensor)
    handle = _context.current().runtime.produce(
        _core.REDUCESCATTER,
        name,
        DTYPES[source.dtype],
        source.shape,
        source.data_ptr(),
        source,
        op,
        prescale,
        postscale,
        process_set=registered_id(process_set, "reducescatter"),
    )
    return core_output(source, handle)


def exchange_new(
    tensor: torch.Tensor,
    splits: Sequence[int] | None,
    name: str | None,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Exchange rows: what came, and how many rows from each rank."""
    source = readable(tensor)
    handle = _context.current().runtime.produce(
        _core.ALLTOALL,
        name,
        DTYPES[source.dtype],
        source.shape,
        source.data_ptr(),
        source,
        splits=_calls.checked_splits(splits, source.shape, process_set),
        process_set=registered_id(process_set, "alltoall"),
    )
    return core_output(source, handle), handle.first_dims


def broadcast_in_place(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Broadcast in place."""
    root = _calls.checked_root(root_rank, process_set)
    buffer = writable(tensor)
    address = buffer.data_ptr()
    _context.current().runtime.run(
        _core.BROADCAST,
        name,
        DTYPES[buffer.dtype],
        buffer.shape,
        address,
        address,
        buffer,
        root=root,
        process_set=registered_id(process_set, "broadcast"),
    )
    return write_back(tensor, buffer)


def broadcast_new(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Broadcast into a new tensor."""
    return broadcast_in_place(own_copy(tensor), root_rank, name, process_set)


def own_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous host tensor with the same values that nobody else has."""
    source = readable(tensor)
    return source.detach().clone() if source is tensor else source
