"""The program of a rank of ``hora.run``: gets the task, calls the function, gives the result.

Task and results are in a folder of the caller's, or pass through its office where the folder is
not to be seen. A result has two pickles: (kind, rank, size, traceback text), and the value or the
exception. As a file it is complete or not there: it gets its name when it is. An exception goes on
after it was given, so that this process ends as a failed rank does, with its traceback on stderr
and last words for the other ranks.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

import hora
from hora import _calls
from hora._run import pickler
from hora._run_exchange import Visitor


def _give(office: Path | Visitor, kind: str, text: str, payload: Any) -> None:
    rank = int(os.environ["HORA_RANK"])
    stream = io.BytesIO()
    pickle.dump((kind, rank, int(os.environ["HORA_SIZE"]), text), stream)
    pickler().dump(payload, stream, protocol=pickle.HIGHEST_PROTOCOL)
    if isinstance(office, Visitor):
        office.give(rank, stream.getvalue())
        return
    partial = office / f"partial.{rank}"
    partial.write_bytes(stream.getbuffer())
    partial.rename(office / f"result.{rank}")


def _give_error(office: Path | Visitor, error: BaseException) -> None:
    # Without the frames of this file.
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, trace))
    if isinstance(error, SystemExit):
        error = RuntimeError(f"the function called sys.exit({error.code!r})")
    try:
        _give(office, "error", text, error)
    except Exception:
        _give(office, "error", text, RuntimeError(text.strip().splitlines()[-1]))


def _await_others() -> None:
    """Keep this rank in the job until all have come so far: some may still be in `init`."""
    if hora.is_initialized():
        with contextlib.suppress(hora.HoraInternalError):  # A rank that failed tells it itself.
            _calls.barrier()


def main() -> None:
    """Run the task in the folder that the command line names."""
    folder = Path(sys.argv[1])
    here = folder.joinpath("task").is_file()
    if not here and "HORA_RUN_KEY" not in os.environ:
        sys.exit(f"hora.run: {folder} of the calling process is gone.")
    office = folder if here else Visitor()
    os.environ.pop("HORA_RUN_KEY", None)
    given = office.task() if isinstance(office, Visitor) else folder.joinpath("task").read_bytes()
    task = pickle.loads(given)
    sys.path[:] = task["path"]
    try:
        func, args, kwargs = pickle.loads(task["call"])
        _give(office, "value", "", func(*args, **kwargs))
        _await_others()
    except BaseException as error:
        _give_error(office, error)
        raise


if __name__ == "__main__":
    main()
