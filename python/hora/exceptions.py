"""Exceptions of Hora.

A mistake that only this rank can see (a wrong argument, a name that is still in flight) is a
``ValueError``. Everything that concerns the job - ranks that disagree, a rank that died, a
shutdown, a failing network - is a :class:`HoraInternalError`.
"""

from __future__ import annotations

__all__ = ["HoraInternalError", "HorovodInternalError"]


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
