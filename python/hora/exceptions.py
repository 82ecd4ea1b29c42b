"""Exceptions of Hora.

A mistake that only this rank can see (a wrong argument, a name that is still in flight) is a
``ValueError``. Everything that concerns the job - ranks that disagree, a rank that died, a
shutdown, a failing network - is a :class:`HoraInternalError`.
"""

from __future__ import annotations

__all__ = [
    "HoraInternalError",
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
]


class HoraInternalError(RuntimeError):
    """A collective failed for a reason that concerns the job.

    Attributes
    ----------
    kind : str
        What went wrong: ``mismatch``, ``shutdown``, ``peer_lost``, ``timeout``, ``protocol``,
        ``resource``, ``unsupported``, ``not_initialized`` or ``system``.
    peer : int or None
        The rank concerned, where there is one.
    """

    kind: str = "system"
    peer: int | None = None


HorovodInternalError = HoraInternalError


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818
    """The hosts of the job have changed; raised on all ranks by a state's `commit`.

    Attributes
    ----------
    skip_sync : bool
        Whether hosts were only removed, so that all that remain have the same state.
    """

    def __init__(self, skip_sync: bool) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework is installed in another version than the one that an extension was built for.

    Hora is built for no framework and never raises it; scripts name it in their handlers.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(f"{name} {installed_version} is installed, {version} was expected")
        self.name = name
        self.version = version
        self.installed_version = installed_version
