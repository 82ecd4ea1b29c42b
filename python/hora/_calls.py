"""What every collective call does, whatever its tensors are.

A framework's module (:mod:`hora.numpy`, :mod:`hora.torch`) turns tensors into addresses. A call
that waits goes straight on to the core's ``run``, one crossing into C++: a small allreduce spends
only a few microseconds in Python. One that does not wait goes through `start`, which returns a
handle number.

The memory must stay where it is until the collective is done: the core holds what ``run`` gets as
`keep` should a signal end the wait early, `start` keeps what `finish` refers to.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Callable

from hora import _context, _core
from hora._refusals import telling
from hora.process_sets import ProcessSet, global_process_set, registered_id

Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5

# What a collective is called in messages.
PREFIXES = {
    _core.ALLREDUCE: "allreduce",
    _core.ALLGATHER: "allgather",
    _core.BROADCAST: "broadcast",
    _core.REDUCESCATTER: "reducescatter",
    _core.ALLTOALL: "alltoall",
}

_OPS = frozenset((Average, Sum, Adasum, Min, Max, Product))


def integer(argument: str, value: Any) -> int:
    """Return a whole number of any integer type; else TypeError, which names the argument."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{argument} must be an integer, not {type(value).__name__}.") from None


def require_compressor(compression: Any) -> None:
    """Raise TypeError unless `compression` can compress and decompress."""
    for method in ("compress", "decompress"):
        if not callable(getattr(compression, method, None)):
            raise TypeError(
                "compression must be hvd.Compression.none, hvd.Compression.fp16, a codec or a "
                f"compressor of yours, not {compression!r}: it has no method {method}."
            )


def reduction(op: int | None, average: bool | None) -> int:
    """Return what `op` and the older flag `average` ask for; Average if neither does."""
    if average is not None:
        if op is not None:
            raise ValueError(
                "The op parameter supersedes average. Please provide only one of them."
            )
        warnings.warn(
            "Parameter average is deprecated; use op=hvd.Average or op=hvd.Sum instead.",
            DeprecationWarning,
            stacklevel=3,
        )
        return Average if average else Sum
    if op is None:
        return Average
    op = integer("op", op)
    if op not in _OPS:
        raise ValueError(f"op must be Average, Sum, Adasum, Min, Max or Product, not {op!r}.")
    return op


def checked_root(root_rank: int, process_set: ProcessSet = global_process_set) -> int:
    """Return `root_rank`, or raise ValueError when the set has no such rank."""
    context = _context.current()
    root_rank = integer("root_rank", root_rank)
    is_global = registered_id(process_set, "broadcast") == 0
    if is_global and 0 <= root_rank < context.size:
        return root_rank
    if is_global or root_rank not in process_set.ranks:
        raise ValueError(
            f"broadcast received invalid root rank {root_rank} for provided process set: "
            f"its ranks are {process_set.ranks}."
        )
    return root_rank


def checked_splits(
    splits: Sequence[int] | None,
    shape: Sequence[int],
    process_set: ProcessSet = global_process_set,
) -> tuple[int, ...]:
    """Return how many rows of a tensor of `shape` go to each rank: `splits`, or equal parts.

    None and an empty sequence mean equal parts. What is wrong with splits is for the core to say,
    but for rows that do not divide.
    """
    registered_id(process_set, "alltoall")
    if splits is not None and len(splits) > 0:
        return tuple(splits)
    size = len(process_set.ranks)
    rows = shape[0] if len(shape) > 0 else 0
    if rows % size != 0:
        raise ValueError(
            f"alltoall without splits needs a first dimension that is a multiple of the number of "
            f"ranks: {rows} rows cannot be split evenly among {size} ranks."
        )
    return (rows // size,) * size


def start(
    kind: int,
    name: str | None,
    dtype: int,
    shape: tuple[int, ...],
    source: int,
    target: int,
    finish: _context.Finish,
    op: int = Sum,
    prescale: float = 1.0,
    postscale: float = 1.0,
    root: int = 0,
    splits: tuple[int, ...] = (),
    process_set: ProcessSet = global_process_set,
    codec: str = "",
) -> int:
    """Start a collective and return its handle; `finish` makes the result of `synchronize`."""
    context = _context.current()
    handle = context.runtime.submit(
        kind,
        name,
        dtype,
        shape,
        source,
        target,
        op,
        prescale,
        postscale,
        root,
        splits,
        registered_id(process_set, PREFIXES[kind]),
        codec,
    )
    return context.keep(handle, finish)


def start_group(
    kind: int,
    name: str | None,
    dtypes: list[int],
    shapes: list[tuple[int, ...]],
    sources: list[int],
    targets: list[int],
    finish: _context.FinishGroup,
    op: int = Sum,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: ProcessSet = global_process_set,
    codec: str = "",
) -> int:
    """Start collectives that are negotiated as a whole and return the handle of all of them."""
    context = _context.current()
    handles = context.runtime.submit_group(
        kind,
        name,
        dtypes,
        shapes,
        sources,
        targets,
        op,
        prescale,
        postscale,
        registered_id(process_set, PREFIXES[kind]),
        codec,
    )
    return context.keep_group(handles, finish)


def members_of(tensors: Iterable[Any]) -> list[Any]:
    """Return the tensors of a group; IndexError if there are none."""
    members = list(tensors)
    if not members:
        raise IndexError("A grouped collective needs at least one tensor.")
    return members


def compressed(
    tensors: Iterable[Any], compression: Any, members: Callable[[Iterable[Any]], list[Any]]
) -> tuple[list[Any], list[Any]]:
    """Compress what `members` makes of `tensors`: what to send, and what `decompressed` needs."""
    require_compressor(compression)
    pairs = [compression.compress(one) for one in members(tensors)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def decompressed(results: Iterable[Any], compression: Any, contexts: Iterable[Any]) -> list[Any]:
    """Undo `compressed` in the results of a group."""
    return [
        _context.afterwards(compression.decompress, one, ctx) for one, ctx in zip(results, contexts)
    ]


def output(_source: Any, made: Any, _: Any) -> Any:
    """Finish: the output, or those of a group. The source is an argument so that it lives as long
    as the handle.
    """
    return made


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the set have come here.

    Collectives that are in flight need not complete for that.
    """
    context = _context.current()
    with telling(_core.BARRIER, "noname", process_set):
        number = registered_id(process_set, "barrier")
    uint8 = _core.DTYPES["uint8"]
    context.runtime.run(_core.BARRIER, "noname", uint8, (), 0, 0, None, process_set=number)


def join(device: int = -1) -> int:
    """Wait until all ranks have joined: for ranks that have different numbers of steps to do.

    Until then this rank takes part in what the others do, in all process sets that it is in: it
    gives zeros to every allreduce and comes to every barrier. An average divides by the size of the
    set all the same, and Min, Max and Product see the zeros. Other collectives need this rank and
    fail on the ranks that call them.

    Parameters
    ----------
    device
        Accepted for compatibility.

    Returns
    -------
    The rank that joined last; the same on all ranks.

    Raises
    ------
    HoraInternalError
        The job has failed.
    """
    return _context.current().runtime.join()


def poll(handle: int) -> bool:
    """Return whether the collective of `handle` has completed, successfully or not.

    Raises
    ------
    ValueError
        There is no such handle (any more).
    """
    return _context.current().poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for the collective of `handle` and return its result.

    The handle is used up, also by a failure. Ctrl-C interrupts the wait only: the collective goes
    on, and the handle may be synchronized again.

    Returns
    -------
    The output tensor; None for an unknown handle.

    Raises
    ------
    HoraInternalError
        The collective failed.
    """
    return _context.current().synchronize(handle)


def contributors(handle: int) -> list[tuple[int | None, tuple[int, ...]]]:
    """Wait for the collective of `handle`, and return whose tensors its result is made of.

    Under ``horarun --min-np`` a collective in flight when ranks die is finished by the others: what
    some rank had finished keeps the contributions of the dead, the rest is made anew without them.
    An average is divided by the number of contributors. The answer is the same on all ranks.

    The handle is not used up: `synchronize` gives the result afterwards.

    Returns
    -------
    ``(end, ranks)`` pairs in order: the flattened result's elements up to `end` (None: to the last)
    are made of the tensors of `ranks`, the ranks with which those processes were started. One pair,
    unless ranks died meanwhile; none without ``--min-np``, where all ranks contribute.

    Raises
    ------
    ValueError
        There is no such handle (any more).
    HoraInternalError
        The collective failed.
    """
    return _context.current().contributions(handle)


def synchronize_all(handles: Iterable[int]) -> None:
    """Wait for all of `handles`, then raise the first error if there was one.

    No handle is left over, so nothing stays in memory and no name stays busy.
    """
    first: Exception | None = None
    for handle in handles:
        try:
            synchronize(handle)
        except Exception as error:
            first = first or error
    if first is not None:
        raise first
