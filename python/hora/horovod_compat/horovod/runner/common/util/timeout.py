"""A limit that several waits share, where Horovod keeps it."""

from __future__ import annotations

import time

__all__ = ["Timeout", "TimeoutException"]


class TimeoutException(Exception):  # noqa: N818
    """The limit has passed."""


class Timeout:
    """So many seconds from now.

    Parameters
    ----------
    timeout
        The seconds.
    message
        What is said when they are over; ``{timeout}`` in it becomes their number, ``{activity}``
        what was waited for.
    """

    def __init__(self, timeout: float, message: str) -> None:
        self._seconds = timeout
        self._end = time.monotonic() + timeout
        self._message = message

    def remaining(self) -> float:
        """Return the seconds that are left; 0 if none are."""
        return max(0.0, self._end - time.monotonic())

    def timed_out(self) -> bool:
        """Return whether none are left."""
        return self.remaining() == 0

    def check_time_out_for(self, activity: str) -> None:
        """Raise TimeoutException if none are left for an activity."""
        if self.timed_out():
            raise TimeoutException(self._message.format(activity=activity, timeout=self._seconds))
