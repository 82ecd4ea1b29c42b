"""A state of models, optimizers and samplers beside plain values.

Values of certain types have handlers, which know how to save, restore and sync them: by their
state_dict. The table of types can be extended (`set_handler_registry`).
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from hora import _context, _objects
from hora.elastic import ObjectState
from hora.torch.elastic.sampler import ElasticSampler
from hora.torch.functions import broadcast_optimizer_state, broadcast_parameters

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class StateHandler:
    """Saves, restores and syncs a value that has a state_dict."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._saved: Any = None
        self.save()

    def save(self) -> None:
        """Remember the current state."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Go back to the state of the last `save`."""
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Take the current state of rank 0, and save it."""
        self.value.load_state_dict(_objects.broadcast_object(self.value.state_dict(), 0))
        self.save()

    def set_value(self, value: Any) -> None:
        """Handle another value instead, and save it."""
        self.value = value
        self.save()


class ModelStateHandler(StateHandler):
    """Handles a module."""

    def sync(self) -> None:
        """Take the parameters and buffers of rank 0, and save them."""
        state = self.value.state_dict()
        tensors = {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
        broadcast_parameters(tensors, root_rank=0)
        if len(tensors) < len(state):  # Modules may have extra state of any kind.
            others = {key: value for key, value in state.items() if key not in tensors}
            state.update(_objects.broadcast_object(others, 0))
            self.value.load_state_dict(state)
        self.save()


class OptimizerStateHandler(StateHandler):
    """Handles an optimizer."""

    def sync(self) -> None:
        """Take the state and the options of rank 0, and save them."""
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(StateHandler):
    """Handles an ElasticSampler: how far rank 0 is decides how far all are."""


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Return the table of types and their handlers; the first that fits is taken."""
    return _registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Replace the table of types and their handlers."""
    global _registry
    _registry = registry


def _handler_of(value: Any) -> StateHandler | None:
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return None


class TorchState(ObjectState):
    """A state of models, optimizers and samplers, and of plain values; all are its attributes.

    Parameters
    ----------
    model, optimizer
        The model and the optimizer, if there is one of each. Others may have any name.
    **kwargs
        Further values.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        handlers: dict[str, StateHandler] = {}
        plain: dict[str, Any] = {}
        for name, value in {"model": model, "optimizer": optimizer, **kwargs}.items():
            handler = _handler_of(value)
            if handler is None:
                plain[name] = value
            else:
                handlers[name] = handler
        self._handlers = handlers
        super().__init__(_objects.broadcast_object, lambda: _context.queried().rank, **plain)
        for name, handler in handlers.items():
            super().__setattr__(name, handler.value)

    def save(self) -> None:
        """Remember the current values."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Go back to the values of the last `save`."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Take the current values of rank 0, and save them."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        """Deal out to the new members what the samplers have left."""
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        handler = self.__dict__.get("_handlers", {}).get(name)
        if handler is not None:
            handler.set_value(value)
        super().__setattr__(name, value)
