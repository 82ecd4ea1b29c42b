"""Process sets: so far the one of all ranks.

Every collective takes a ``process_set``, as in Horovod, so that scripts which pass the global set
run unchanged.
"""

from __future__ import annotations

from hora import _context

__all__ = ["ProcessSet", "global_process_set"]


class ProcessSet:
    """The set of all ranks of the job; use :data:`global_process_set`."""

    process_set_id = 0

    @property
    def ranks(self) -> list[int]:
        """All ranks of the job, in order."""
        return list(range(_context.queried().size))

    def size(self) -> int:
        """Return the number of members."""
        return _context.queried().size

    def rank(self) -> int:
        """Return this process's rank in the set."""
        return _context.queried().rank

    def included(self) -> bool:
        """Return whether this process is a member."""
        return True

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


global_process_set = ProcessSet()


def require_global(process_set: ProcessSet) -> None:
    """Raise ValueError unless `process_set` is the global one."""
    if process_set is not global_process_set:
        raise ValueError(
            f"process_set must be hvd.global_process_set, not {process_set!r}: this version of "
            "Hora runs every collective over all ranks."
        )
