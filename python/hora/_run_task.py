"""The program of a rank of ``hora.run``: reads the task, calls the function, writes the result.

A result file has two pickles: (kind, rank, size, traceback text), and the value or the exception.
It is complete or not there: it gets its name when it is. An exception goes on after it was written,
so that this process ends as a failed rank does, with its traceback on stderr and last words for
the other ranks.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

import hora
from hora import _calls
from hora._run import pickler


def _write(folder: Path, kind: str, text: str, payload: Any) -> None:
    rank = int(os.environ["HORA_RANK"])
    partial = folder / f"partial.{rank}"
    with partial.open("wb") as stream:
        pickle.dump((kind, rank, int(os.environ["HORA_SIZE"]), text), stream)
        pickler().dump(payload, stream, protocol=pickle.HIGHEST_PROTOCOL)
    partial.rename(folder / f"result.{rank}")


def _write_error(folder: Path, error: BaseException) -> None:
    # Without the frames of this file.
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, trace))
    if isinstance(error, SystemExit):
        error = RuntimeError(f"the function called sys.exit({error.code!r})")
    try:
        _write(folder, "error", text, error)
    except Exception:
        _write(folder, "error", text, RuntimeError(text.strip().splitlines()[-1]))


def _await_others() -> None:
    """Keep this rank in the job until all have come so far: some may still be in `init`."""
    if hora.is_initialized():
        with contextlib.suppress(hora.HoraInternalError):  # A rank that failed tells it itself.
            _calls.barrier()


def main() -> None:
    """Run the task in the folder that the command line names."""
    folder = Path(sys.argv[1])
    try:
        task = pickle.loads(folder.joinpath("task").read_bytes())
    except FileNotFoundError:
        sys.exit(
            f"hora.run: {folder} of the calling process is not on this host. Set TMPDIR to a "
            "folder that all hosts share, or start a script with horarun."
        )
    sys.path[:] = task["path"]
    try:
        func, args, kwargs = pickle.loads(task["call"])
        _write(folder, "value", "", func(*args, **kwargs))
        _await_others()
    except BaseException as error:
        _write_error(folder, error)
        raise


if __name__ == "__main__":
    main()
