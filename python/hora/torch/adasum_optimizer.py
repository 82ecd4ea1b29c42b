"""The distributed optimizer for Adasum: it reduces what the step has changed, not the gradients.

Each rank makes the optimizer's step with its own gradients. The differences that the step has made
to the parameters are reduced with Adasum, and all ranks go from where they stood by the result. So
Adasum sees the steps with momentum and learning rates in them, as its authors recommend (Maleki et
al., "Scaling Distributed Training with Adaptive Summation", 2020, section 3.2).

The parameters must be equal on all ranks before the first step; then they are after every step.
Momenta and the like are each rank's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable

import torch

from hora import _calls, _core
from hora._refusals import telling
from hora.torch.gradient_flight import in_memory_order
from hora.torch.ops import allreduce_async_
from hora.torch.optimizer_arguments import check_passes
from hora.torch.optimizer_face import Face, Making, leads_to_step


@dataclass
class _State:
    """What a distributed optimizer for Adasum remembers."""

    making: Making

    def lend(self, parameter: torch.Tensor, to: object) -> None:
        """Do nothing: no gradient is reduced here, so none is in another optimizer's way."""


class AdasumFace(Face):
    """What the distributed optimizer for Adasum adds to the class of the one it is made from."""

    _hora: _State

    def _make(self, making: Making) -> None:
        self._hora = _State(making)
        self._named()

    @property
    def backward_passes_per_step(self) -> int:
        """How many backward passes a step is said to have; any number may come before it."""
        return self._hora.making.passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Announce a number of passes; gradients are added up until the step in any case."""
        check_passes(passes)
        self._hora.making.passes = passes

    def synchronize(self) -> None:
        """Do nothing: before the step there is nothing to wait for."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raise: the step and the reduction can't be separated."""
        raise AssertionError(
            "Skipping synchronization is not supported when using Adasum optimizer."
        )
        yield

    @leads_to_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make the optimizer's step, and reduce what it has changed.

        Gradients are this rank's own; clipping them before is clipping each rank's.
        """
        before = {
            parameter: parameter.detach().clone()
            for parameter in self._named()
            if parameter.requires_grad
        }
        result = super().step(closure)
        with torch.no_grad():
            self._reduce_changes(before)
        return result

    def _named(self) -> dict[torch.Tensor, str]:
        """Return all parameters and their names."""
        return {
            parameter: self._hora.making.name_of(parameter, (i, j), self._hora)
            for i, group in enumerate(self.param_groups)
            for j, parameter in enumerate(group["params"])
        }

    def _reduce_changes(self, before: dict[torch.Tensor, torch.Tensor]) -> None:
        """Put into each parameter what it was before, and the Adasum of all ranks' changes."""
        started: list[tuple[torch.Tensor, int, torch.Tensor, Any]] = []
        failure: Exception | None = None
        for parameter, old in before.items():
            try:
                started.append((parameter, *self._start(parameter, old)))
            except Exception as error:  # The others wait for what comes after it, too.
                failure = failure or error
        _synchronize(started, before, failure)
        for parameter, _, compressed, context in started:
            change = self._hora.making.compression.decompress(compressed, context)
            parameter.copy_(before[parameter].add_(change))

    def _start(self, parameter: torch.Tensor, old: torch.Tensor) -> tuple[int, torch.Tensor, Any]:
        making = self._hora.making
        name = making.claimed[parameter]
        with telling(_core.ALLREDUCE, name):
            compressed, context = making.compression.compress(parameter - old)
            handle = allreduce_async_(in_memory_order(compressed), name=name, op=making.op)
            return handle, compressed, context


def _synchronize(
    started: list[tuple[torch.Tensor, int, torch.Tensor, Any]],
    before: dict[torch.Tensor, torch.Tensor],
    failure: Exception | None,
) -> None:
    """Wait for all; if one has failed, or `failure`, take the step back on this rank, and raise."""
    try:
        _calls.synchronize_all(handle for _, handle, _, _ in started)
        if failure is not None:
            raise failure
    except Exception:
        for parameter, old in before.items():
            parameter.copy_(old)
        raise
