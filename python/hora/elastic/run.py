"""The loop around a training function.

    sync the state -> call the function -> return what it returns
                          |
                          | the hosts have changed (HostsUpdatedInterrupt, on all ranks):
                          +-> leave the job and join it anew, tell the state, sync, call it again
                          | a collective has failed (HoraInternalError):
                          +-> restore the last commit, and let the error out

The members of a job do not change yet: when one is lost, the others end with the error that names
it, their states at the last commit.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable

from hora import _context
from hora._startup import init
from hora.elastic.state import HostUpdateResult, State
from hora.exceptions import HoraInternalError, HostsUpdatedInterrupt

__all__ = ["HostUpdateResult", "notification_manager", "run", "run_fn"]

Train = Callable[..., Any]


class NotificationManager:
    """Passes the news of changed hosts on to the states that listen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[State] = []

    def init(self) -> None:
        """Do nothing: there is no service to start."""

    def register_listener(self, listener: State) -> None:
        """Tell `listener` of changed hosts from now on."""
        with self._lock:
            if not any(known is listener for known in self._listeners):
                self._listeners.append(listener)

    def remove_listener(self, listener: State) -> None:
        """Tell `listener` no more."""
        with self._lock:
            self._listeners = [known for known in self._listeners if known is not listener]

    def handle_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Tell all listeners that the hosts have changed. From any thread."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.on_hosts_updated(timestamp, update_res)


notification_manager = NotificationManager()


def run(func: Train) -> Train:
    """Wrap a training function ``func(state, ...)`` so that it starts from equal states.

    The wrapped function syncs the state first. When the hosts of the job have changed, it joins the
    job anew and calls `func` again. When a collective fails, it restores the last commit and raises
    the error: the members of a job do not change yet.

    Raises
    ------
    HoraInternalError
        A collective has failed, for example because a rank was lost.
    """
    return run_fn(func, _rejoin)


def _rejoin() -> None:
    _context.shutdown()
    init()


def run_fn(func: Train, reset: Callable[[], Any]) -> Train:
    """Return the loop around `func`, with `reset` to join the job anew."""

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        notification_manager.init()
        notification_manager.register_listener(state)
        skip_sync = False
        try:
            while True:
                try:
                    if not skip_sync:
                        state.sync()
                    return func(state, *args, **kwargs)
                except HostsUpdatedInterrupt as interrupt:
                    skip_sync = interrupt.skip_sync
                except HoraInternalError:
                    state.restore()
                    raise
                reset()
                state.on_reset()
        finally:
            notification_manager.remove_listener(state)

    return wrapper
