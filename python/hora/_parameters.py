"""Broadcasting many tensors: the start of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, Optional

from hora import _calls

# broadcast_async_(tensor, root_rank, name) -> handle
Start = Callable[[Any, int, Optional[str]], int]


def broadcast_all(params: Mapping[str, Any] | list[Any], root_rank: int, start: Start) -> None:
    """Broadcast every tensor of `params` in place, all at once, so that they are fused.

    Parameters
    ----------
    params
        A dict (its tensors are named by key and taken in the order of the keys) or a list of
        tensors or (name, tensor) tuples. None in the place of a tensor is skipped.
    root_rank
        Whose values all get.
    start
        Starts one in-place broadcast.

    Raises
    ------
    ValueError
        `params` is neither.
    """
    if isinstance(params, Mapping):
        items = sorted(params.items())
    elif isinstance(params, list):
        items = [item if isinstance(item, tuple) else (None, item) for item in params]
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    handles: list[int] = []
    try:
        for name, tensor in items:
            if tensor is not None:
                handles.append(start(tensor, root_rank, name))
    finally:
        _calls.synchronize_all(handles)
