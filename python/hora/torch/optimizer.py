"""DistributedOptimizer: any torch optimizer, with gradients reduced over all ranks before it steps.

What a script must do is call backward and step. Hooks on the parameters start the reduction of each
gradient while the backward pass goes on; `step` waits for all of them (:mod:`gradient_reducer`).
The result is a second face of the optimizer that it is made from (:mod:`optimizer_face`). With
Adasum it is another one, that reduces steps instead of gradients (:mod:`adasum_optimizer`).
"""

from __future__ import annotations

import contextlib
import enum
import warnings
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Callable

import torch

from hora import _context
from hora._calls import Adasum, Average, reduction, require_compressor
from hora._codec import words_of
from hora.process_sets import ProcessSet, global_process_set, registered_id
from hora.torch.adasum_optimizer import AdasumFace
from hora.torch.compression import Compression
from hora.torch.grad_scaler import let_grad_scaler_wait
from hora.torch.gradient_flight import Manner
from hora.torch.gradient_hooks import hook_gradient
from hora.torch.gradient_reducer import GradientReducer
from hora.torch.optimizer_arguments import (
    check_optimizer,
    check_passes,
    check_predivide_factor,
    checked_groups,
    checked_names,
)
from hora.torch.optimizer_face import Face, Making, leads_to_step, put_on

__all__ = ["DistributedOptimizer"]


class _Round(enum.Enum):
    """Where the gradients of this step stand."""

    OPEN = "to be reduced, or being reduced"
    TAKEN = "reduced, because a GradScaler had to see them"
    SYNCHRONIZED = "reduced, because the user asked for it"


class _State:
    """What a distributed optimizer remembers."""

    def __init__(self, making: Making) -> None:
        self.making = making
        self.reducer = GradientReducer(
            Manner(
                making.compression,
                making.op,
                1.0 / making.predivide,
                making.predivide,
                making.sparse_as_dense,
                making.process_set,
            ),
            making.passes,
            making.groups,
        )
        self.hooks: list[Any] = []
        self.round = _Round.OPEN
        self.skips = False  # Within skip_synchronize.
        self.distributed = _takes_part(making.process_set)

    def remove_hooks(self) -> None:
        """Reduce nothing any more."""
        for hook in self.hooks:
            hook.remove()


def _takes_part(process_set: ProcessSet) -> bool:
    """Return whether there is, or may be one day, anybody to reduce gradients with."""
    return process_set.included() and (len(process_set.ranks) > 1 or _context.queried().elastic)


class DistributedFace(Face):
    """What a distributed optimizer adds to the class of the optimizer that it is made from."""

    _hora: _State

    def _make(self, making: Making) -> None:
        previous = self.__dict__.get("_hora")
        if isinstance(previous, _State):
            previous.remove_hooks()  # This optimizer was wrapped before.
        self._hora = _State(making)
        self._adopt_parameters()

    def _adopt_parameters(self) -> None:
        """Hook the parameters that require a gradient and are not hooked yet."""
        hora = self._hora
        for i, group in enumerate(self.param_groups):
            for j, parameter in enumerate(group["params"]):
                if parameter.requires_grad and parameter not in hora.reducer.passes_left:
                    name = hora.making.name_of(parameter, (i, j), hora.reducer)
                    hora.reducer.add(parameter, name)
                    if hora.distributed:
                        hora.hooks.append(_hook(parameter, weakref.ref(self)))

    def fill_gradients(self) -> None:
        """Give zeros to the parameters that have no gradient, as the end of a round would."""
        if self._hora.distributed:
            self._adopt_parameters()
            self._hora.reducer.fill_gradients()

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        self._hora.round = _Round.OPEN
        self._hora.reducer.on_gradient(parameter)

    # What scripts and tests of Horovod look at.

    @property
    def _handles(self) -> dict[torch.Tensor, tuple[Any, Any]]:
        return self._hora.reducer.handles()

    @property
    def _requires_update(self) -> set[torch.Tensor]:
        return set(self._hora.reducer.passes_left)

    @property
    def _allreduce_delay(self) -> dict[torch.Tensor, int]:
        return self._hora.reducer.passes_left

    @property
    def backward_passes_per_step(self) -> int:
        """How many backward passes are added up before gradients are reduced."""
        return self._hora.reducer.passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Add up `passes` backward passes locally from now on, before gradients are reduced."""
        check_passes(passes)
        self._hora.making.passes = passes
        self._hora.reducer.set_passes(passes)

    def synchronize(self) -> None:
        """Wait until all gradients are reduced; `step` does it, unless told to skip it.

        Call it yourself to work on the reduced gradients, such as clipping them::

            loss.backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                optimizer.step()
        """
        self._finish_round(_Round.SYNCHRONIZED)

    def synchronize_for_scaler(self) -> None:
        """Wait until all gradients are reduced, because a GradScaler is about to look at them."""
        if self._hora.round is _Round.OPEN and not self._hora.skips:
            self._finish_round(_Round.TAKEN)

    def _finish_round(self, then: _Round) -> None:
        if self._hora.distributed:
            self._adopt_parameters()
            self._hora.reducer.finish()
        self._hora.round = then

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within this context `step` takes the gradients as they are."""
        before, self._hora.skips = self._hora.skips, True
        try:
            yield
        finally:
            self._hora.skips = before

    @leads_to_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce the gradients and make the optimizer's step.

        With a closure, the gradients that it computes are the ones that are reduced and used; its
        own value is returned.
        """
        hora = self._hora
        self._opt_called = True
        if closure is not None:
            return super().step(closure if hora.skips else self._reducing(closure))
        if not hora.skips:
            if hora.round is _Round.OPEN:
                self._finish_round(_Round.OPEN)
            elif hora.round is _Round.SYNCHRONIZED:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). The gradients are reduced already and are not "
                    "reduced again; say so with `with optimizer.skip_synchronize():`.",
                    stacklevel=2,
                )
        elif hora.reducer.flights:
            warnings.warn(
                "optimizer.step() called in optimizer.skip_synchronize() context without "
                "optimizer.synchronize() before it. The gradients are being reduced already; the "
                "step waits for them.",
                stacklevel=2,
            )
            self._finish_round(_Round.OPEN)
        hora.round = _Round.OPEN
        return super().step()

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def reducing_closure() -> Any:
            value = closure()
            self._finish_round(_Round.OPEN)
            return value

        return reducing_closure

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Drop or zero the gradients; all arguments go to the optimizer's own zero_grad."""
        self._abandon_round()
        super().zero_grad(*args, **kwargs)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; gradients that are being reduced are dropped."""
        self._abandon_round()
        super().load_state_dict(state_dict)

    def _abandon_round(self) -> None:
        self._hora.reducer.abandon()
        self._hora.round = _Round.OPEN

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; their gradients are reduced like the others."""
        super().add_param_group(param_group)
        self._adopt_parameters()


def _hook(parameter: torch.Tensor, owner: weakref.ref[DistributedFace]) -> Any:
    """Tell `owner` of gradients, but do not keep it alive: a dropped optimizer reduces nothing."""

    def on_gradient(parameter: torch.Tensor) -> None:
        optimizer = owner()
        if optimizer is not None:
            optimizer._on_gradient(parameter)

    return hook_gradient(parameter, on_gradient)


def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Make an optimizer that reduces gradients over all ranks before it steps.

    Parameters
    ----------
    optimizer
        Any torch optimizer. Its state and parameter groups are shared with the result.
    named_parameters
        Usually ``model.named_parameters()``: names for all parameters, for messages and the
        timeline. Without it, positions are the names.
    compression
        What gradients are turned into for the journey: `Compression.none`, `fp16`, `bf16`,
        `int8`, a codec (`hora.codec`), or your own compressor.
    backward_passes_per_step
        So many backward passes are summed up locally before gradients are reduced.
    op
        Average, Sum, Min, Max or Product. Adasum: steps are reduced, not gradients.
    gradient_predivide_factor
        With Average: divide gradients by this factor before, and multiply after the reduction.
    num_groups
        Deprecated name of `groups` as a number.
    groups
        Gradients of a group are reduced when all of them are there. A number: so many groups of
        consecutive parameters; or the groups themselves, as lists of parameters.
    sparse_as_dense
        Reduce sparse gradients as dense ones.
    process_set
        The ranks to reduce over. On ranks outside of it the optimizer stays what it is.

    Returns
    -------
    An optimizer of the same class (a subclass of it), with `synchronize` and `skip_synchronize`.

    Raises
    ------
    ValueError
        An argument is wrong, such as a codec with Adasum, or `optimizer` is distributed already.
    NotImplementedError
        Adasum over a process set other than the global one.
    """
    registered_id(process_set, "allreduce")
    if isinstance(optimizer, Face):
        raise ValueError("This optimizer is the result of DistributedOptimizer already.")
    check_optimizer(optimizer)
    require_compressor(compression)
    words_of(compression, op)
    check_predivide_factor(gradient_predivide_factor)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    check_passes(backward_passes_per_step)
    names = checked_names(optimizer, named_parameters)
    members = checked_groups(num_groups, groups, optimizer, names, process_set)
    making = Making(
        names,
        compression,
        backward_passes_per_step,
        reduction(op, None),
        gradient_predivide_factor,
        members,
        sparse_as_dense,
        process_set,
    )
    if op == Adasum and process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    if op == Adasum and len(process_set.ranks) > 1:
        return put_on(AdasumFace, optimizer, making)
    let_grad_scaler_wait()
    return put_on(DistributedFace, optimizer, making)
