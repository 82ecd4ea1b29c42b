"""Broadcasting many tensors: the start of a training run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional, Union

from hora import _calls, _context, _core
from hora._refusals import telling

# broadcast_async_(tensor, root_rank, name) -> handle
Start = Callable[[Any, int, Optional[str]], int]
Params = Union[Mapping[str, Any], Iterable[Any]]


def broadcast_all(params: Params, root_rank: int, start: Start) -> None:
    """Broadcast every tensor of `params` in place, all at once, so that they are fused.

    Parameters
    ----------
    params
        A dict (its tensors are named by key and taken in the order of the keys) or an iterable of
        tensors or (name, tensor) tuples. None in the place of a tensor is skipped.
    root_rank
        Whose values all get.
    start
        Starts one in-place broadcast.

    Raises
    ------
    ValueError
        `params` is neither, or holds what is not a tensor.
    """
    handles: list[int] = []
    failure: Exception | None = None
    for name, tensor in _named(params):
        if tensor is None:
            continue
        try:
            with telling(_core.BROADCAST, name):
                handles.append(_started(start, tensor, root_rank, name))
        except Exception as error:  # The others wait for what comes after it, too.
            failure = failure or error
    try:
        _calls.synchronize_all(handles)
    finally:
        if failure is not None:
            raise failure


def _named(params: Params) -> Iterable[tuple[str | None, Any]]:
    if isinstance(params, Mapping):
        return sorted(params.items())
    if isinstance(params, (str, bytes)) or hasattr(params, "dtype"):
        raise ValueError(f"invalid params of type: {type(params)}")
    try:
        items = list(params)
    except TypeError:
        raise ValueError(f"invalid params of type: {type(params)}") from None
    return [item if isinstance(item, tuple) else (None, item) for item in items]


def _started(start: Start, tensor: Any, root_rank: int, name: str | None) -> int:
    try:
        return start(tensor, root_rank, name)
    except ValueError as error:
        if name is None:
            raise
        named = ValueError(f"'{name}': {error}")
        if getattr(error, "told", False):
            _context.mark_told(named)
        raise named from error
