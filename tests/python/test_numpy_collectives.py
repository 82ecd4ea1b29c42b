"""Collectives on NumPy arrays, in processes that never import torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hora.numpy as hvd

DTYPES = ["uint8", "int8", "int16", "uint16", "int32", "int64"]
DTYPES += ["float16", "float32", "float64", "bool"]


@pytest.mark.parametrize("size", [1, 3])
def test_numpy_collectives(
    checked: Callable[..., list[Any]], check: Callable[[], Any], size: int
) -> None:
    """Run every check of this file."""
    checked(check, size)


def made(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return what `rank` sends: 0 or 1, and the rank in the first place."""
    values = np.asarray(np.random.default_rng(rank).integers(0, 2, size=shape)).astype(dtype)
    if values.size:
        values.flat[0] = rank
    return values


def check_allreduce_of_every_dtype() -> None:
    hvd.init()
    for dtype in DTYPES:
        inputs = [made(r, (4, 9), dtype) for r in range(hvd.size())]
        mine = inputs[hvd.rank()]
        total = np.sum(inputs, axis=0).astype(dtype)
        result = hvd.allreduce(mine, op=hvd.Sum, name=dtype)
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, total)
        np.testing.assert_array_equal(hvd.allreduce(mine, op=hvd.Min), np.min(inputs, axis=0))
        np.testing.assert_array_equal(hvd.allreduce(mine, op=hvd.Max), np.max(inputs, axis=0))


def check_any_layout_works() -> None:
    inputs = [made(r, (6, 8), "float32") for r in range(hvd.size())]
    total = np.sum(inputs, axis=0)
    mine = inputs[hvd.rank()]
    packed = np.zeros(6 * 8 * 4 + 1, np.uint8)
    unaligned = packed[1:].view(np.float32).reshape(6, 8)
    unaligned[...] = mine
    wide = np.zeros((12, 16), np.float32)
    wide[::2, ::2] = mine
    for array in (np.asfortranarray(mine), unaligned, wide[::2, ::2], mine.tolist()):
        np.testing.assert_array_equal(hvd.allreduce(array, op=hvd.Sum), total)
    for array in (np.asfortranarray(mine), unaligned, wide[::2, ::2]):
        assert hvd.allreduce_(array, op=hvd.Sum) is array
        np.testing.assert_array_equal(array, total)
    frozen = mine.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(hvd.allreduce(frozen, op=hvd.Sum), total)
    with pytest.raises(ValueError, match="read-only"):
        hvd.allreduce_(frozen)
    with pytest.raises(ValueError, match="byte order"):
        hvd.allreduce(mine.astype(">f4"))
    with pytest.raises(ValueError, match="complex64 is not supported"):
        hvd.allreduce(mine.astype(np.complex64))
    assert hvd.allreduce(2.5).shape == ()
    assert hvd.allreduce(2.5) == 2.5
    assert hvd.allreduce(np.empty((0, 3))).shape == (0, 3)


def check_allgather_and_broadcast() -> None:
    for dtype in DTYPES:
        inputs = [made(r, (r, 5), dtype) for r in range(hvd.size())]
        result = hvd.allgather(inputs[hvd.rank()])
        np.testing.assert_array_equal(result, np.concatenate(inputs))
        assert result.flags.writeable
        inputs = [made(r, (5, 2), dtype) for r in range(hvd.size())]
        for root in range(hvd.size()):
            np.testing.assert_array_equal(hvd.broadcast(inputs[hvd.rank()], root), inputs[root])
    array = np.asfortranarray(inputs[hvd.rank()])
    assert hvd.broadcast_(array, 0) is array
    np.testing.assert_array_equal(array, inputs[0])


def check_reducescatter_and_alltoall() -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype in DTYPES:
        inputs = [made(r, (2 * size + 1, 3), dtype) for r in range(size)]
        result = hvd.reducescatter(inputs[rank], op=hvd.Sum)
        assert result.dtype == dtype
        first = 2 * rank + min(rank, 1)
        total = np.sum(inputs, axis=0).astype(dtype)
        np.testing.assert_array_equal(result, total[first : first + (3 if rank == 0 else 2)])
        result = hvd.alltoall(inputs[rank][1:])
        blocks = [tensor[1 + 2 * rank : 3 + 2 * rank] for tensor in inputs]
        np.testing.assert_array_equal(result, np.concatenate(blocks))
        splits = [t + rank for t in range(size)]
        array = made(rank, (sum(splits), 2), dtype)
        output, received = hvd.alltoall(array, np.array(splits))
        assert received.dtype == np.int32
        assert received.tolist() == [rank + giver for giver in range(size)]
        assert output.shape == (sum(received), 2)
    handle = hvd.reducescatter_async(np.full((size, 2), rank), op=hvd.Sum)
    np.testing.assert_array_equal(hvd.synchronize(handle), [[sum(range(size))] * 2])
    output, received = hvd.synchronize(hvd.alltoall_async(np.arange(size)))
    np.testing.assert_array_equal(output, [rank] * size)
    assert received.tolist() == [1] * size
    assert hvd.reducescatter(np.full(size, 3.0), compression=hvd.Compression.fp16).dtype == float
    with pytest.raises(ValueError, match="scalar"):
        hvd.reducescatter(1.0)
    with pytest.raises(ValueError, match="32-bit integer"):
        hvd.alltoall(np.ones(size), [0.5] * size)
    with pytest.raises(ValueError, match="1D splits"):
        hvd.alltoall(np.ones(size), [[1] * size])
    with pytest.raises(hvd.HorovodInternalError, match="AVERAGE and SUM"):
        hvd.reducescatter(np.ones(size), op=hvd.Max)


def check_groups() -> None:
    size, rank = hvd.size(), hvd.rank()
    shapes = [(), (3, 2), (0,), (size + 1, 2)]
    dtypes = ["float32", "int64", "float16", "bool"]
    groups = [[made(r, one, d) for one, d in zip(shapes, dtypes)] for r in range(size)]
    totals = [np.sum(member, axis=0).astype(d) for member, d in zip(zip(*groups), dtypes)]
    mine = [array.copy() for array in groups[rank]]
    handle = hvd.grouped_allreduce_async(mine, op=hvd.Sum, name="g")
    for results in (
        hvd.grouped_allreduce(mine, op=hvd.Sum),
        hvd.synchronize(handle),
        hvd.grouped_allreduce_(mine, op=hvd.Sum),
    ):
        for result, total in zip(results, totals):
            assert result.dtype == total.dtype
            np.testing.assert_array_equal(result, total)
    gathered = hvd.grouped_allgather(groups[rank][1:])
    for result, member in zip(gathered, list(zip(*groups))[1:]):
        np.testing.assert_array_equal(result, np.concatenate(member))
    parts = hvd.grouped_reducescatter([np.full((size, 2), rank), np.ones(size)], op=hvd.Sum)
    np.testing.assert_array_equal(parts[0], [[sum(range(size))] * 2])
    np.testing.assert_array_equal(parts[1], [size])
    with pytest.raises(IndexError, match="at least one tensor"):
        hvd.grouped_allreduce([])
    if size > 1:
        with pytest.raises(hvd.HorovodInternalError, match="_1of2"):
            hvd.grouped_allreduce([np.ones(1 + rank), np.ones(2)])


def check_handles() -> None:
    one = np.ones(3)
    first = hvd.allreduce_async(one, op=hvd.Sum, name="h")
    second = hvd.allgather_async(one, name="h")
    third = hvd.broadcast_async_(one.copy(), 0, name="h")
    fourth = hvd.allreduce_async_(one.copy(), op=hvd.Sum, name="h2")
    np.testing.assert_array_equal(hvd.synchronize(fourth), one * hvd.size())
    np.testing.assert_array_equal(hvd.synchronize(third), one)
    assert hvd.synchronize(second).shape == (3 * hvd.size(),)
    np.testing.assert_array_equal(hvd.synchronize(first), one * hvd.size())
    with pytest.raises(ValueError, match="was not created or has been cleared"):
        hvd.poll(first)


def check_parameters_objects_and_compression() -> None:
    params = {"b": np.full(3, hvd.rank()), "a": np.full((2, 2), hvd.rank() + 0.5)}
    hvd.broadcast_parameters(params, root_rank=0)
    assert (params["a"] == 0.5).all()
    assert (params["b"] == 0).all()
    assert hvd.broadcast_object([1, 2] if hvd.rank() == 0 else None) == [1, 2]
    assert hvd.allgather_object({hvd.rank()}) == [{r} for r in range(hvd.size())]
    result = hvd.allreduce(np.full(4, 0.5), compression=hvd.Compression.fp16)
    assert result.dtype == np.float64
    assert (result == 0.5).all()
    hvd.barrier()


def check_torch_is_not_imported() -> None:
    assert "torch" not in sys.modules
