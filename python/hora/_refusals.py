"""A call that fails on one rank before it begins is told to the ranks that wait for it.

A wrong argument raises an exception where it is. The other ranks have submitted their tensors in
good faith and would wait for ever; so the failed call is said in place of the tensor, and their
calls fail with its text. What the core itself refuses it has told already.

Costs nothing until a call fails. The barrier and calls whose name is wrong cannot be told.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any, Callable, TypeVar, cast

from hora import _context
from hora.process_sets import global_process_set, registered_id

Function = TypeVar("Function", bound=Callable[..., Any])


def told(kind: int) -> Callable[[Function], Function]:
    """Decorate a collective of this kind: if it raises, the other ranks learn of it.

    The function has parameters `name`, `process_set`, and `tensors` if it is a grouped one.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                if not getattr(error, "told", False):
                    with contextlib.suppress(Exception):  # The caller's own error counts.
                        _tell(kind, function, args, kwargs, error)
                    _context.mark_told(error)
                raise

        return cast(Function, call)

    return decorate


def _tell(
    kind: int,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    error: Exception,
) -> None:
    given = inspect.signature(function).bind_partial(*args, **kwargs).arguments
    number = registered_id(given.get("process_set", global_process_set), "")
    members = len(given["tensors"]) if "tensors" in given else 0
    if members == 0 and function.__name__.startswith("grouped_"):
        return  # Of no tensors, or of nobody knows how many.
    why = f"{type(error).__name__}: {error}"
    _context.current().runtime.refuse(kind, given.get("name"), why, number, members)
