"""What training remembers: values that can be saved, restored, and made equal on all ranks.

    commit   = save, then look whether the job's hosts have changed
    restore  = back to the last save
    sync     = all ranks take the current values of rank 0, and save them

A state is told of changed hosts by `on_hosts_updated`, from any thread; the training thread learns
of them at its next commit, on all ranks at once: rank 0's view decides.
"""

from __future__ import annotations

import copy
import enum
import queue
from collections.abc import Iterable
from typing import Any, Callable

from hora.exceptions import HostsUpdatedInterrupt

__all__ = ["HostUpdateResult", "ObjectState", "State"]

Broadcast = Callable[[Any], Any]
GetRank = Callable[[], int]


class HostUpdateResult(enum.IntFlag):
    """How the hosts of a job have changed."""

    no_update = 0
    removed = 1
    added = 2
    mixed = 3


class State:
    """The interface of a state.

    Parameters
    ----------
    bcast_object
        Returns rank 0's object on all ranks.
    get_rank
        Returns this rank.
    """

    def __init__(self, bcast_object: Broadcast, get_rank: GetRank) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Call these after each reset: to adapt learning rates to a new size, for example."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Act on a reset of the job: forget messages, `reset`, and call the callbacks."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Note that the hosts have changed. From any thread."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Save, and raise HostsUpdatedInterrupt if the hosts have changed; on all ranks."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedInterrupt on all ranks if rank 0 knows that the hosts have changed."""
        before = latest = self._last_updated_timestamp
        result = 0
        while not self._host_messages.empty():
            timestamp, update = self._host_messages.get()
            if timestamp > latest:
                latest = timestamp
                result |= update
        before, self._last_updated_timestamp, result = self._bcast_object((before, latest, result))
        if self._last_updated_timestamp > before:
            raise HostsUpdatedInterrupt(result == HostUpdateResult.removed)

    def save(self) -> None:
        """Remember the current values."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the values of the last `save`."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take the values of rank 0."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt to new members of the job; nothing needs to be done for most states."""


class ObjectState(State):
    """A state of plain values, which are its attributes.

    Lists, dicts and sets, tensors and arrays are copied when they are saved. Other objects are
    saved as references: `restore` brings back the same object.
    """

    def __init__(self, bcast_object: Broadcast, get_rank: GetRank, **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state: dict[str, Any] = {}
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._saved_state = _copied(kwargs)

    def save(self) -> None:
        """Remember the current values."""
        self._saved_state = _copied({name: getattr(self, name) for name in self._saved_state})

    def restore(self) -> None:
        """Go back to the values of the last `save`."""
        for name, value in _copied(self._saved_state).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """Take the current values of rank 0, and save them."""
        if self._saved_state:
            current = {name: getattr(self, name) for name in self._saved_state}
            for name, value in self._bcast_object(current).items():
                setattr(self, name, value)
            self.save()


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) for name, value in values.items()}


def _copy(value: Any) -> Any:
    """Return a copy of what is changed in place; a reference to anything else."""
    if isinstance(value, (list, dict, set, bytearray)) or hasattr(value, "__array_interface__"):
        return copy.deepcopy(value)
    if hasattr(value, "detach") and hasattr(value, "clone"):
        return value.detach().clone()
    return value
