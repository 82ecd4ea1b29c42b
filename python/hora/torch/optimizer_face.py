"""A second face of an optimizer: an object of a subclass of its class, with the same attributes.

`put_on` makes one. State, parameter groups, learning rate schedules are shared, whichever of the
two they see. All that a face adds to the attributes is `_hora`, so no attribute of any optimizer is
in its way.

A face is copied and pickled as what it was made from and with: the optimizer beneath, and a
`Making`. The copy has the parameters that are copied with it, under the names of the originals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, TypeVar

import torch

from hora import _context
from hora.process_sets import ProcessSet, global_process_set
from hora.torch.parameter_names import claim_name

if TYPE_CHECKING:
    _Base = torch.optim.Optimizer
else:
    _Base = object

Step = TypeVar("Step", bound=Callable[..., Any])


@dataclass
class Making:
    """What DistributedOptimizer was given, checked.

    `names` are the given ones, `claimed` those under which the parameters travel that take part.
    `groups` are of parameters that are reduced together.
    """

    names: dict[torch.Tensor, str]
    compression: Any
    passes: int
    op: int
    predivide: float
    groups: list[list[torch.Tensor]]
    sparse_as_dense: bool
    process_set: ProcessSet
    claimed: dict[torch.Tensor, str] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is copied: None stands for the global process set, of which there is one."""
        is_global = self.process_set is global_process_set
        return {**self.__dict__, "process_set": None if is_global else self.process_set}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become a copy."""
        self.__dict__.update(state)
        if self.process_set is None:
            self.process_set = global_process_set

    def name_of(self, parameter: torch.Tensor, place: tuple[int, int], reducer: object) -> str:
        """Return the name under which `reducer` reduces the parameter at (group, index)."""
        if parameter not in self.claimed:
            name = self.names.get(parameter, f"allreduce.noname.{place[0]}.{place[1]}")
            context = _context.queried()
            self.claimed[parameter] = claim_name(context, name, parameter, reducer)
        return self.claimed[parameter]


class Face(_Base):
    """What all faces have."""

    _face: type[Face]
    _kind: type[torch.optim.Optimizer]
    # Has the attribute `making`, what a copy is made with.
    _hora: Any

    def _make(self, making: Making) -> None:
        """Set `_hora`."""
        raise NotImplementedError

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        making: Making = self._hora.making
        return {**making.names, **making.claimed}

    @property
    def _compression(self) -> Any:
        return self._hora.making.compression

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return how to make a copy."""
        return _copy, (self._face, self._kind, self.__getstate__(), self._hora.making)


def leads_to_step(step: Step) -> Step:
    """Mark a face's step as one that calls the step beneath.

    torch marks the steps that its profiler and its learning rate schedules have wrapped, and wraps
    those that are not marked; the one beneath is wrapped already.
    """
    step.hooked = True  # type: ignore[attr-defined]
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step


def put_on(face: type[Face], optimizer: torch.optim.Optimizer, making: Making) -> Any:
    """Return a face of an optimizer."""
    kind = type(optimizer)
    attributes = {"__module__": face.__module__, "_face": face, "_kind": kind}
    result: Any = object.__new__(type(kind.__name__, (face, kind), attributes))
    # A learning rate schedule has put its own wrapper of the plain step into the attributes.
    scheduled = optimizer.__dict__.pop("step", None) is not None
    result.__dict__ = optimizer.__dict__
    result._make(making)
    if scheduled:
        optimizer.__dict__["step"] = result.step
    return result


def _copy(
    face: type[Face], kind: type[torch.optim.Optimizer], state: dict[str, Any], making: Making
) -> Any:
    optimizer = kind.__new__(kind)
    optimizer.__setstate__(state)
    return put_on(face, optimizer, making)
