"""The reduction of gradients, round by round.

A *round* is what lies between two steps: every parameter is reduced exactly once in it, on every
rank, under its name. The hook of a parameter tells of its gradient as soon as the backward pass has
made it, and the reduction starts while the pass goes on. A parameter that this rank did not use is
reduced as zeros when the round ends, so ranks with unused parameters take part.

A round ends in one of two ways: it is *finished*, its results go into the gradients; or it is
*abandoned*, its results are thrown away, when the gradients that it reduces are dropped: zero_grad
without a step, as after a step that an AMP GradScaler skips. Ranks may differ in that; they reduce
the same tensors either way.

Several backward passes may be added up before the reduction; then only the last of them starts it.

A reduction that fails before it begins - a compressor of the user's has raised, a gradient is part
of a graph - is told to the other ranks; here the error counts as the result of that parameter,
which is not reduced any more in this round.

Hooks come on the threads on which backward passes run, so a lock guards all of it. It is held while
a round ends: nobody else could do anything useful with its gradients meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any

import torch

from hora import _context
from hora.exceptions import HoraInternalError
from hora.torch.gradient_flight import Flight, Manner, launch, telling_of, zeros_for

_TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)


class GradientReducer:
    """Reduces the gradients of a set of parameters over the ranks of a process set."""

    def __init__(self, manner: Manner, passes: int, groups: list[list[torch.Tensor]]) -> None:
        self.manner = manner
        self.passes = passes
        self.names: dict[torch.Tensor, str] = {}
        # Of all parameters that take part, the passes still to come.
        self.passes_left: dict[torch.Tensor, int] = {}
        # Of this round: what is under way, and the gradients of passes that were added up.
        self.flights: dict[torch.Tensor, Flight] = {}
        self.added_up: dict[torch.Tensor, torch.Tensor] = {}
        # Of this round: what has failed before it began. The other ranks have been told.
        self._failures: dict[torch.Tensor, Exception] = {}
        # Parameters whose gradients an optimizer that was made later reduces.
        self._lent: dict[torch.Tensor, weakref.ref[GradientReducer]] = {}
        self._groups = {member: group for group in groups for member in group}
        self._sparse_dims: dict[torch.Tensor, int] = {}
        self._lock = threading.RLock()
        self._context = _context.queried()

    def add(self, parameter: torch.Tensor, name: str) -> None:
        """Take a parameter in; its gradient is reduced in this round already."""
        with self._lock:
            self.names[parameter] = name
            self.passes_left[parameter] = self.passes

    def lend(self, parameter: torch.Tensor, to: GradientReducer) -> None:
        """Leave the gradient of a parameter to another reducer, as long as there is that one."""
        with self._lock:
            self._lent[parameter] = weakref.ref(to)

    def _borrower(self, parameter: torch.Tensor) -> GradientReducer | None:
        lent = self._lent.get(parameter)
        return None if lent is None else lent()

    def _borrowers(self) -> list[GradientReducer]:
        borrowers = {id(b): b for b in map(self._borrower, self._lent) if b is not None}
        return list(borrowers.values())

    def on_gradient(self, parameter: torch.Tensor) -> None:
        """Act on a gradient that a backward pass has just accumulated.

        Raises
        ------
        AssertionError
            There were more passes than were announced, or the gradient is part of a graph itself.
        """
        with self._lock:
            if self._borrower(parameter) is not None:
                return
            dropped = self._gradients_dropped() or parameter in self._failures
            if dropped or not self._same_job():
                self.abandon()
            gradient = parameter.grad
            if gradient is None:
                return  # Another hook has taken it.
            if gradient.requires_grad:
                self._refuse(parameter, gradient)
            self._count_pass(parameter, gradient)
            if self.passes_left[parameter] == 0:
                self._on_ready(parameter)

    def _refuse(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """Raise, for a gradient that is part of a graph; the other ranks learn of it."""
        error = AssertionError(
            "A gradient that requires a gradient itself, as after backward(create_graph=True), "
            "cannot be reduced."
        )
        if parameter in self.flights:
            raise error  # The others do not wait for it.
        self._enter_round()
        self._failures[parameter] = error
        with telling_of(gradient, self.names[parameter], self.manner):
            raise error

    def _gradients_dropped(self) -> bool:
        """Return whether gradients are being reduced that the parameters no longer have.

        That happens behind our back, by model.zero_grad(), and to all parameters at once.
        """
        first = next(iter(self.flights.values()), None)
        return first is not None and first.parameter.grad is not first.gradient

    def _count_pass(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        if self.added_up.get(parameter, gradient) is not gradient:
            self.passes_left[parameter] = self.passes  # What was added up has been dropped.
        if self.passes_left[parameter] <= 0:
            raise AssertionError(_TOO_MANY_PASSES)
        self.passes_left[parameter] -= 1
        self.added_up[parameter] = gradient
        if gradient.is_sparse:
            self._sparse_dims[parameter] = gradient.sparse_dim()

    def _on_ready(self, parameter: torch.Tensor) -> None:
        """Start the reduction of a gradient; of one in a group, when the whole group is ready."""
        group = [p for p in self._groups.get(parameter, [parameter]) if p.requires_grad]
        if all(self.passes_left.get(member, 0) <= 0 for member in group):
            for member in group:
                if member in self.passes_left and not self._begun(member):
                    self._start(member, self._gradient_of(member))

    def fill_gradients(self) -> None:
        """Give zeros to the parameters that have no gradient."""
        for parameter in self._missing():
            self._gradient_of(parameter)

    def _gradient_of(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the gradient; zeros take the place of none."""
        if parameter.grad is None:
            parameter.grad = zeros_for(parameter, self._sparse_dims.get(parameter, 0))
        return parameter.grad

    def _start(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        self._enter_round()
        try:
            flight = launch(parameter, gradient, self.names[parameter], self.manner)
        except Exception as error:
            self._failures[parameter] = error
            raise
        self.flights[parameter] = flight

    def _enter_round(self) -> None:
        """Note the job in which this round goes on, if it begins now."""
        if not self.flights and not self._failures:
            self._context = _context.current()

    def _begun(self, parameter: torch.Tensor) -> bool:
        return parameter in self.flights or parameter in self._failures

    def _missing(self) -> list[torch.Tensor]:
        """Return the parameters whose reduction has not been started in this round, in order."""
        return [
            parameter
            for parameter in self.passes_left
            if not self._begun(parameter)
            and parameter.requires_grad
            and self._borrower(parameter) is None
        ]

    def finish(self) -> None:
        """End the round: every parameter has its reduced gradient.

        Raises
        ------
        HoraInternalError
            A reduction failed: the first error of them. The round has ended all the same.
        """
        with self._lock, torch.no_grad():
            self._require_same_job()
            for borrower in self._borrowers():
                borrower.finish()
            self._start_missing()
            first = next(iter(self._failures.values()), None)
            for parameter, flight in list(self.flights.items()):
                try:
                    flight.land()
                except Exception as error:
                    first = first or error
                del self.flights[parameter]
            self._end_round()
            if first is not None:
                raise first

    def _start_missing(self) -> None:
        """Start what has not begun; what fails is among the failures then, and told."""
        for parameter in self._missing():
            like = parameter if parameter.grad is None else parameter.grad
            try:
                with telling_of(like, self.names[parameter], self.manner):
                    self._start(parameter, self._gradient_of(parameter))
            except Exception as error:
                self._failures.setdefault(parameter, error)

    def abandon(self) -> None:
        """End the round, if one has begun, and throw its results away.

        Errors of the job are not raised: whoever restores a state after such an error comes here.
        """
        with self._lock, torch.no_grad():
            for borrower in self._borrowers():
                borrower.abandon()
            if (self.flights or self._failures) and self._same_job():
                for parameter in self._missing():
                    zeros = zeros_for(parameter, self._sparse_dims.get(parameter, 0))
                    with contextlib.suppress(Exception):
                        self._start(parameter, zeros)
                for parameter, flight in list(self.flights.items()):
                    with contextlib.suppress(HoraInternalError):
                        flight.wait()
                    del self.flights[parameter]
            self.flights.clear()
            self._end_round()

    def _end_round(self) -> None:
        self._failures.clear()
        self._begin_round()

    def _begin_round(self) -> None:
        self.added_up.clear()
        for parameter in self.passes_left:
            self.passes_left[parameter] = 0 if self._begun(parameter) else self.passes

    def set_passes(self, passes: int) -> None:
        """Add up so many backward passes before a gradient is reduced, from this round on."""
        with self._lock:
            self.passes = passes
            self._begin_round()

    def _same_job(self) -> bool:
        """Return whether the job goes on in which gradients are being reduced, if any are."""
        if not self.flights and not self._failures:
            return True
        return _context.is_initialized() and _context.queried() is self._context

    def _require_same_job(self) -> None:
        if not self._same_job():
            self.flights.clear()
            self._end_round()
            error = HoraInternalError(
                "The job in which the gradients were being reduced has been shut down; run the "
                "backward pass again."
            )
            error.kind = "shutdown"
            raise error

    def handles(self) -> dict[torch.Tensor, tuple[Any, Any]]:
        """Return handle and compression context of each parameter of this round that has begun."""
        begun: dict[torch.Tensor, tuple[Any, Any]] = dict.fromkeys(self.added_up, (None, None))
        begun.update((p, (flight.ticket, flight.context)) for p, flight in self.flights.items())
        return begun
