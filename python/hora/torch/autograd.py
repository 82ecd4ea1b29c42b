"""Gradients of the collectives, as Horovod defines them.

allreduce      an allreduce of the gradient with the same reduction and factors: for Sum the
               gradient of a loss that every rank computes is size times the gradient. For Min, Max
               and Product this is not the mathematical gradient; it is kept for compatibility.
allgather      the averaged gradient's rows of this rank
broadcast      the averaged gradient on the root, zero elsewhere
reducescatter  the gathered gradients of the parts, times size for Sum, times the factors
alltoall       each row's gradient, sent back to where the row came from; zero for rows that went
               nowhere

The backward collectives are unnamed, so backward passes must come in the same order on all ranks.
They are differentiable themselves. One that fails before it begins is told to the other ranks, as
the public calls are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch

from hora import _context, _core
from hora._calls import Average, Sum
from hora._refusals import told
from hora.process_sets import ProcessSet
from hora.torch import blocking

# One gradient per argument of `forward`; only the tensor has one.
Gradients = tuple[Optional[torch.Tensor], ...]


class Allreduce(torch.autograd.Function):
    """Differentiable allreduce."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        codec: str,
    ) -> torch.Tensor:
        """Reduce `tensor`."""
        ctx.arguments = (op, prescale, postscale, process_set)
        return blocking.reduce_new(tensor, name, op, prescale, postscale, process_set, codec)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        """Reduce the gradient in the same way, but without a codec."""
        reduced = allreduce(gradients[0], None, *ctx.arguments)
        return reduced, None, None, None, None, None, None


class Allgather(torch.autograd.Function):
    """Differentiable allgather."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        """Gather `tensor`."""
        output, rows = blocking.gather_new(tensor, name, process_set)
        place = process_set.ranks.index(_context.current().rank)
        ctx.process_set, ctx.first, ctx.count = process_set, sum(rows[:place]), rows[place]
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        """Average the gradient and take this rank's rows."""
        averaged = allreduce(gradients[0], None, Average, 1.0, 1.0, ctx.process_set)
        return averaged.narrow(0, ctx.first, ctx.count), None, None


class Broadcast(torch.autograd.Function):
    """Differentiable broadcast."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        """Broadcast `tensor`."""
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return blocking.broadcast_new(tensor, root_rank, name, process_set)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        """Average the gradient; it belongs to the root."""
        averaged = allreduce(gradients[0], None, Average, 1.0, 1.0, ctx.process_set)
        if _context.current().rank != ctx.root_rank:
            averaged = torch.zeros_like(averaged)
        return averaged, None, None, None


class Reducescatter(torch.autograd.Function):
    """Differentiable reducescatter."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        """Reduce `tensor` and take this rank's rows."""
        ctx.process_set = process_set
        ctx.factor = prescale * postscale * (len(process_set.ranks) if op == Sum else 1)
        return blocking.scatter_new(tensor, name, op, prescale, postscale, process_set)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        """Gather the gradients of all parts."""
        gathered = allgather(gradients[0] * ctx.factor, None, ctx.process_set)
        return gathered, None, None, None, None, None


class Alltoall(torch.autograd.Function):
    """Differentiable alltoall; the second output are the rows from each rank."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        splits: Sequence[int] | None,
        name: str | None,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Exchange the rows of `tensor`."""
        ctx.process_set = process_set
        output, received = blocking.exchange_new(tensor, splits, name, process_set)
        ctx.rows, ctx.received = tensor.shape[0], received
        counts = torch.tensor(received, dtype=torch.int32)
        ctx.mark_non_differentiable(counts)
        return output, counts

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        """Send the gradients back."""
        returned = alltoall(gradients[0], ctx.received, None, ctx.process_set)[0]
        unsent = ctx.rows - returned.shape[0]
        if unsent > 0:
            rest = returned.new_zeros((unsent, *returned.shape[1:]))
            returned = torch.cat([returned, rest])
        return returned, None, None, None


# `apply` has no types of its own.
_allreduce: Any = Allreduce.apply
_allgather: Any = Allgather.apply
_broadcast: Any = Broadcast.apply
_reducescatter: Any = Reducescatter.apply
_alltoall: Any = Alltoall.apply


@told(_core.ALLREDUCE)
def allreduce(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    codec: str = "",
) -> torch.Tensor:
    """Reduce into a new tensor, with a gradient."""
    result: torch.Tensor = _allreduce(tensor, name, op, prescale, postscale, process_set, codec)
    return result


@told(_core.ALLGATHER)
def allgather(tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> torch.Tensor:
    """Gather into a new tensor, with a gradient."""
    result: torch.Tensor = _allgather(tensor, name, process_set)
    return result


@told(_core.BROADCAST)
def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
) -> torch.Tensor:
    """Broadcast into a new tensor, with a gradient."""
    result: torch.Tensor = _broadcast(tensor, root_rank, name, process_set)
    return result


@told(_core.REDUCESCATTER)
def reducescatter(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> torch.Tensor:
    """Reduce and scatter into a new tensor, with a gradient."""
    result: torch.Tensor = _reducescatter(tensor, name, op, prescale, postscale, process_set)
    return result


@told(_core.ALLTOALL)
def alltoall(
    tensor: torch.Tensor,
    splits: Sequence[int] | None,
    name: str | None,
    process_set: ProcessSet,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Exchange rows into a new tensor, with a gradient; and the rows from each rank."""
    result: tuple[torch.Tensor, torch.Tensor] = _alltoall(tensor, splits, name, process_set)
    return result
