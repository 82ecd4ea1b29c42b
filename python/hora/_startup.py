"""init: a process becomes a rank of its job."""

from __future__ import annotations

from collections.abc import Iterable

from hora import _context
from hora.process_sets import ProcessSet, register_static, static_ranks


def init(
    comm: list[int] | None = None, process_sets: Iterable[ProcessSet] | str | None = None
) -> None:
    """Join the job; does nothing when already initialized.

    The place of this process (rank, size, where to meet the others) and all options come from the
    environment, which ``horarun`` sets. Without a launcher this is a job of one.

    Parameters
    ----------
    comm : list of int, optional
        Must name all ranks in order, if given.
    process_sets : list of ProcessSet or "dynamic", optional
        Sets that the job has from the start, the same on all ranks. "dynamic" means none; sets may
        be added later in any case.

    Raises
    ------
    ValueError
        An environment variable or an argument is wrong, process sets differ between ranks, or one
        of them is not possible or listed twice.
    HoraInternalError
        The job could not be formed, for example because some ranks did not come in time.
    """
    if process_sets is None:
        process_sets = []
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(
                f'process_sets must be "dynamic" or a list of ProcessSet, not {process_sets!r}.'
            )
        process_sets = []
    sets = list(process_sets)
    register_static(_context.enter(comm, static_ranks(sets)), sets)
