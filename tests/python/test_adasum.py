"""Adasum: the allreduce and the optimizer, against the definition in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

import hora.numpy
import hora.torch as hvd

Array = npt.NDArray[np.float64]
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-12}


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_adasum(checked: Callable[..., list[Any]], check: Callable[[], Any], size: int) -> None:
    """Run every check of this file."""
    checked(check, size)


def pair(a: Array, b: Array) -> Array:
    """Return the Adasum of two vectors, as published."""
    together, norm_a, norm_b = a @ b, a @ a, b @ b
    of_a = 1.0 if norm_a == 0 else 1.0 - together / (2 * norm_a)
    of_b = 1.0 if norm_b == 0 else 1.0 - together / (2 * norm_b)
    return np.asarray(of_a * a + of_b * b)


def adasum(vectors: list[Array]) -> Array:
    """Return the Adasum of any number: a tree whose left part is the largest power of two."""
    if len(vectors) == 1:
        return vectors[0]
    left = 1 << ((len(vectors) - 1).bit_length() - 1)
    return pair(adasum(vectors[:left]), adasum(vectors[left:]))


def gradient(rank: int, case: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return what a rank reduces in a case."""
    generator = torch.Generator().manual_seed(1000 * case + rank)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) + 0.3).to(dtype)


def expected(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return the Adasum of tensors of one shape, in float64."""
    vectors = [tensor.double().flatten().numpy() for tensor in tensors]
    return torch.from_numpy(adasum(vectors)).reshape(tensors[0].shape)


def compare(result: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    """Assert that it is the Adasum of the tensors, and the same everywhere to the last bit."""
    want = expected(tensors)
    assert (result.dtype, result.shape) == (tensors[0].dtype, tensors[0].shape)
    scale = max(1e-30, float(want.abs().max())) if want.numel() else 1.0
    error = float((result.double() - want).abs().max()) / scale if want.numel() else 0.0
    assert error < TOLERANCE[result.dtype]
    rows = hvd.allgather(result.reshape(1, -1))
    assert all(torch.equal(row, rows[0]) for row in rows)


def check_every_type_and_shape() -> None:
    hvd.init()
    for dtype in TOLERANCE:
        for case, shape in enumerate([(1,), (), (7,), (3, 5), (hvd.size() + 1,), (4, 1024, 17)]):
            tensors = [gradient(r, case, shape, dtype) for r in range(hvd.size())]
            mine = tensors[hvd.rank()].clone()
            compare(hvd.allreduce(mine, op=hvd.Adasum), tensors)
            assert torch.equal(mine, tensors[hvd.rank()])
    assert hvd.allreduce(torch.ones(0, 3), op=hvd.Adasum).shape == (0, 3)


def check_many_megabytes() -> None:
    tensors = [gradient(r, 9, (1_500_001,), torch.float32) for r in range(hvd.size())]
    mine = tensors[hvd.rank()].clone()
    assert hvd.allreduce_(mine, op=hvd.Adasum) is mine
    compare(mine, tensors)


def check_directions() -> None:
    size, rank = hvd.size(), hvd.rank()
    axis = torch.zeros(size, 4)
    axis[rank] = rank + 1.0
    orthogonal = torch.arange(1.0, size + 1).unsqueeze(1).expand(size, 4)
    assert torch.equal(hvd.allreduce(axis, op=hvd.Adasum), orthogonal)
    same = gradient(0, 1, (100,), torch.float32)
    torch.testing.assert_close(hvd.allreduce(same, op=hvd.Adasum), same)
    assert not hvd.allreduce(torch.zeros(100), op=hvd.Adasum).any()
    for silent in range(size):
        tensors = [gradient(r, 2, (50,), torch.float32) * (r != silent) for r in range(size)]
        compare(hvd.allreduce(tensors[rank], op=hvd.Adasum), tensors)


def check_factors() -> None:
    tensors = [gradient(r, 3, (33,), torch.float64) for r in range(hvd.size())]
    result = hvd.allreduce(
        tensors[hvd.rank()], op=hvd.Adasum, prescale_factor=2.0, postscale_factor=0.25
    )
    torch.testing.assert_close(result, expected(tensors) / 2, rtol=1e-12, atol=0)


def check_async_forms_in_any_order() -> None:
    size, rank = hvd.size(), hvd.rank()
    cases = [
        [gradient(r, 10 + i, (1 + 50 * i,), torch.float32) for r in range(size)] for i in range(6)
    ]
    order = list(range(6)) if rank % 2 == 0 else list(reversed(range(6)))
    handles = {
        i: hvd.allreduce_async(cases[i][rank], name=f"any.{i}", op=hvd.Adasum) for i in order
    }
    for i in reversed(order):
        hvd.poll(handles[i])
    results = {i: hvd.synchronize(handles[i]) for i in reversed(order)}
    for i in range(6):
        compare(results[i], cases[i])
    mine = cases[0][rank].clone()
    assert hvd.synchronize(hvd.allreduce_async_(mine, op=hvd.Adasum)) is mine
    compare(mine, cases[0])


def check_groups_are_combined_one_by_one() -> None:
    size, rank = hvd.size(), hvd.rank()
    kinds = [((5,), torch.float32), ((2, 3), torch.float16), ((1,), torch.float64)]
    groups = [[gradient(r, i, *kind) for i, kind in enumerate(kinds)] for r in range(size)]
    results = hvd.grouped_allreduce(groups[rank], op=hvd.Adasum)
    for result, *tensors in zip(results, *groups):
        compare(result, list(tensors))
    in_place = [tensor.clone() for tensor in groups[rank]]
    handle = hvd.grouped_allreduce_async_(in_place, op=hvd.Adasum)
    assert all(a is b for a, b in zip(hvd.synchronize(handle), in_place))
    for result, *tensors in zip(in_place, *groups):
        compare(result, list(tensors))


def check_arrays_sets_and_gradients() -> None:
    size, rank = hvd.size(), hvd.rank()
    tensors = [gradient(r, 4, (20,), torch.float64) for r in range(size)]
    array = hora.numpy.allreduce(tensors[rank].numpy(), op=hora.numpy.Adasum)
    compare(torch.from_numpy(array), tensors)
    if size > 2:
        some = hvd.add_process_set(range(size - 1))
        if some.included():
            result = hvd.allreduce(tensors[rank], op=hvd.Adasum, process_set=some)
            torch.testing.assert_close(result, expected(tensors[:-1]), rtol=1e-12, atol=1e-14)
        assert hvd.remove_process_set(some)
    leaf = torch.ones(20, dtype=torch.float64, requires_grad=True)
    (hvd.allreduce(leaf, op=hvd.Adasum) * tensors[rank]).sum().backward()
    compare(leaf.grad, tensors)


def check_joined_ranks_give_zeros() -> None:
    size, rank = hvd.size(), hvd.rank()
    tensors = [gradient(r, 5, (40,), torch.float32) for r in range(size)]
    tensors[-1] = torch.zeros(40) if size > 1 else tensors[-1]
    if rank != size - 1 or size == 1:
        result = hvd.allreduce(tensors[rank], name="beside joined", op=hvd.Adasum)
        torch.testing.assert_close(result.double(), expected(tensors), rtol=1e-5, atol=1e-6)
    hvd.join()


def check_codecs_are_for_sums() -> None:
    hvd.init()
    leaf = torch.ones(2, requires_grad=True)
    sgd = torch.optim.SGD([leaf], lr=1.0)
    for compression in (hvd.Compression.bf16, hvd.Compression.int8):
        named: dict[str, Any] = {"op": hvd.Adasum, "compression": compression}
        for call, argument in (
            (hvd.allreduce, leaf.detach()),
            (hvd.grouped_allreduce, [leaf.detach()]),
            (hora.numpy.allreduce, np.ones(2)),
            (hvd.DistributedOptimizer, sgd),
        ):
            with pytest.raises(ValueError, match="is for sums and averages, not for"):
                call(argument, **named)
    both = hvd.allreduce(torch.ones(2), op=hvd.Adasum, compression=hvd.Compression.fp16)
    assert torch.equal(both, torch.ones(2))


def check_mistakes() -> None:
    for dtype in (torch.int32, torch.uint8, torch.bool):
        with pytest.raises(ValueError, match="Adasum is for floating-point numbers"):
            hvd.allreduce(torch.ones(3, dtype=dtype), op=hvd.Adasum)
    with pytest.raises(ValueError, match="sparse"):
        hvd.allreduce(torch.eye(2).to_sparse(), op=hvd.Adasum)
    if hvd.size() > 1:
        op = hvd.Adasum if hvd.rank() == 0 else hvd.Sum
        with pytest.raises(hvd.HorovodInternalError, match="Mismatched reduction operation"):
            hvd.allreduce(torch.ones(3), name="mixed", op=op)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def network() -> nn.Sequential:
    """Return the same network everywhere."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a rank's batch of a step."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    return x, x[:, :2] * 2


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer with a memory."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    """Make a step."""
    x, y = batch(rank, step)
    optimizer.zero_grad()
    (model(x) - y).pow(2).mean().backward()
    optimizer.step()


def check_the_optimizer_combines_steps() -> None:
    size, rank = hvd.size(), hvd.rank()
    model = network()
    optimizer = hvd.DistributedOptimizer(
        optimizer_of(model), named_parameters=model.named_parameters(), op=hvd.Adasum
    )
    # The same by hand: every rank's network and optimizer, all on this rank.
    models = [network() for _ in range(size)]
    optimizers = [optimizer_of(other) for other in models]
    for step in range(5):
        train(model, optimizer, rank, step)
        before = [parameter.detach().clone() for parameter in models[0].parameters()]
        for r in range(size):
            train(models[r], optimizers[r], r, step)
        with torch.no_grad():
            for old, *parameters in zip(before, *(other.parameters() for other in models)):
                new = old + expected([parameter - old for parameter in parameters])
                for parameter in parameters:
                    parameter.copy_(new)
    for mine, other in zip(model.parameters(), models[rank].parameters()):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-11)
        rows = hvd.allgather(mine.detach().reshape(1, -1))
        assert all(torch.equal(row, rows[0]) for row in rows)


def check_the_optimizer_learns_with_compression_and_closures() -> None:
    model = network()
    optimizer = hvd.DistributedOptimizer(
        optimizer_of(model),
        named_parameters=model.named_parameters(),
        op=hvd.Adasum,
        compression=hvd.Compression.fp16,
    )
    losses = []
    for step in range(20):

        def closure(step: int = step) -> torch.Tensor:
            x, y = batch(hvd.rank(), step)
            optimizer.zero_grad()
            loss: torch.Tensor = (model(x) - y).pow(2).mean()
            loss.backward()
            return loss

        losses.append(float(optimizer.step(closure).detach()))
    assert sum(losses[-3:]) < sum(losses[:3])
    if hvd.size() > 1:
        refused = pytest.raises(AssertionError, match="not supported when using Adasum")
        with refused, optimizer.skip_synchronize():
            pass


def check_the_optimizer_takes_the_global_set_only() -> None:
    if hvd.size() == 1:
        return
    alone = hvd.add_process_set([0])
    with pytest.raises(NotImplementedError, match="non-global process sets"):
        hvd.DistributedOptimizer(optimizer_of(network()), op=hvd.Adasum, process_set=alone)
    assert hvd.remove_process_set(alone)


def check_a_failed_step_is_taken_back() -> None:
    if hvd.size() == 1:
        return
    model = network() if hvd.rank() == 0 else network().float()
    optimizer = hvd.DistributedOptimizer(
        optimizer_of(model), named_parameters=model.named_parameters(), op=hvd.Adasum
    )
    before = [parameter.detach().clone() for parameter in model.parameters()]
    model(torch.ones(1, 6, dtype=before[0].dtype)).sum().backward()
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched data types"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
