"""Running a function or a command as a job, where Horovod keeps it."""

from __future__ import annotations

from typing import Any, Callable

import hora
from hora._run import RankTracebackError
from horovod.runner.launch import failure
from horovod.runner.options import ROWS

__all__ = ["run"]


class _HorovodArgs:
    """The arguments of horovodrun, none of them given."""

    def __init__(self) -> None:
        for row in ROWS:
            setattr(self, row.dest, None)
        self.num_proc: int | None = 1
        self.command: list[str] | None = None
        self.run_func: Callable[..., Any] | None = None
        self.executable: str | None = None


def run(func: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """Run a function on all ranks of a job and return its results; see `hora.run`.

    Raises
    ------
    RuntimeError
        The function raised an exception on a rank, which is the cause of this one.
    """
    try:
        return hora.run(func, *args, **kwargs)
    except Exception as error:
        if not isinstance(error.__cause__, RankTracebackError):
            raise
        raise failure(str(error.__cause__.text).split(":")[0].split()[-1], 1) from error
