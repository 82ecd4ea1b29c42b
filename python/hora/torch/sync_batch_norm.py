"""Batch normalization over the batches of all ranks.

In training, a layer normalizes with mean and variance of the whole batch, which lies on all ranks.
Each rank computes count, mean and sum of squared deviations of its part; these are gathered, and
all ranks merge them in the same order (Chan, Golub, LeVeque, "Updating Formulae and a Pairwise
Algorithm for Computing Sample Variances", 1979): no difference of large sums is taken, parts may
differ in size, and ranks end with the same bits. In the backward pass two sums over the whole batch
are needed; they travel together. So a layer costs one small collective each way.

Statistics are merged in float64 and used in float32, or in float64 if the input is. Results and
gradients equal those of torch's BatchNorm on the whole batch to rounding. The gradients of weight
and bias are of this rank's part, for DistributedOptimizer to reduce like all others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from hora import _context, _core
from hora._calls import Sum
from hora._refusals import telling
from hora.torch import blocking

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(_BatchNorm):
    """A layer like torch's BatchNorm1d, 2d and 3d, over the batches of all ranks.

    In evaluation, and on a single rank, it is one of these.

    Parameters
    ----------
    num_features
        C of an input of shape (N, C, ...). N may differ between ranks, and be 0 on some.
    eps
        Added to the variance.
    momentum
        Weight of the newest batch in the running statistics; None: all batches weigh the same.
    affine
        Whether there are a weight and a bias.
    track_running_stats
        Whether there are running statistics.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalize an input of shape (N, C, ...); all ranks must come here in training."""
        if not self.training or _context.queried().size == 1:
            result: torch.Tensor = super().forward(input)
            return result
        with telling(_core.ALLGATHER, _name(self.num_features)):
            self._check_input_dim(input)
            if input.shape[1] != self.num_features:
                raise ValueError(
                    f"expected an input with {self.num_features} channels (got {input.shape[1]})"
                )
        output, mean, unbiased = _normalize(input, self.weight, self.bias, self.eps)
        self._track(mean, unbiased)
        return output

    def _track(self, mean: torch.Tensor, unbiased: torch.Tensor) -> None:
        """Bring the running statistics up to date, if there are any."""
        batches = self.num_batches_tracked
        if batches is None or self.running_mean is None or self.running_var is None:
            return
        batches.add_(1)
        share = 1.0 / float(batches) if self.momentum is None else self.momentum
        self.running_mean.mul_(1 - share).add_(mean.to(self.running_mean.dtype), alpha=share)
        self.running_var.mul_(1 - share).add_(unbiased.to(self.running_var.dtype), alpha=share)

    @classmethod
    def convert_sync_batchnorm(cls, module: torch.nn.Module) -> torch.nn.Module:
        """Return the module with every BatchNorm layer replaced by one of this class.

        The new layers share parameters and buffers with those that they replace.
        """
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            layer = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
            )
            layer.weight, layer.bias = module.weight, module.bias
            layer.running_mean, layer.running_var = module.running_mean, module.running_var
            layer.num_batches_tracked = module.num_batches_tracked
            layer.training = module.training
            return layer
        for name, child in module.named_children():
            module.add_module(name, cls.convert_sync_batchnorm(child))
        return module


class _Whole:
    """Count, mean and biased variance of the whole batch; float64, shape (C,)."""

    def __init__(self, part: torch.Tensor) -> None:
        channels = part.shape[1]
        with telling(_core.ALLGATHER, _name(channels)):
            mine = self._of_part(part, channels)
            rows = blocking.gather_new(mine.unsqueeze(0), _name(channels))[0]
        counts, means, squares = rows[:, :1], rows[:, 1 : channels + 1], rows[:, channels + 1 :]
        self.count = int(counts.sum())
        if self.count < 2:
            raise ValueError(
                "Expected more than 1 value per channel when training; the batches of all ranks "
                f"have {self.count} together, this rank's input has the size {list(part.shape)}"
            )
        self.mean = (counts * means).sum(0) / self.count
        self.squares = (squares + counts * (means - self.mean) ** 2).sum(0)

    @staticmethod
    def _of_part(part: torch.Tensor, channels: int) -> torch.Tensor:
        """Return count, means and sums of squared deviations of this rank's part."""
        count = part.numel() // channels if channels else 0
        dims = [0, *range(2, part.dim())]
        mean = torch.zeros(channels, dtype=torch.float64)
        squares = mean
        if count:
            variance, mean = torch.var_mean(part, dims, correction=0)
            mean = mean.double()
            squares = variance.double() * count
        return torch.cat([torch.tensor([count], dtype=torch.float64), mean, squares])


class _Function(torch.autograd.Function):
    """Normalization by the statistics of the whole batch."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the output, and mean and unbiased variance of the whole batch."""
        part = _computable(input)
        whole = _Whole(part)
        variance = whole.squares / whole.count
        mean = whole.mean.to(part.dtype)
        ctx.save_for_backward(input, weight, mean, (variance + eps).rsqrt().to(part.dtype))
        ctx.count = whole.count
        output = functional.batch_norm(
            part,
            mean,
            variance.to(part.dtype),
            None if weight is None else weight.to(part.dtype),
            None if bias is None else bias.to(part.dtype),
            training=False,
            eps=eps,
        ).to(input.dtype)
        unbiased = whole.squares / (whole.count - 1)
        ctx.mark_non_differentiable(whole.mean, unbiased)
        return output, whole.mean, unbiased

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of input, weight and bias."""
        input, weight, mean, inverse = ctx.saved_tensors
        gradient = _computable(gradients[0])
        dims = [0, *range(2, input.dim())]
        over_channels = (1, -1) + (1,) * (input.dim() - 2)
        normalized = (_computable(input) - mean.view(over_channels)) * inverse.view(over_channels)
        sums = torch.stack([gradient.sum(dims), (gradient * normalized).sum(dims)])
        of_input = of_weight = of_bias = None
        if ctx.needs_input_grad[1]:
            of_weight = sums[1].to(weight.dtype)
        if ctx.needs_input_grad[2]:
            of_bias = sums[0].to(weight.dtype)
        if ctx.needs_input_grad[0]:
            whole = blocking.reduce_new(sums.double(), _name(len(mean)), Sum, 1.0, 1.0) / ctx.count
            means = whole.to(gradient.dtype).view(2, *over_channels)
            scale = inverse if weight is None else inverse * weight.to(inverse.dtype)
            of_input = gradient.sub(means[0]).sub_(normalized.mul_(means[1]))
            of_input = of_input.mul_(scale.view(over_channels)).to(input.dtype)
        return of_input, of_weight, of_bias, None


def _name(channels: int) -> str:
    """Return what the collectives of a layer are called, on all ranks."""
    return f"sync_batch_norm.{channels}"


def _computable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in float32, or in float64 if it is."""
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _normalize(
    input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    # `apply` has no types of its own.
    apply: Any = _Function.apply
    result: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = apply(input, weight, bias, eps)
    return result
