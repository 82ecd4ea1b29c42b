"""What a dying rank tells the others.

A rank that ends because of an exception takes the whole job with it. The other ranks then fail too,
and what their users want to know is why *this* one ended. So the last line of an uncaught
exception, or a non-zero ``sys.exit``, is noted here and handed to the others when the interpreter
exits.
"""

from __future__ import annotations

import sys
import traceback
from types import TracebackType
from typing import NoReturn

_LIMIT = 1000

_text = ""


def text() -> str:
    """Return why this process is about to end, or an empty string."""
    return _text


def note(words: str) -> None:
    """Remember `words`, cut to a length that is sure to fit into an error message."""
    global _text
    _text = words if len(words) <= _LIMIT else words[: _LIMIT - 3] + "..."


def install() -> None:
    """Listen to uncaught exceptions and ``sys.exit``, and pass them on. Idempotent."""
    previous_hook = sys.excepthook
    if getattr(previous_hook, "belongs_to_hora", False):
        return
    previous_exit = sys.exit

    def excepthook(
        kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        lines = traceback.format_exception_only(kind, value)
        note(lines[-1].strip() if lines else kind.__name__)
        previous_hook(kind, value, trace)

    def exit_(status: object = None, /) -> NoReturn:
        if status not in (None, 0):
            note(f"sys.exit({status!r})")
        previous_exit(status)  # type: ignore[arg-type]

    excepthook.belongs_to_hora = True  # type: ignore[attr-defined]
    exit_.__doc__ = previous_exit.__doc__
    sys.excepthook = excepthook
    sys.exit = exit_
