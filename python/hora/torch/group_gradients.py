"""Gradients of the grouped collectives: the same as of the single ones, as a group.

See :mod:`hora.torch.autograd`. Tensors that are not floating-point take part and have no gradient.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from hora import _calls, _core
from hora._calls import Average, Sum
from hora._refusals import telling, told
from hora.process_sets import ProcessSet
from hora.torch import group_calls

# One gradient per argument of `forward`; only the tensors have one.
Gradients = tuple[Optional[torch.Tensor], ...]


def _mark(ctx: Any, outputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    ctx.mark_non_differentiable(*[one for one in outputs if not one.is_floating_point()])
    return tuple(outputs)


def _gradients(ctx: Any, results: list[torch.Tensor], others: int) -> Gradients:
    """Return the gradients of `forward`'s arguments: `others` that have none, then the tensors."""
    wanted = ctx.needs_input_grad[others:]
    chosen = [result if want else None for result, want in zip(results, wanted)]
    return (*[None] * others, *chosen)


class GroupedAllreduce(torch.autograd.Function):
    """Differentiable grouped allreduce."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        codec: str,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Reduce `tensors`."""
        ctx.arguments = (op, prescale, postscale, process_set)
        handle = group_calls.start_reduce(
            list(tensors), name, op, prescale, postscale, process_set, codec
        )
        return _mark(ctx, _calls.synchronize(handle))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        """Reduce the gradients in the same way, but without a codec."""
        return _gradients(ctx, allreduce(list(gradients), None, *ctx.arguments), 6)


class GroupedAllgather(torch.autograd.Function):
    """Differentiable grouped allgather."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Gather `tensors`, and before them how many rows each rank has of each."""
        ctx.process_set = process_set
        with telling(_core.ALLGATHER, None, process_set, members=1):
            own = torch.tensor([[tensor.shape[0] for tensor in tensors]])
            rows = _calls.synchronize(group_calls.start_gather([own], None, process_set))[0]
        firsts = rows[: process_set.rank()].sum(0).tolist()
        ctx.parts = list(zip(firsts, own[0].tolist()))
        handle = group_calls.start_gather(list(tensors), name, process_set)
        return _mark(ctx, _calls.synchronize(handle))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        """Average the gradients and take this rank's rows."""
        averaged = allreduce(list(gradients), None, Average, 1.0, 1.0, ctx.process_set)
        own = [one.narrow(0, first, rows) for one, (first, rows) in zip(averaged, ctx.parts)]
        return _gradients(ctx, own, 2)


class GroupedReducescatter(torch.autograd.Function):
    """Differentiable grouped reducescatter."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Reduce `tensors` and take this rank's rows."""
        ctx.process_set = process_set
        ctx.factor = prescale * postscale * (len(process_set.ranks) if op == Sum else 1)
        handle = group_calls.start_scatter(
            list(tensors), name, op, prescale, postscale, process_set
        )
        return _mark(ctx, _calls.synchronize(handle))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        """Gather the gradients of all parts."""
        scaled = [one * ctx.factor if one.is_floating_point() else one for one in gradients]
        return _gradients(ctx, allgather(scaled, None, ctx.process_set), 5)


# `apply` has no types of its own.
_allreduce: Any = GroupedAllreduce.apply
_allgather: Any = GroupedAllgather.apply
_reducescatter: Any = GroupedReducescatter.apply


@told(_core.ALLREDUCE)
def allreduce(
    tensors: list[torch.Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    codec: str = "",
) -> list[torch.Tensor]:
    """Reduce into new tensors, with gradients."""
    return list(_allreduce(name, op, prescale, postscale, process_set, codec, *tensors))


@told(_core.ALLGATHER)
def allgather(
    tensors: list[torch.Tensor], name: str | None, process_set: ProcessSet
) -> list[torch.Tensor]:
    """Gather into new tensors, with gradients."""
    return list(_allgather(name, process_set, *tensors))


@told(_core.REDUCESCATTER)
def reducescatter(
    tensors: list[torch.Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> list[torch.Tensor]:
    """Reduce and scatter into new tensors, with gradients."""
    return list(_reducescatter(name, op, prescale, postscale, process_set, *tensors))
