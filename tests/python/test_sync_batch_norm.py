"""SyncBatchNorm against torch's BatchNorm on the whole batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hora.torch as hvd


@pytest.mark.parametrize("size", [1, 2, 3])
def test_layer(checked: Callable[..., list[Any]], check: Callable[[], Any], size: int) -> None:
    """Run every check of this file."""
    checked(check, size)


def whole_batch(rows: list[int], rest: tuple[int, ...], step: int, dtype: torch.dtype) -> Any:
    """Return what all ranks have together: `rows[rank]` rows of each rank."""
    generator = torch.Generator().manual_seed(step)
    shape = (sum(rows), *rest)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 2 + 5).to(dtype)


def part_of(whole: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Return this rank's rows."""
    first = sum(rows[: hvd.rank()])
    return whole[first : first + rows[hvd.rank()]].clone()


def close(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> None:
    assert one.dtype == other.dtype
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def compare(
    layer: nn.Module,
    reference: nn.Module,
    rows: list[int],
    rest: tuple[int, ...],
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    """Train both layers for some steps: one on all ranks, the other with whole batches."""
    for step in range(3):
        whole = whole_batch(rows, rest, step, dtype)
        weights = whole_batch(rows, rest, 100 + step, dtype)
        whole.requires_grad_()
        part = part_of(whole.detach(), rows).requires_grad_()
        layer.zero_grad()
        reference.zero_grad()
        output, wanted = layer(part), reference(whole)
        (output * part_of(weights, rows)).sum().backward()
        (wanted * weights).sum().backward()
        close(output, part_of(wanted.detach(), rows), tolerance)
        close(part.grad, part_of(whole.grad, rows), tolerance)
        for mine, other in zip(layer.parameters(), reference.parameters()):
            close(hvd.allreduce(mine.grad, op=hvd.Sum), other.grad, 20 * tolerance)
        for mine, other in zip(layer.buffers(), reference.buffers()):
            close(mine, other, tolerance)


def even() -> list[int]:
    return [4] * hvd.size()


def uneven() -> list[int]:
    """Return rows that differ from rank to rank; the first of several ranks has none."""
    return [3 * rank for rank in range(hvd.size())] if hvd.size() > 1 else [4]


def check_training_equals_the_whole_batch() -> None:
    hvd.init()
    for rows in (even(), uneven()):
        for kind, rest in (
            (nn.BatchNorm1d, (3,)),
            (nn.BatchNorm1d, (3, 7)),
            (nn.BatchNorm2d, (3, 4, 2)),
            (nn.BatchNorm3d, (3, 2, 2, 3)),
        ):
            for options in ({}, {"momentum": None}, {"momentum": 0.4, "eps": 0.1}):
                for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
                    layer = hvd.SyncBatchNorm(3, **options).to(dtype)
                    reference = kind(3, **options).to(dtype)
                    compare(layer, reference, rows, rest, dtype, tolerance)


def check_layers_without_parameters_or_running_statistics() -> None:
    for options in ({"affine": False}, {"track_running_stats": False}):
        layer, reference = hvd.SyncBatchNorm(3, **options), nn.BatchNorm2d(3, **options)
        compare(layer, reference, uneven(), (3, 2, 2), torch.float32, 2e-5)


def check_half_precision() -> None:
    """Inputs of 16 bits, with parameters of 16 and of 32 bits."""
    for dtype in (torch.bfloat16, torch.float16):
        rows = uneven()
        whole = whole_batch(rows, (3, 5), 0, dtype)
        reference = nn.BatchNorm1d(3)
        wanted = part_of(reference(whole.float()).detach(), rows)
        for layer in (hvd.SyncBatchNorm(3), hvd.SyncBatchNorm(3).to(dtype)):
            part = part_of(whole, rows).requires_grad_()
            output = layer(part)
            output.sum().backward()
            assert output.dtype == part.grad.dtype == dtype
            torch.testing.assert_close(output.float(), wanted, rtol=0.02, atol=0.02)
            running = layer.running_var.float()
            torch.testing.assert_close(running, reference.running_var, rtol=0.02, atol=0.02)


def check_channels_last_keeps_its_layout() -> None:
    rows = even()
    whole = whole_batch(rows, (4, 3, 3), 0, torch.float32)
    part = part_of(whole, rows).to(memory_format=torch.channels_last).requires_grad_()
    output = hvd.SyncBatchNorm(4)(part)
    assert output.is_contiguous(memory_format=torch.channels_last)
    close(output, part_of(nn.BatchNorm2d(4)(whole).detach(), rows), 2e-5)


def check_evaluation_asks_nobody() -> None:
    layer, reference = hvd.SyncBatchNorm(3), nn.BatchNorm1d(3)
    compare(layer, reference, even(), (3,), torch.float32, 2e-5)
    layer.eval()
    reference.eval()
    if hvd.rank() == 0:
        part = torch.randn(2, 3)
        close(layer(part), reference(part), 2e-5)
    hvd.barrier()


def check_ranks_have_the_same_statistics_to_the_bit() -> None:
    layer = hvd.SyncBatchNorm(8)
    for step in range(3):
        layer(part_of(whole_batch(uneven(), (8, 3), step, torch.float32), uneven()))
    for buffer in (layer.running_mean, layer.running_var):
        assert all(torch.equal(row, buffer) for row in hvd.allgather(buffer.unsqueeze(0)))


def check_large_means_do_not_spoil_the_variance() -> None:
    rows = even()
    whole = whole_batch(rows, (2, 6), 0, torch.float64) + 1e6
    output = hvd.SyncBatchNorm(2).double()(part_of(whole, rows))
    close(output, part_of(nn.BatchNorm1d(2).double()(whole).detach(), rows), 1e-6)


def check_bad_input_is_refused_everywhere() -> None:
    layer = hvd.SyncBatchNorm(3)
    with pytest.raises(ValueError, match="at least 2D input"):
        layer(torch.ones(3))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        layer(torch.ones(int(hvd.rank() == 0), 3))
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()


def check_a_network_is_converted() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Sequential(nn.BatchNorm1d(4)))
    twin = copy.deepcopy(network)
    converted = hvd.SyncBatchNorm.convert_sync_batchnorm(network)
    assert isinstance(converted[1], hvd.SyncBatchNorm)
    assert isinstance(converted[2][0], hvd.SyncBatchNorm)
    assert converted.state_dict().keys() == twin.state_dict().keys()
    converted.load_state_dict(twin.state_dict())


def check_a_network_with_the_layer_trains_like_on_one_process() -> None:
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    network = hvd.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(reference))
    rows = even()
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.1), network.named_parameters()
    )
    for step in range(5):
        whole = whole_batch(rows, (3,), step, torch.float64)
        for model, chosen, batch in ((reference, plain, whole), (network, optimizer, None)):
            chosen.zero_grad()
            model(part_of(whole, rows) if batch is None else batch).pow(2).mean().backward()
            chosen.step()
    for mine, other in zip(network.parameters(), reference.parameters()):
        close(mine.detach(), other.detach(), 1e-10)
