"""The life of a rank in this process: init, shutdown, fork, exit.

The API is a set of functions, so the package must remember which job it is in: a :class:`Context`,
made by :func:`hora.init` and dropped by :func:`shutdown`. It holds the runtime, this rank's
numbers and the table of asynchronous handles. Nothing else in the package has state.

Rules
-----
* A handle is a positive number that is never used again in this process, also not after a new
  `init`.
* The table keeps the tensors of a handle alive until `synchronize`, because the core reads and
  writes their memory.
* A forked child may ask for its parent's rank and size. Anything else raises, and its exit touches
  nothing.
* At exit the job is left in order, with last words if there are any (:mod:`hora._last_words`).
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
from collections.abc import Iterator
from typing import Any, Callable

from hora import _core, _last_words
from hora.exceptions import HoraInternalError

NOT_INITIALIZED = "Hora has not been initialized; use hvd.init()."

# Turns a completed handle into what synchronize returns; holds the tensors meanwhile.
Finish = Callable[[_core.Handle], Any]
# The same for the handles of a group.
FinishGroup = Callable[[list[_core.Handle]], Any]

_handle_numbers: Iterator[int] = itertools.count(1)


class Context:
    """This process's membership in a job, between `init` and `shutdown`."""

    def __init__(self, runtime: _core.Runtime) -> None:
        self.runtime = runtime
        self.pid = os.getpid()
        # Whether the job may get more ranks than it has now.
        self.elastic = "1" in (os.environ.get("HORA_ELASTIC"), os.environ.get("HOROVOD_ELASTIC"))
        # Of distributed optimizers: hora.torch.parameter_names.
        self.parameter_names: dict[str, Any] = {}
        self._pending: dict[int, tuple[_core.Handle, Finish]] = {}
        self._groups: dict[int, tuple[list[_core.Handle], FinishGroup]] = {}

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self.runtime.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.runtime.size

    def contributions(self, number: int) -> list[tuple[int | None, tuple[int, ...]]]:
        """Wait for a collective, and return whose contributions are in which elements."""
        entry = self._pending.get(number)
        if entry is None:
            raise ValueError(f"Handle {number} was not created or has been cleared.")
        self.runtime.wait(entry[0])
        return entry[0].contributions

    def keep(self, handle: _core.Handle, finish: Finish) -> int:
        """Enter a started collective into the table and return its number."""
        number = next(_handle_numbers)
        self._pending[number] = (handle, finish)
        return number

    def keep_group(self, handles: list[_core.Handle], finish: FinishGroup) -> int:
        """Enter a started group into the table and return its number."""
        number = next(_handle_numbers)
        self._groups[number] = (handles, finish)
        return number

    def poll(self, number: int) -> bool:
        """Return whether the collective has completed, successfully or not."""
        group = self._groups.get(number)
        if group is not None:
            return all(self.runtime.poll(handle) for handle in group[0])
        entry = self._pending.get(number)
        if entry is None:
            raise ValueError(f"Handle {number} was not created or has been cleared.")
        return self.runtime.poll(entry[0])

    def synchronize(self, number: int) -> Any:
        """Wait for a collective and return its result; None for an unknown number."""
        entry = self._pending.get(number)
        if entry is None:
            return self._synchronize_group(number)
        handle, finish = entry
        try:
            self.runtime.wait(handle)
        finally:
            # An interrupted wait leaves the collective running: the tensors must stay.
            if handle.done():
                self._pending.pop(number, None)
        return afterwards(finish, handle)

    def _synchronize_group(self, number: int) -> Any:
        """Wait for all members, then raise what the first of them that failed failed with."""
        group = self._groups.get(number)
        if group is None:
            return None
        handles, finish = group
        failure: Exception | None = None
        for handle in handles:
            try:
                self.runtime.wait(handle)
            except (HoraInternalError, ValueError) as error:
                if not handle.done():  # Not its outcome: a signal ended the wait.
                    raise
                failure = failure or error
        self._groups.pop(number, None)
        if failure is not None:
            raise failure
        return finish(handles)

    def drop_handles(self) -> None:
        """Forget all handles; the runtime has been shut down and touches no tensor any more."""
        self._pending.clear()
        self._groups.clear()


def mark_told(error: Exception) -> None:
    """Note that the other ranks know of an error, or need not: see `hora._refusals`."""
    with contextlib.suppress(AttributeError):  # A class of the user's may have no room for it.
        error.told = True  # type: ignore[attr-defined]


def afterwards(function: Callable[..., Any], *args: Any) -> Any:
    """Call what comes after a collective: if it raises, the other ranks have their results."""
    try:
        return function(*args)
    except Exception as error:
        mark_told(error)
        raise


_lock = threading.Lock()
_current: Context | None = None


def current() -> Context:
    """Return the context, for a collective; HoraInternalError without one."""
    if _current is None:
        error = HoraInternalError(NOT_INITIALIZED)
        error.kind = "not_initialized"
        raise error
    return _current


def queried() -> Context:
    """Return the context, for a query such as `rank`; ValueError without one."""
    if _current is None:
        raise ValueError(NOT_INITIALIZED)
    return _current


def is_initialized() -> bool:
    """Return whether `init` has been called, and `shutdown` has not."""
    return _current is not None


def is_current(context: Context) -> bool:
    """Return whether this is the context of now: `shutdown` has not been called since."""
    return context is _current


def enter(comm: list[int] | None, process_sets: list[list[int]]) -> Context:
    """Join the job, for :func:`hora.init`, and return the context; does nothing in a job."""
    global _current
    if comm is not None and not isinstance(comm, list):
        raise ValueError("comm must be None or a list of ranks: Hora does not use MPI.")
    with _lock:
        if _current is not None:
            if _current.pid != os.getpid():
                _current.runtime.require_own_process()
            return _current
        context = Context(_core.Runtime.start(process_sets))
        if comm is not None and comm != list(range(context.size)):
            context.runtime.shutdown("")
            raise ValueError(f"comm must name all {context.size} ranks in order, not {comm}.")
        _last_words.install()
        # Last registered runs first: before the exit handlers of what was imported until now.
        atexit.unregister(_at_exit)
        atexit.register(_at_exit)
        _current = context
        return context


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Write to a file, as a Chrome trace, what this job does from now on.

    When this returns, the file has begun; one that was being written to is complete.

    Parameters
    ----------
    file_path
        The file; every ``%r`` in it is replaced by the rank. Without one rank 0 alone writes.
    mark_cycles
        Whether each round of negotiation leaves a mark, ``CYCLE_START``.

    Raises
    ------
    ValueError
        Before `init`, or there is something else than a file at the path.
    HoraInternalError
        The file cannot be written.
    """
    context = queried()
    with _lock:
        context.runtime.start_timeline(os.fspath(file_path), mark_cycles)


def stop_timeline() -> None:
    """End the timeline, if there is one: its file is complete then. ValueError before `init`."""
    context = queried()
    with _lock:
        context.runtime.stop_timeline()


def shutdown() -> None:
    """Leave the job in order. Idempotent; does nothing in a forked child.

    Collectives that are still in flight here fail, and so do later ones of the other ranks. `init`
    may be called again.
    """
    _leave("")


def _leave(last_words: str) -> None:
    global _current
    with _lock:
        context = _current
        if context is None or context.pid != os.getpid():
            return
        _current = None
    context.runtime.shutdown(last_words)
    context.drop_handles()


def _at_exit() -> None:
    _leave(_last_words.text())


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    if _current is not None:
        _current.runtime.on_fork_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


def rank() -> int:
    """Return this process's number in the job: 0 .. size-1.

    Under ``horarun --min-np`` it may change when ranks are lost; see `size`.
    """
    return queried().rank


def size() -> int:
    """Return the number of ranks.

    Under ``horarun --min-np`` it shrinks when ranks are lost, but only in a call that waits, such
    as `allreduce`, `synchronize` or `barrier`: between two of them it stays what it is.
    """
    return queried().size


def local_rank() -> int:
    """Return this process's number among the ranks of its host."""
    return queried().runtime.local_rank


def local_size() -> int:
    """Return the number of ranks on this host."""
    return queried().runtime.local_size


def cross_rank() -> int:
    """Return this host's index among the hosts that have a rank with this local rank."""
    return queried().runtime.cross_rank


def cross_size() -> int:
    """Return the number of hosts that have a rank with this local rank."""
    return queried().runtime.cross_size


def is_homogeneous() -> bool:
    """Return whether every host has the same number of ranks."""
    return queried().runtime.is_homogeneous
