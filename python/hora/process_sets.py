"""Process sets: groups of ranks that run collectives of their own.

A :class:`ProcessSet` is a list of ranks until the job knows it; then it has a number, the same on
all ranks. Sets are made known at :func:`hora.init` (static) or by :func:`add_process_set`, which
all ranks of the job call. Every collective takes a ``process_set``; its ranks alone call it.

A set belongs to the job in which it was made known: after `shutdown` it is a list of ranks again.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from hora import _context

__all__ = [
    "ProcessSet",
    "add_process_set",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "process_set_included",
    "remove_process_set",
]

_GLOBAL = 0


class ProcessSet:
    """Ranks that run collectives together.

    Parameters
    ----------
    ranks_or_comm : iterable of int
        The ranks, in any order. (Horovod also takes a communicator of MPI, which Hora does not
        use.)

    Attributes
    ----------
    process_set_id : int or None
        The set's number; None while the job does not know it.
    ranks : list of int
        Its ranks, ascending.
    """

    mpi_comm = None

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        try:
            self._ranks = sorted(operator.index(rank) for rank in ranks_or_comm)
        except TypeError:
            raise ValueError(
                "ProcessSet should be initialized with a list of process ranks, "
                f"not {ranks_or_comm!r}; Hora does not use MPI."
            ) from None
        if any(not -(2**31) <= rank < 2**31 for rank in self._ranks):
            raise ValueError(f"ProcessSet: {self._ranks} are not ranks.")
        self._registration: tuple[_context.Context, int] | None = None

    @property
    def ranks(self) -> list[int]:
        """The ranks, ascending."""
        return list(self._ranks)

    @property
    def process_set_id(self) -> int | None:
        """The number by which the job knows the set, or None."""
        if self._registration is None or not _context.is_current(self._registration[0]):
            return None
        return self._registration[1]

    def size(self) -> int | None:
        """Return the number of ranks; None while the job does not know the set."""
        return None if self.process_set_id is None else len(self._ranks)

    def rank(self) -> int | None:
        """Return this process's place in the set; None while the job does not know the set.

        Raises
        ------
        ValueError
            This process is not in the set.
        """
        if self.process_set_id is None:
            return None
        rank = _context.queried().rank
        if rank not in self._ranks:
            raise ValueError("Process is not part of provided process set.")
        return self._ranks.index(rank)

    def included(self) -> bool:
        """Return whether this process is in the set."""
        return _context.queried().rank in self._ranks

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )

    __repr__ = __str__

    # What the job knows is this object: a copy of a model's optimizer uses the same set. What is
    # sent to another process is a list of ranks.

    def __deepcopy__(self, _: dict[int, Any]) -> ProcessSet:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return ProcessSet, (self.ranks,)


class _GlobalProcessSet(ProcessSet):
    """All ranks of the job, whichever job it is."""

    def __init__(self) -> None:
        super().__init__([])

    @property
    def ranks(self) -> list[int]:
        """All ranks; empty before `init`."""
        return list(range(_context.queried().size)) if _context.is_initialized() else []

    @property
    def process_set_id(self) -> int:
        """Always 0."""
        return _GLOBAL

    def size(self) -> int:
        """Return the number of ranks of the job."""
        return _context.queried().size

    def rank(self) -> int:
        """Return this process's rank."""
        return _context.queried().rank

    def included(self) -> bool:
        """Return True."""
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return _the_global_set, ()


global_process_set = _GlobalProcessSet()


def _the_global_set() -> ProcessSet:
    return global_process_set


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Make a set of ranks known to the job. All ranks of the job call it, with the same ranks.

    Parameters
    ----------
    process_set
        A set that the job does not know yet, or the ranks of one.

    Returns
    -------
    The set, which has its number now.

    Raises
    ------
    ValueError
        The ranks cannot be a set: one is not a rank of the job or named twice, there are none, or
        the job has a set of the same ranks. On all ranks alike.
    HoraInternalError
        The ranks of the job called with different sets, or one has joined.
    """
    context = _context.queried()
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    number = context.runtime.add_process_set(process_set.ranks)
    if process_set is not global_process_set:
        process_set._registration = (context, number)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Make the job forget a set. All ranks of the job call it.

    Collectives of the set that some of its ranks still wait for fail; so wait for all of them
    first.

    Returns
    -------
    False, on this rank alone and at once, for the global set and for one that the job does not
    know; else True.

    Raises
    ------
    HoraInternalError
        The ranks of the job called with different sets, or one has joined.
    """
    context = _context.queried()
    number = process_set.process_set_id
    if number is None or number == _GLOBAL:
        return False
    context.runtime.remove_process_set(number)
    process_set._registration = None
    return True


def process_set_included(process_set: ProcessSet = global_process_set) -> bool:
    """Return whether this process is in the set."""
    return process_set.included()


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Return the ranks of every set that the job knows, by number."""
    return _context.queried().runtime.process_sets()


def static_ranks(process_sets: Iterable[ProcessSet]) -> list[list[int]]:
    """Return the ranks of each of the sets that `init` was given."""
    ranks = []
    for process_set in process_sets:
        if not isinstance(process_set, ProcessSet):
            raise ValueError(
                f'process_sets must be "dynamic" or a list of ProcessSet; {process_set!r} is none.'
            )
        ranks.append(process_set.ranks)
    return ranks


def register_static(context: _context.Context, process_sets: Iterable[ProcessSet]) -> None:
    """Give sets the numbers that the job knows them by.

    Raises
    ------
    ValueError
        The job does not know one of them.
    """
    numbers = {tuple(ranks): number for number, ranks in context.runtime.process_sets().items()}
    for process_set in process_sets:
        number = numbers.get(tuple(process_set.ranks))
        if number is None:
            raise ValueError(
                f"Hora is initialized already, without {process_set}; call hvd.add_process_set."
            )
        process_set._registration = (context, number)


def registered_id(process_set: ProcessSet, operation: str) -> int:
    """Return the number of a set, for a call of `operation`; ValueError if it has none."""
    if process_set is global_process_set:
        return _GLOBAL
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set must be a ProcessSet, not {process_set!r}.")
    number = process_set.process_set_id
    if number is None:
        raise ValueError(
            f"{operation.capitalize()}: Process set provided does not exist, or has not been "
            f"registered. ({process_set})"
        )
    return number
