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
from typing import Any

from hora import _context, _core

Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5

_OPS = frozenset((Average, Sum, Min, Max, Product))


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
                "compression must be hvd.Compression.none, hvd.Compression.fp16 or a compressor "
                f"of yours, not {compression!r}: it has no method {method}."
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
        if op == Adasum:
            raise NotImplementedError(
                "Adasum is not supported by this version of Hora; "
                "use Average, Sum, Min, Max or Product."
            )
        raise ValueError(f"op must be Average, Sum, Min, Max or Product, not {op!r}.")
    return op


def checked_root(root_rank: int) -> int:
    """Return `root_rank`, or raise ValueError when there is no such rank."""
    context = _context.current()
    root_rank = integer("root_rank", root_rank)
    if not 0 <= root_rank < context.size:
        raise ValueError(
            f"broadcast received invalid root rank {root_rank} for provided process set: "
            f"ranks are 0 to {context.size - 1}."
        )
    return root_rank


def checked_splits(splits: Sequence[int] | None, shape: Sequence[int]) -> tuple[int, ...]:
    """Return how many rows of a tensor of `shape` go to each rank: `splits`, or equal parts.

    None and an empty sequence mean equal parts. What is wrong with splits is for the core to say,
    but for rows that do not divide.
    """
    if splits is not None and len(splits) > 0:
        return tuple(splits)
    size = _context.current().size
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
) -> int:
    """Start a collective and return its handle; `finish` makes the result of `synchronize`."""
    context = _context.current()
    handle = context.runtime.submit(
        kind, name, dtype, shape, source, target, op, prescale, postscale, root, splits
    )
    return context.keep(handle, finish)


def barrier() -> None:
    """Wait until all ranks have come here."""
    _context.current().runtime.run(_core.BARRIER, "noname", _core.DTYPES["uint8"], (), 0, 0, None)


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
