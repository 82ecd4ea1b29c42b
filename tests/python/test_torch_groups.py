"""Grouped collectives on torch tensors: all members succeed, or all fail with the reason."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import hora.torch as hvd


@pytest.mark.parametrize("size", [1, 2, 3])
def test_torch_groups(
    checked: Callable[..., list[Any]], check: Callable[[], Any], size: int
) -> None:
    """Run every check of this file."""
    checked(check, size)


SHAPES = [(), (0, 3), (7,), (3, 5), (1,), (4099,), (2, 3, 4)]
DTYPES = [torch.float32, torch.float64, torch.int32, torch.float16, torch.bfloat16, torch.uint8]


def made(rank: int, case: object, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return what `rank` sends in a case: whole numbers from 0 to 3."""
    generator = np.random.default_rng([rank, zlib.crc32(repr(case).encode())])
    return torch.from_numpy(np.asarray(generator.integers(0, 4, size=shape))).to(dtype)


def group(rank: int, case: object, dtypes: list[torch.dtype]) -> list[torch.Tensor]:
    """Return a group of tensors of all shapes, and of the dtypes in turn."""
    return [made(rank, (case, i), shape, dtypes[i % len(dtypes)]) for i, shape in enumerate(SHAPES)]


def summed(groups: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    """Return the sum of each member over all ranks."""
    return [
        torch.stack([one.double() for one in member]).sum(0).to(member[0].dtype)
        for member in zip(*groups)
    ]


def part_of(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """Return the rows that `rank` gets when rows are dealt to all ranks."""
    least, more = divmod(tensor.shape[0], hvd.size())
    first = rank * least + min(rank, more)
    return tensor[first : first + least + (1 if rank < more else 0)]


def all_equal(results: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """Check that two groups are the same."""
    assert len(results) == len(expected)
    for i, (result, right) in enumerate(zip(results, expected)):
        assert result.dtype == right.dtype, i
        assert torch.equal(result, right), i


def check_grouped_allreduce_of_one_dtype_and_of_many() -> None:
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    for dtypes in [[dtype] for dtype in DTYPES] + [DTYPES]:
        groups = [group(r, dtypes, dtypes) for r in range(size)]
        sent = [tensor.clone() for tensor in groups[rank]]
        for name in (None, f"g{dtypes}"):
            all_equal(hvd.grouped_allreduce(sent, op=hvd.Sum, name=name), summed(groups))
        all_equal(sent, groups[rank])
        returned = hvd.grouped_allreduce_(sent, op=hvd.Sum)
        assert all(one is other for one, other in zip(returned, sent))
        all_equal(sent, summed(groups))


def check_grouped_allreduce_async() -> None:
    size, rank = hvd.size(), hvd.rank()
    groups = [group(r, "async", DTYPES) for r in range(size)]
    sent = [tensor.clone() for tensor in groups[rank]]
    handles = [hvd.grouped_allreduce_async(sent, op=hvd.Sum, name=f"{i}") for i in range(5)]
    in_place = [tensor.clone() for tensor in groups[rank]]
    handles.append(hvd.grouped_allreduce_async_(in_place, op=hvd.Sum))
    for handle in handles:
        assert isinstance(handle, int)
        all_equal(hvd.synchronize(handle), summed(groups))
        with pytest.raises(ValueError, match="was not created or has been cleared"):
            hvd.poll(handle)
        assert hvd.synchronize(handle) is None
    all_equal(in_place, summed(groups))
    handle = hvd.grouped_allreduce_async(sent)
    while not hvd.poll(handle):
        pass
    assert len(hvd.synchronize(handle)) == len(sent)


def check_grouped_scales_averages_and_compression() -> None:
    size, rank = hvd.size(), hvd.rank()
    groups = [group(r, "scales", [torch.float64]) for r in range(size)]
    sums = summed(groups)
    all_equal(hvd.grouped_allreduce(groups[rank]), [one / size for one in sums])
    results = hvd.grouped_allreduce(
        groups[rank], op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5
    )
    all_equal(results, sums)
    results = hvd.grouped_allreduce(groups[rank], op=hvd.Sum, compression=hvd.Compression.fp16)
    all_equal(results, sums)


def check_grouped_layouts() -> None:
    size, rank = hvd.size(), hvd.rank()
    groups = [group(r, "layout", [torch.float32]) for r in range(size)]
    sent = [*groups[rank][:3], groups[rank][3].t(), *groups[rank][4:]]
    expected = summed(groups)
    expected[3] = expected[3].t()
    all_equal(hvd.grouped_allreduce(sent, op=hvd.Sum), expected)
    hvd.grouped_allreduce_(iter(sent), op=hvd.Sum)
    all_equal(sent, expected)


def check_grouped_allgather() -> None:
    size, rank = hvd.size(), hvd.rank()
    shapes = [[(r + 1, 2), (2 * r,), (3, 1, 2)] for r in range(size)]
    for dtypes in ([torch.float32] * 3, [torch.int64, torch.bool, torch.bfloat16]):
        groups = [
            [made(r, ("gather", i), shape, dtypes[i]) for i, shape in enumerate(shapes[r])]
            for r in range(size)
        ]
        expected = [torch.cat(member) for member in zip(*groups)]
        all_equal(hvd.grouped_allgather(groups[rank]), expected)
        all_equal(hvd.synchronize(hvd.grouped_allgather_async(groups[rank], name="g")), expected)


def check_grouped_reducescatter() -> None:
    size, rank = hvd.size(), hvd.rank()
    shapes = [(size, 2), (1,), (2 * size + 1, 3), (0, 2)]
    groups = [
        [made(r, ("scatter", i), shape, DTYPES[i]) for i, shape in enumerate(shapes)]
        for r in range(size)
    ]
    expected = [part_of(one, rank) for one in summed(groups)]
    all_equal(hvd.grouped_reducescatter(groups[rank], op=hvd.Sum), expected)
    handle = hvd.grouped_reducescatter_async(groups[rank], op=hvd.Sum, name="g")
    all_equal(hvd.synchronize(handle), expected)
    floats = [one.double() for one in groups[rank]]
    results = hvd.grouped_reducescatter(floats, op=hvd.Sum, compression=hvd.Compression.fp16)
    all_equal(results, [one.double() for one in expected])
    averages = [one.double() / size for one in expected]
    all_equal(hvd.grouped_reducescatter(floats), averages)


def check_grouped_gradients() -> None:
    size, rank = hvd.size(), hvd.rank()

    def leaves() -> list[torch.Tensor]:
        return [
            torch.ones(size + 1, 2, requires_grad=True),
            torch.ones(2 * size, requires_grad=True),
            torch.ones(3),
        ]

    mean = sum(range(1, size + 1)) / size
    tensors = leaves()
    for op, gradient in ((hvd.Sum, mean * size), (hvd.Average, mean)):
        outputs = hvd.grouped_allreduce(tensors, op=op)
        sum((output * (rank + 1)).sum() for output in outputs).backward()
        for tensor in tensors[:2]:
            torch.testing.assert_close(tensor.grad, torch.full_like(tensor, gradient))
            tensor.grad = None
        assert tensors[2].grad is None

    tensors = leaves()
    tensors[0] = torch.ones(rank + 1, 2, requires_grad=True)
    outputs = hvd.grouped_allgather(tensors)
    sum((output * (rank + 1)).sum() for output in outputs).backward()
    for tensor in tensors[:2]:
        torch.testing.assert_close(tensor.grad, torch.full_like(tensor, mean))

    for op, factor in ((hvd.Sum, size), (hvd.Average, 1)):
        tensors = leaves()
        outputs = hvd.grouped_reducescatter(tensors, op=op)
        sum((output * (rank + 1)).sum() for output in outputs).backward()
        for tensor in tensors[:2]:
            owners = [torch.full_like(part_of(tensor, r), (r + 1.0) * factor) for r in range(size)]
            assert torch.equal(tensor.grad, torch.cat(owners))


def check_a_failure_of_any_member_is_reported() -> None:
    size, rank = hvd.size(), hvd.rank()
    with pytest.raises(IndexError, match="at least one tensor"):
        hvd.grouped_allreduce([])
    with pytest.raises(ValueError, match=r"needs a torch.Tensor"):
        hvd.grouped_allreduce([torch.ones(1), 3.0])
    with pytest.raises(ValueError, match="complex64 is not supported"):
        hvd.grouped_allreduce([torch.ones(1), torch.ones(1, dtype=torch.complex64)])
    with pytest.raises(ValueError, match="scalar"):
        hvd.grouped_reducescatter([torch.ones(2), torch.tensor(1.0)])
    with pytest.raises(hvd.HorovodInternalError, match="AVERAGE and SUM"):
        hvd.grouped_reducescatter([torch.ones(2)], op=hvd.Max)
    if size == 1:
        return
    for bad in range(3):
        tensors = [torch.ones(4), torch.ones(4), torch.ones(4)]
        tensors[bad] = torch.ones(4 + rank)
        with pytest.raises(hvd.HorovodInternalError, match=f"_{bad + 1}of3'"):
            hvd.grouped_allreduce(tensors, name="bad")
        with pytest.raises(hvd.HorovodInternalError, match="Mismatched ALLREDUCE tensor shapes"):
            hvd.grouped_allreduce_(tensors, name="bad")
        tensors[bad] = torch.ones(4, 1 + rank)
        with pytest.raises(hvd.HorovodInternalError, match="Mismatched ALLGATHER tensor shapes"):
            hvd.grouped_allgather(tensors, name="bad")
    all_equal(hvd.grouped_allreduce([torch.ones(4)] * 3, name="bad"), [torch.ones(4)] * 3)


def check_a_name_in_flight_takes_no_part_of_the_group() -> None:
    # Rank 0 alone would go on; the others hold the first group back until it has asked twice.
    rank = hvd.rank()
    tensors = [torch.ones(3), torch.ones(3)]
    if rank == 0:
        handle = hvd.grouped_allreduce_async(tensors, name="twice")
        if hvd.size() > 1:
            with pytest.raises(ValueError, match="same name as"):
                hvd.grouped_allreduce_async(tensors, name="twice")
    hvd.barrier()
    if rank != 0:
        handle = hvd.grouped_allreduce_async(tensors, name="twice")
    all_equal(hvd.synchronize(handle), tensors)


def check_sparse_allreduce() -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype in (torch.float32, torch.float64, torch.int64):
        for shape in ((6, 4), (5,), (3, 2, 4)):
            dense = [made(r, ("sparse", shape), shape, dtype) for r in range(size)]
            total = torch.stack(dense).sum(0)
            sent = dense[rank].to_sparse()
            average = torch.div(
                total, size, rounding_mode=None if dtype.is_floating_point else "trunc"
            )
            wait = hvd.sparse_allreduce_async(sent, name=f"{dtype}{shape}", op=hvd.Sum)
            result = wait()
            assert result.layout is torch.sparse_coo
            assert not result.is_coalesced() or result._nnz() < 2
            assert result.dtype == dtype
            assert torch.equal(result.to_dense(), total)
            assert torch.equal(hvd.allreduce(sent, op=hvd.Sum).to_dense(), total)
            if dtype.is_floating_point:
                wait = hvd.sparse_allreduce_async(sent, None, hvd.Average)
                torch.testing.assert_close(wait().to_dense(), average)
                scaled = hvd.allreduce(sent, prescale_factor=2.0, postscale_factor=0.5)
                torch.testing.assert_close(scaled.to_dense(), average)
    # Another number of entries on each rank, none on rank 0; rows of dense values; duplicates.
    indices = torch.tensor([[1] * rank])
    rows = torch.sparse_coo_tensor(indices, torch.ones(rank, 3), (4, 3))
    result = hvd.allreduce(rows, op=hvd.Sum).to_dense()
    expected = torch.zeros(4, 3)
    expected[1] = sum(range(size))
    assert torch.equal(result, expected)
    with pytest.raises(ValueError, match=r"needs a tensor of layout torch\.sparse_coo"):
        hvd.sparse_allreduce_async(torch.ones(2), "dense", hvd.Sum)
    with pytest.raises(ValueError, match=r"hvd\.Average or op=hvd\.Sum only"):
        hvd.allreduce(rows, op=hvd.Max)


def check_joined_ranks_give_zeros_to_groups() -> None:
    hvd.init()
    size = hvd.size()
    if hvd.rank() > 0:
        tensors = [torch.ones(3), torch.ones(2, dtype=torch.int32)]
        sums = hvd.grouped_allreduce(tensors, op=hvd.Sum, name="left")
        all_equal(sums, [(size - 1) * one for one in tensors])
        averages = hvd.grouped_allreduce(tensors[:1], name="left")
        torch.testing.assert_close(averages[0], torch.full((3,), (size - 1) / size))
        for call in (hvd.grouped_allgather, hvd.grouped_reducescatter):
            with pytest.raises(hvd.HorovodInternalError, match="is not supported with Join"):
                call(tensors)
        hvd.barrier()
    last = hvd.join()
    assert (last == 0) == (size == 1)
    all_equal(hvd.grouped_allgather([torch.ones(1)]), [torch.ones(size)])


def check_groups_of_process_sets() -> None:
    size = hvd.size()
    if size < 3:
        return  # Such a set would be the global one.
    pair = hvd.add_process_set([0, size - 1])
    if pair.included():
        groups = [group(r, "set", DTYPES) for r in pair.ranks]
        mine = groups[pair.rank()]
        all_equal(hvd.grouped_allreduce(mine, op=hvd.Sum, process_set=pair), summed(groups))
        gathered = hvd.grouped_allgather(mine[1:], process_set=pair)
        all_equal(gathered, [torch.cat(member) for member in list(zip(*groups))[1:]])
        parts = hvd.grouped_reducescatter([torch.ones(4)], op=hvd.Sum, process_set=pair)
        assert torch.equal(parts[0], torch.full((2,), 2.0))
        sparse = torch.eye(3).to_sparse()
        reduced = hvd.sparse_allreduce_async(sparse, None, hvd.Sum, process_set=pair)()
        assert torch.equal(reduced.to_dense(), 2 * torch.eye(3))
        tensors = [torch.ones(2 + r, requires_grad=True) for r in (pair.rank(), 0)]
        outputs = hvd.grouped_allgather(tensors, process_set=pair)
        sum((output * (pair.rank() + 1)).sum() for output in outputs).backward()
        for tensor in tensors:
            assert torch.equal(tensor.grad, torch.full_like(tensor, 1.5))
    else:
        with pytest.raises(ValueError, match="is not a member of the provided process set"):
            hvd.grouped_allreduce([torch.ones(1)], process_set=pair)
    all_equal(hvd.grouped_allreduce([torch.ones(1)], op=hvd.Sum), [torch.full((1,), float(size))])
    assert hvd.remove_process_set(pair)
