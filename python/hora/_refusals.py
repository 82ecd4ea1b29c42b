"""A call that fails on one rank before it begins is told to the ranks that wait for it.

A wrong argument raises an exception where it is. The other ranks have submitted their tensors in
good faith and would wait for ever; so the failed call is said in place of the tensor, and their
calls fail with its text. What the core itself refuses it has told already. The same holds for what
this rank does on the way to a collective that the others come to: a compressor of the user's, the
check of a layer's input, the hook of a gradient.

    @told(kind)                     the function is the collective
    with telling(kind, name, ...):  what is in it leads to one

Costs nothing until a call fails. Calls whose name is wrong cannot be told.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any, Callable, TypeVar, cast

from hora import _context
from hora.process_sets import ProcessSet, get_process_set_ids_and_ranks, global_process_set

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
                _tell_of(function, args, kwargs, kind, error)
                raise

        return cast(Function, call)

    return decorate


@contextlib.contextmanager
def telling(
    kind: int, name: str | None, process_set: Any = global_process_set, members: int = 0
) -> Iterator[None]:
    """If the body raises, tell the ranks of the set, in place of the collective of this name.

    `members` is the number of tensors of a group; 0: it is none.
    """
    try:
        yield
    except Exception as error:
        _tell(error, kind, name, process_set, members)
        raise


def _tell_of(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    kind: int,
    error: Exception,
) -> None:
    """Tell of a call of a function, as far as its arguments say which call it is."""
    try:
        given = inspect.signature(function).bind_partial(*args, **kwargs).arguments
        members = len(given["tensors"]) if "tensors" in given else 0
    except TypeError:
        return  # Arguments that the function does not have, or a group of nobody knows how many.
    if members > 0 or not function.__name__.startswith("grouped_"):
        process_set = given.get("process_set", global_process_set)
        _tell(error, kind, given.get("name"), process_set, members)


def _tell(error: Exception, kind: int, name: Any, process_set: Any, members: int) -> None:
    if getattr(error, "told", False):
        return
    why = f"{type(error).__name__}: {error}"
    with contextlib.suppress(Exception):  # The caller's own error counts.
        _context.current().runtime.refuse(kind, name, why, _number(process_set), members)
    _context.mark_told(error)


def _number(process_set: Any) -> int:
    """Return the number of the set whose ranks wait, also if this rank has named it wrongly."""
    ranks = process_set
    if isinstance(process_set, ProcessSet):
        if process_set.process_set_id is not None:
            return process_set.process_set_id
        ranks = process_set.ranks
    with contextlib.suppress(TypeError):
        for number, known in get_process_set_ids_and_ranks().items():
            if known == sorted(ranks):
                return number
    if isinstance(process_set, ProcessSet):
        raise ValueError("nobody can wait in a set that the job does not know")
    return 0
