"""Being told when a gradient has been accumulated.

Since torch 2.1 a tensor has a hook for that. Before, the hook goes on the node of the autograd
graph that accumulates into the parameter. The graph refers to that node weakly, so the hook must
hold it.
"""

from __future__ import annotations

from typing import Any, Callable

import torch


def hook_gradient(parameter: torch.Tensor, call: Callable[[torch.Tensor], None]) -> Any:
    """Have `call(parameter)` called after each accumulation; returns what has `remove()`."""
    register: Any = getattr(parameter, "register_post_accumulate_grad_hook", None)
    if register is not None:
        return register(call)
    with torch.enable_grad():
        view: Any = parameter.expand_as(parameter)
    accumulate = view.grad_fn.next_functions[0][0]
    return _NodeHook(accumulate, accumulate.register_hook(lambda *_: call(parameter)))


class _NodeHook:
    """A hook on a node, and the node."""

    def __init__(self, node: Any, handle: Any) -> None:
        self._node = node
        self._handle = handle

    def remove(self) -> None:
        """Remove the hook."""
        self._handle.remove()
