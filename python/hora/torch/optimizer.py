"""DistributedOptimizer: any torch optimizer, with gradients reduced over all ranks.

A hook on each parameter starts the allreduce of its gradient as soon as the backward pass has made
it, while the pass goes on; `step` waits for all of them first. What a script must do is call
backward and step.

A *round* is what lies between two steps: every parameter is reduced exactly once in it, on every
rank, under its name. A parameter that this rank did not use is reduced as zeros when the round is
closed, so ranks with unused parameters take part. A round closes at `synchronize` (which `step`
calls), or is *abandoned* - closed, its results thrown away - when the gradients that it reduces are
dropped: zero_grad without a step, as after a step that an AMP GradScaler skips. Ranks may differ in
that; they reduce the same tensors either way.

The distributed optimizer is a second face of the optimizer it is made from: a subclass of its
class, with the same attributes. State, parameter groups, learning rate schedules are shared,
whichever of the two they see.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Callable

import torch

from hora import _calls, _context
from hora._calls import Adasum, Average, synchronize
from hora.process_sets import ProcessSet, global_process_set, require_global
from hora.torch.compression import Compression
from hora.torch.gradient_hooks import hook_gradient
from hora.torch.ops import allreduce_async_
from hora.torch.optimizer_arguments import check_groups, check_passes, checked_names

__all__ = ["DistributedOptimizer"]

_TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)

# In the place of a handle and its compression context while backward passes are accumulated.
_NO_HANDLE = (None, None)

if TYPE_CHECKING:
    _Base = torch.optim.Optimizer
else:
    _Base = object


class _Distributed(_Base):
    """What a distributed optimizer adds to the class of the optimizer that it is made from."""

    # The allreduces of this round, and the tensors that they reduce.
    _handles: dict[torch.Tensor, tuple[int | None, Any]]
    _reduced: dict[torch.Tensor, torch.Tensor]
    _parameter_names: dict[torch.Tensor, str]
    _allreduce_delay: dict[torch.Tensor, int]
    _requires_update: dict[torch.Tensor, None]

    def _set_up(
        self,
        names: dict[torch.Tensor, str],
        compression: Any,
        backward_passes_per_step: int,
        op: int,
        predivide: float,
        sparse_as_dense: bool,
    ) -> None:
        for hook in self.__dict__.get("_hooks", ()):
            hook.remove()  # This optimizer was wrapped before.
        self._hooks: list[Any] = []
        self._parameter_names = dict(names)
        self._compression = compression
        self.backward_passes_per_step = backward_passes_per_step
        self._op = op
        self._prescale = 1.0 / predivide
        self._postscale = predivide
        self._sparse_as_dense = sparse_as_dense
        self._handles = {}
        self._reduced = {}
        self._allreduce_delay = {}
        self._requires_update = {}
        self._synchronized = False
        self._should_synchronize = True
        self._distributed = _context.queried().size > 1
        self._adopt_parameters()

    def _adopt_parameters(self) -> None:
        """Hook the parameters that require a gradient and are not hooked yet."""
        for i, group in enumerate(self.param_groups):
            for j, parameter in enumerate(group["params"]):
                if parameter.requires_grad and parameter not in self._requires_update:
                    self._requires_update[parameter] = None
                    self._allreduce_delay[parameter] = self.backward_passes_per_step
                    self._parameter_names.setdefault(parameter, f"allreduce.noname.{i}.{j}")
                    if self._distributed:
                        self._hooks.append(_hook(parameter, weakref.ref(self)))

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        """Act on a gradient that the backward pass has just accumulated."""
        if self._gradients_dropped():
            self._abandon_round()
        if self._handles.get(parameter, _NO_HANDLE)[0] is not None:
            raise AssertionError(_TOO_MANY_PASSES)
        gradient = parameter.grad
        if gradient is None or gradient.requires_grad:
            raise AssertionError(
                "A gradient that requires a gradient itself, as after backward(create_graph=True), "
                "cannot be reduced."
            )
        self._synchronized = False
        self._allreduce_delay[parameter] -= 1
        if self._allreduce_delay[parameter] > 0:
            self._handles[parameter] = _NO_HANDLE
        else:
            self._start(parameter, self._dense(parameter))

    def _gradients_dropped(self) -> bool:
        """Return whether an open round reduces gradients that the parameters no longer have.

        That happens behind our back, by model.zero_grad(), and to all parameters at once.
        """
        for parameter, gradient in self._reduced.items():
            return parameter.grad is not gradient
        return False

    def _dense(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the gradient, after replacing none by zeros and a sparse one by a dense one."""
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        elif parameter.grad.is_sparse and self._sparse_as_dense:
            parameter.grad = parameter.grad.to_dense()
        return parameter.grad

    def _start(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """Start the allreduce of a gradient, in place."""
        compressed, context = self._compression.compress(gradient)
        handle = allreduce_async_(
            compressed,
            name=self._parameter_names[parameter],
            op=self._op,
            prescale_factor=self._prescale,
            postscale_factor=self._postscale,
        )
        self._handles[parameter] = (handle, context)
        self._reduced[parameter] = gradient

    def _missing(self) -> list[torch.Tensor]:
        """Return the parameters whose allreduce has not been started in this round, in order."""
        self._adopt_parameters()
        return [
            parameter
            for parameter in self._requires_update
            if self._handles.get(parameter, _NO_HANDLE)[0] is None and parameter.requires_grad
        ]

    def _close_round(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Wait for all that has been started: (gradient, its reduced value) of each parameter."""
        handles, gradients = self._handles, self._reduced
        self._handles, self._reduced = {}, {}
        for parameter in self._allreduce_delay:
            self._allreduce_delay[parameter] = self.backward_passes_per_step
        results = []
        waiting = [(p, handle, ctx) for p, (handle, ctx) in handles.items() if handle is not None]
        for i, (parameter, handle, ctx) in enumerate(waiting):
            try:
                reduced = synchronize(handle)
            except Exception:
                with contextlib.suppress(Exception):
                    _calls.synchronize_all(handle for _, handle, _ in waiting[i + 1 :])
                raise
            results.append((gradients[parameter], self._compression.decompress(reduced, ctx)))
        return results

    def _abandon_round(self) -> None:
        """Close a round whose results nobody wants, if one is open."""
        if self._reduced:
            for parameter in self._missing():
                self._start(parameter, torch.zeros_like(parameter, requires_grad=False))
            self._close_round()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accumulate `passes` backward passes locally from now on, before gradients are reduced."""
        check_passes(passes)
        self.backward_passes_per_step = passes
        for parameter in self._allreduce_delay:
            self._allreduce_delay[parameter] = passes

    def synchronize(self) -> None:
        """Wait until all gradients are reduced; `step` does it, unless told to skip it.

        Call it yourself to work on the reduced gradients, such as clipping them::

            loss.backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                optimizer.step()
        """
        if self._distributed:
            with torch.no_grad():
                for parameter in self._missing():
                    self._start(parameter, self._dense(parameter))
                for gradient, reduced in self._close_round():
                    if reduced is not gradient:
                        gradient.copy_(reduced)
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within this context `step` takes the gradients as they are."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce the gradients and make the optimizer's step.

        With a closure, the gradients that it computes are the ones that are reduced and used; its
        own value is returned.
        """
        self._opt_called = True
        if closure is not None:
            return super().step(self._reducing(closure) if self._should_synchronize else closure)
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). The gradients are reduced already and are not "
                    "reduced again; say so with `with optimizer.skip_synchronize():`.",
                    stacklevel=2,
                )
            else:
                self.synchronize()
        self._synchronized = False
        return super().step()

    # torch marks the step functions that its profiler and its learning rate schedulers have
    # wrapped; this one leads to the optimizer's own, which is wrapped already.
    step.hooked = True  # type: ignore[attr-defined]
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def reducing_closure() -> Any:
            value = closure()
            self.synchronize()
            self._synchronized = False
            return value

        return reducing_closure

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Drop or zero the gradients; all arguments go to the optimizer's own zero_grad."""
        self._abandon_round()
        self._synchronized = False
        super().zero_grad(*args, **kwargs)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; gradients that are being reduced are dropped."""
        self._abandon_round()
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; their gradients are reduced like the others."""
        super().add_param_group(param_group)
        if "_requires_update" in self.__dict__:
            self._adopt_parameters()


def _hook(parameter: torch.Tensor, owner: weakref.ref[_Distributed]) -> Any:
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
        What gradients are turned into for the journey: `Compression.none`, `Compression.fp16` or
        yours.
    backward_passes_per_step
        So many backward passes are summed up locally before gradients are reduced.
    op
        Average, Sum, Min, Max or Product.
    gradient_predivide_factor
        With Average: divide gradients by this factor before, and multiply after the reduction.
    num_groups, groups
        Accepted and checked, without effect: Hora fuses by itself what is ready at the same time.
    sparse_as_dense
        Turn sparse gradients into dense ones; otherwise they are an error.
    process_set
        The global one.

    Returns
    -------
    An optimizer of the same class (a subclass of it), with `synchronize` and `skip_synchronize`.

    Raises
    ------
    ValueError
        An argument is wrong, or `optimizer` is distributed already.
    """
    require_global(process_set)
    if isinstance(optimizer, _Distributed):
        raise ValueError("This optimizer is the result of DistributedOptimizer already.")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    check_passes(backward_passes_per_step)
    check_groups(num_groups, groups)
    if op == Adasum:
        raise NotImplementedError(
            "Adasum is not supported by this version of Hora; "
            "use Average, Sum, Min, Max or Product."
        )
    names = checked_names(optimizer, named_parameters)
    kind = type(optimizer)
    result: Any = object.__new__(
        type(kind.__name__, (_Distributed, kind), {"__module__": __name__})
    )
    # A learning rate schedule has put its own wrapper of the plain step into the attributes.
    scheduled = optimizer.__dict__.pop("step", None) is not None
    result.__dict__ = optimizer.__dict__
    result._set_up(
        names,
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        sparse_as_dense,
    )
    if scheduled:
        optimizer.__dict__["step"] = result.step
    return result
