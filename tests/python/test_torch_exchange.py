"""reducescatter and alltoall on torch tensors: every rank ends with its own right part."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch_inputs import DTYPES, FLOATS, made

import hora.torch as hvd


@pytest.mark.parametrize("size", [1, 2, 3])
def test_torch_exchange(
    checked: Callable[..., list[Any]], check: Callable[[], Any], size: int
) -> None:
    """Run every check of this file."""
    checked(check, size)


def part_of(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """Return the rows that `rank` gets when rows are dealt to all ranks."""
    least, more = divmod(tensor.shape[0], hvd.size())
    first = rank * least + min(rank, more)
    return tensor[first : first + least + (1 if rank < more else 0)]


def total(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return the sum, in the dtype; of booleans whether any is true."""
    dtype = tensors[0].dtype
    wide = functools.reduce(operator.add, [tensor.double() for tensor in tensors])
    return wide.bool() if dtype == torch.bool else wide.to(torch.int64).to(dtype)


def check_reducescatter_of_every_dtype_and_number_of_rows() -> None:
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    for dtype in DTYPES:
        for rows in (0, 1, size - 1, size, size + 1, 23):
            inputs = [made(r, (dtype, rows), (rows, 3), dtype) for r in range(size)]
            result = hvd.reducescatter(inputs[rank], op=hvd.Sum, name=f"{dtype}.{rows}")
            assert result.dtype == dtype
            assert torch.equal(result, part_of(total(inputs), rank)), (dtype, rows)
    vectors = [made(r, "vector", (size * 4099 + 1,), torch.float32) for r in range(size)]
    result = hvd.reducescatter(vectors[rank], op=hvd.Sum)
    assert torch.equal(result, part_of(total(vectors), rank))
    assert result.is_contiguous()


def check_reducescatter_averages_by_default_and_truncates_integers() -> None:
    size, rank = hvd.size(), hvd.rank()
    floats = [made(r, "average", (7, 2), torch.float64) for r in range(size)]
    assert torch.equal(hvd.reducescatter(floats[rank]), part_of(total(floats) / size, rank))
    numbers = [7 * r - 11 for r in range(size)]
    result = hvd.reducescatter(torch.full((size,), numbers[rank]))
    quotient = abs(sum(numbers)) // size * (1 if sum(numbers) >= 0 else -1)
    assert result.tolist() == [quotient]


def check_reducescatter_equals_allreduce_to_the_bit() -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype in FLOATS:
        generator = np.random.default_rng(rank)
        tensor = torch.from_numpy(generator.standard_normal((5 * size + 1, 1001))).to(dtype)
        for op in (hvd.Sum, hvd.Average):
            everything = hvd.allreduce(tensor, op=op)
            assert torch.equal(hvd.reducescatter(tensor, op=op), part_of(everything, rank)), dtype


def check_reducescatter_scales_before_and_after() -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype in (torch.float16, torch.float32, torch.float64, torch.int32):
        inputs = [made(r, ("scale", dtype), (size + 1, 5), dtype) for r in range(size)]
        result = hvd.reducescatter(inputs[rank], op=hvd.Sum, prescale_factor=0.5)
        halves = [tensor.double() * 0.5 for tensor in inputs]
        if dtype == torch.int32:
            halves = [half.trunc() for half in halves]
        expected = functools.reduce(operator.add, halves).to(dtype)
        assert torch.equal(result, part_of(expected, rank)), dtype
        result = hvd.reducescatter(inputs[rank], op=hvd.Sum, postscale_factor=3.0)
        assert torch.equal(result, part_of(total(inputs) * 3, rank)), dtype


def check_reducescatter_async_in_flight_together() -> None:
    size, rank = hvd.size(), hvd.rank()
    inputs = [[made(r, i, (i, 2), torch.float32) for r in range(size)] for i in range(20)]
    handles = [
        hvd.reducescatter_async(one[rank], op=hvd.Sum, name=f"{i}") for i, one in enumerate(inputs)
    ]
    for one, handle in zip(inputs, handles):
        assert torch.equal(hvd.synchronize(handle), part_of(total(one), rank))


def check_reducescatter_compresses_and_takes_any_layout() -> None:
    size, rank = hvd.size(), hvd.rank()
    inputs = [made(r, "layout", (4, 6), torch.float32) for r in range(size)]
    result = hvd.reducescatter(inputs[rank], op=hvd.Sum, compression=hvd.Compression.fp16)
    assert result.dtype == torch.float32
    assert torch.equal(result, part_of(total(inputs), rank))
    result = hvd.reducescatter(inputs[rank].t(), op=hvd.Sum)
    assert torch.equal(result, part_of(total(inputs).t(), rank))


def check_reducescatter_gradients() -> None:
    size, rank = hvd.size(), hvd.rank()
    for op, factor in ((hvd.Sum, size), (hvd.Average, 1)):
        tensor = made(rank, "gradient", (size + 2, 3), torch.float32).requires_grad_()
        output = hvd.reducescatter(tensor, op=op, prescale_factor=2.0)
        output.backward(torch.full_like(output, float(rank + 1)))
        owners = torch.cat([torch.full_like(part_of(tensor, r), r + 1.0) for r in range(size)])
        assert torch.equal(tensor.grad, owners * factor * 2)


def check_reducescatter_errors() -> None:
    size, rank = hvd.size(), hvd.rank()
    with pytest.raises(ValueError, match="does not support scalar inputs"):
        hvd.reducescatter(torch.tensor(1.0))
    for op in (hvd.Adasum, hvd.Min, hvd.Max, hvd.Product):
        with pytest.raises(hvd.HorovodInternalError, match="only supports AVERAGE and SUM"):
            hvd.reducescatter(torch.ones(4), op=op, name=f"op{op}")
    if size == 1:
        return
    shape = (4, 3) if rank == 0 else (4, 2)
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched REDUCESCATTER tensor shapes"):
        hvd.reducescatter(torch.ones(shape), name="shape")
    dtype = torch.float32 if rank == 0 else torch.int64
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched data types"):
        hvd.reducescatter(torch.ones(4, dtype=dtype), name="dtype")
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched prescale and/or postscale"):
        hvd.reducescatter(torch.ones(4), name="scale", prescale_factor=1.0 + rank)
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched reduction operation"):
        hvd.reducescatter(torch.ones(4), name="op", op=hvd.Sum if rank == 0 else hvd.Average)


def rows_between(giver: int, taker: int, most: int) -> int:
    """Return how many rows `giver` has for `taker`."""
    return (giver * 5 + taker * 3 + 1) % most


def check_alltoall_of_every_dtype() -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype in DTYPES:
        for most in (1, 2, 6):
            splits = [[rows_between(g, t, most) for t in range(size)] for g in range(size)]
            inputs = [made(g, (dtype, most), (sum(splits[g]), 2, 3), dtype) for g in range(size)]
            blocks = [tensor.split(splits[g]) for g, tensor in enumerate(inputs)]
            received = [splits[g][rank] for g in range(size)]
            result, counts = hvd.alltoall(inputs[rank], splits[rank], name=f"{dtype}.{most}")
            assert result.dtype == dtype
            assert torch.equal(result, torch.cat([blocks[g][rank] for g in range(size)]))
            assert counts.dtype == torch.int32
            assert counts.tolist() == received


def check_alltoall_of_large_and_uneven_blocks() -> None:
    size, rank = hvd.size(), hvd.rank()
    # Everybody gives almost all to rank 0.
    splits = [70000 + g if t == 0 else g for g in range(size) for t in range(size)]
    splits = [splits[g * size : (g + 1) * size] for g in range(size)]
    inputs = [torch.arange(sum(splits[g])) * (g + 1) for g in range(size)]
    result, counts = hvd.alltoall(inputs[rank], torch.tensor(splits[rank], dtype=torch.int32))
    blocks = [tensor.split(splits[g]) for g, tensor in enumerate(inputs)]
    assert torch.equal(result, torch.cat([blocks[g][rank] for g in range(size)]))
    assert counts.tolist() == [splits[g][rank] for g in range(size)]


def check_alltoall_without_splits_returns_the_output_alone() -> None:
    size, rank = hvd.size(), hvd.rank()
    result = hvd.alltoall(torch.arange(size * 2) + 100 * rank)
    assert result.tolist() == [100 * g + 2 * rank + i for g in range(size) for i in (0, 1)]
    output, received = hvd.synchronize(hvd.alltoall_async(torch.ones(size * 3, 2)))
    assert output.shape == (size * 3, 2)
    assert received.tolist() == [3] * size
    assert hvd.alltoall(torch.empty(0, 4)).shape == (0, 4)
    with pytest.raises(ValueError, match="was not created or has been cleared"):
        hvd.poll(-1)


def check_alltoall_may_keep_rows_back() -> None:
    size, rank = hvd.size(), hvd.rank()
    tensor = torch.arange(3.0 * size).reshape(-1, 1) + rank
    result, counts = hvd.alltoall(tensor, np.array([2] * size))
    expected = [2 * rank + i + g for g in range(size) for i in (0, 1)]
    assert result.flatten().tolist() == expected
    assert counts.tolist() == [2] * size


def check_alltoall_gradients() -> None:
    size, rank = hvd.size(), hvd.rank()
    splits = [rows_between(rank, t, 4) for t in range(size)]
    tensor = torch.zeros(sum(splits) + 2, 3, requires_grad=True)
    output, counts = hvd.alltoall(tensor, splits)
    assert not counts.requires_grad
    output.backward(torch.full_like(output, float(rank + 1)))
    rows = [t + 1.0 for t in range(size) for _ in range(splits[t])] + [0.0, 0.0]
    assert torch.equal(tensor.grad, torch.tensor(rows).reshape(-1, 1).expand(-1, 3))


def check_alltoall_errors() -> None:
    size, rank = hvd.size(), hvd.rank()
    tensor = torch.ones(4 * size, 2)
    with pytest.raises(ValueError, match="Sum of splits entries is greater"):
        hvd.alltoall(tensor, [5] * size)
    with pytest.raises(ValueError, match="Number of entries in splits does not equal"):
        hvd.alltoall(tensor, [1] * (size + 1))
    with pytest.raises(ValueError, match="an entry is negative"):
        hvd.alltoall(tensor, [-1] * size)
    with pytest.raises(ValueError, match="32-bit integer elements"):
        hvd.alltoall(tensor, torch.ones(size))
    with pytest.raises(ValueError, match="32-bit integer elements"):
        hvd.alltoall(tensor, torch.ones(size, dtype=torch.int64))
    with pytest.raises(ValueError, match="integers"):
        hvd.alltoall(tensor, [1.5] * size)
    with pytest.raises(ValueError, match="1D splits tensor"):
        hvd.alltoall(tensor, torch.ones(size, 1, dtype=torch.int32))
    with pytest.raises(ValueError, match="scalar"):
        hvd.alltoall(torch.tensor(1.0), [0] * size)
    if size == 1:
        return
    with pytest.raises(ValueError, match="cannot be split evenly"):
        hvd.alltoall(torch.ones(size + 1))
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched ALLTOALL tensor shapes"):
        hvd.alltoall(torch.ones(size, 2 + rank), name="shape")
    with pytest.raises(hvd.HorovodInternalError, match="of rank 2, but another"):
        hvd.alltoall(torch.ones(size, 2) if rank == 0 else torch.ones(size), name="dimensions")
