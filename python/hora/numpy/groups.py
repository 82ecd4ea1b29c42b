"""Grouped collectives on NumPy arrays: several arrays that are negotiated as a whole.

No array of a group is reduced or gathered before all ranks have submitted all of them, and when one
fails all do. A group has one handle. Its arrays may be of different dtypes and shapes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hora import _calls, _core
from hora._calls import Average
from hora._codec import words_of
from hora._refusals import told
from hora.numpy.arrays import NUMBERS, Array, core_output, readable, writable, write_back
from hora.numpy.compression import Compression
from hora.process_sets import ProcessSet, global_process_set


def _start(
    kind: int,
    name: str | None,
    sources: list[Array],
    targets: list[Array] | None,
    finish: Any,
    op: int = _calls.Sum,
    prescale: float = 1.0,
    postscale: float = 1.0,
    *,
    process_set: ProcessSet,
    codec: str = "",
) -> int:
    return _calls.start_group(
        kind,
        name,
        [NUMBERS[source.dtype] for source in sources],
        [source.shape for source in sources],
        [_core.address(source) for source in sources],
        [_core.address(target) for target in targets] if targets else [0] * len(sources),
        finish,
        op,
        prescale,
        postscale,
        process_set,
        codec,
    )


def _start_reduce(
    tensors: Iterable[ArrayLike],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    codec: str = "",
) -> int:
    sources = [readable(tensor) for tensor in _calls.members_of(tensors)]
    outputs = [np.empty(source.shape, source.dtype) for source in sources]
    finish = partial(_calls.output, sources, outputs)
    return _start(
        _core.ALLREDUCE,
        name,
        sources,
        outputs,
        finish,
        op,
        prescale,
        postscale,
        process_set=process_set,
        codec=codec,
    )


def _made(sources: list[Array], handles: list[_core.Handle]) -> list[Array]:
    return [core_output(one.dtype, one, handle) for one, handle in zip(sources, handles)]


def _written(tensors: list[Array], buffers: list[Array], _: list[_core.Handle]) -> list[Array]:
    return [write_back(tensor, buffer) for tensor, buffer in zip(tensors, buffers)]


def _members(tensors: Iterable[ArrayLike]) -> list[Array]:
    return [np.asarray(one) for one in _calls.members_of(tensors)]


@told(_core.ALLREDUCE)
def grouped_allreduce(
    tensors: Iterable[ArrayLike],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Reduce a group of tensors over all ranks; the arguments are those of `allreduce`.

    Returns
    -------
    A new array for each tensor.

    Raises
    ------
    IndexError
        There are no tensors.
    """
    op = _calls.reduction(op, average)
    sent, contexts = _calls.compressed(tensors, compression, _members)
    scales = (prescale_factor, postscale_factor)
    codec = words_of(compression, op)
    reduced = _calls.synchronize(_start_reduce(sent, name, op, *scales, process_set, codec))
    return _calls.decompressed(reduced, compression, contexts)


@told(_core.ALLREDUCE)
def grouped_allreduce_async(
    tensors: Iterable[ArrayLike],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a `grouped_allreduce` and return the handle of the group."""
    op = _calls.reduction(op, average)
    return _start_reduce(tensors, name, op, prescale_factor, postscale_factor, process_set)


@told(_core.ALLREDUCE)
def grouped_allreduce_(
    tensors: Iterable[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Reduce a group of arrays in place and return them."""
    handle = grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )
    reduced: list[Array] = _calls.synchronize(handle)
    return reduced


@told(_core.ALLREDUCE)
def grouped_allreduce_async_(
    tensors: Iterable[Array],
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
    finish = partial(_written, members, buffers)
    scales = (prescale_factor, postscale_factor)
    return _start(
        _core.ALLREDUCE, name, buffers, buffers, finish, op, *scales, process_set=process_set
    )


@told(_core.ALLGATHER)
def grouped_allgather(
    tensors: Iterable[ArrayLike],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Gather each tensor of a group, as `allgather` does."""
    gathered: list[Array] = _calls.synchronize(grouped_allgather_async(tensors, name, process_set))
    return gathered


@told(_core.ALLGATHER)
def grouped_allgather_async(
    tensors: Iterable[ArrayLike],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a `grouped_allgather` and return the handle of the group."""
    sources = [readable(tensor) for tensor in _calls.members_of(tensors)]
    return _start(
        _core.ALLGATHER, name, sources, None, partial(_made, sources), process_set=process_set
    )


@told(_core.REDUCESCATTER)
def grouped_reducescatter(
    tensors: Iterable[ArrayLike],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array]:
    """Reduce and scatter each tensor of a group, as `reducescatter` does."""
    sent, contexts = _calls.compressed(tensors, compression, _members)
    handle = grouped_reducescatter_async(
        sent, name, op, process_set, prescale_factor, postscale_factor
    )
    parts = _calls.synchronize(handle)
    return _calls.decompressed(parts, compression, contexts)


@told(_core.REDUCESCATTER)
def grouped_reducescatter_async(
    tensors: Iterable[ArrayLike],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a `grouped_reducescatter` and return the handle of the group."""
    op = _calls.integer("op", op)
    sources = [readable(tensor) for tensor in _calls.members_of(tensors)]
    finish = partial(_made, sources)
    scales = (prescale_factor, postscale_factor)
    return _start(
        _core.REDUCESCATTER, name, sources, None, finish, op, *scales, process_set=process_set
    )
