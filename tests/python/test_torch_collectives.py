"""Collectives on torch tensors: every rank ends with the right bytes, whatever the tensors are.

Inputs are made from the rank and the case alone, so each rank can compute what all others sent.
Where values are small integers, sums are exact in every dtype and in every order, and are compared
exactly.
"""

from __future__ import annotations

import functools
import hashlib
import operator
import random
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch_inputs import DTYPES, INTEGERS, made

import hora.torch as hvd

OPS = {
    "average": hvd.Average,
    "sum": hvd.Sum,
    "min": hvd.Min,
    "max": hvd.Max,
    "product": hvd.Product,
}


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_torch_collectives(
    checked: Callable[..., list[Any]], check: Callable[[], Any], size: int
) -> None:
    """Run every check of this file."""
    checked(check, size)


def expected(op: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return the exact result of reducing small integers."""
    dtype = tensors[0].dtype
    wide = torch.stack([tensor.double() for tensor in tensors])
    if dtype == torch.bool:
        return wide.amin(0).bool() if op in ("min", "product") else wide.amax(0).bool()
    result = {
        "sum": lambda: wide.sum(0),
        "average": lambda: wide.sum(0),
        "min": lambda: wide.amin(0),
        "max": lambda: wide.amax(0),
        "product": lambda: wide.prod(0),
    }[op]()
    if op != "average":
        return result.to(torch.int64).to(dtype) if dtype in INTEGERS else result.to(dtype)
    if dtype in INTEGERS:
        return torch.div(result, len(tensors), rounding_mode="trunc").to(dtype)
    if dtype == torch.float64:
        return result / len(tensors)
    return (result.float() / len(tensors)).to(dtype)


def all_equal(tensors: list[torch.Tensor]) -> None:
    """Assert that all ranks hold the same bytes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    digests = hvd.allgather_object(digest.hexdigest())
    assert len(set(digests)) == 1, digests


def raises(kind: type[Exception], words: str, call: Callable[[], Any]) -> Any:
    """Assert that a call raises, with these words in its message; return what was raised."""
    with pytest.raises(kind, match=f"(?i){re.escape(words)}") as caught:
        call()
    return caught.value


def check_init_tells_rank_and_size() -> None:
    assert not hvd.is_initialized()
    for query in (hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank):
        raises(ValueError, "not been initialized; use hvd.init()", query)
    raises(
        hvd.HoraInternalError,
        "not been initialized; use hvd.init()",
        lambda: hvd.allreduce(torch.ones(1)),
    )
    hvd.init()
    assert hvd.is_initialized()
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
    assert (hvd.local_rank(), hvd.local_size()) == (hvd.rank(), hvd.size())
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.is_homogeneous()


def check_allreduce_of_every_dtype_and_op() -> None:
    results = []
    for dtype in DTYPES:
        for op, number in OPS.items():
            inputs = [made(r, (dtype, op), (5, 7), dtype) for r in range(hvd.size())]
            result = hvd.allreduce(inputs[hvd.rank()], op=number, name=f"{dtype}.{op}")
            assert result.dtype == dtype
            assert torch.equal(result, expected(op, inputs)), (dtype, op)
            results.append(result)
    all_equal(results)


def check_allreduce_of_every_length() -> None:
    size = hvd.size()
    for count in (0, 1, size - 1, size, size + 1, 1001, 65537, (1 << 20) + 3):
        inputs = [made(r, count, (count,), torch.float32) for r in range(size)]
        result = hvd.allreduce(inputs[hvd.rank()], op=hvd.Sum)
        assert torch.equal(result, expected("sum", inputs)), count
    scalar = hvd.allreduce(torch.tensor(float(hvd.rank())), op=hvd.Sum)
    assert scalar.shape == ()
    assert scalar.item() == sum(range(size))


def check_allreduce_of_random_floats_is_equal_everywhere() -> None:
    results = []
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
        rows = [
            torch.from_numpy(np.random.default_rng(r).standard_normal(30011)).to(dtype)
            for r in range(hvd.size())
        ]
        result = hvd.allreduce(rows[hvd.rank()])
        torch.testing.assert_close(
            result, torch.stack(rows).mean(0), rtol=tolerance, atol=tolerance
        )
        results.append(result)
    all_equal(results)


def check_scale_factors_round_each_element() -> None:
    for dtype in (torch.float16, torch.float32, torch.float64, torch.int32):
        inputs = [made(r, ("scale", dtype), (50,), dtype) for r in range(hvd.size())]
        mine = inputs[hvd.rank()]
        result = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5)
        scaled = [
            (tensor.double() * 0.5).trunc() if dtype == torch.int32 else tensor.double() * 0.5
            for tensor in inputs
        ]
        total = functools.reduce(operator.add, scaled)
        assert torch.equal(result, total.to(dtype)), dtype
        result = hvd.allreduce(mine, op=hvd.Sum, postscale_factor=3.0)
        total = functools.reduce(operator.add, [tensor.double() for tensor in inputs])
        assert torch.equal(result, (total * 3).to(dtype)), dtype


def check_float16_average_does_not_overflow() -> None:
    result = hvd.allreduce(torch.full((100,), 30000.0, dtype=torch.float16))
    assert torch.equal(result, torch.full((100,), 30000.0, dtype=torch.float16))


def check_integer_average_is_exact() -> None:
    size = hvd.size()
    values = [[(1 << 59) + 1 + r, -(1 << 59) - 1 - r, -1, 7 * r - 11, 5] for r in range(size)]
    result = hvd.allreduce(torch.tensor(values[hvd.rank()]))
    for i, value in enumerate(result.tolist()):
        total = sum(row[i] for row in values)
        assert value == (abs(total) // size) * (1 if total >= 0 else -1)


def check_in_place_allreduce_returns_its_tensor() -> None:
    inputs = [made(r, "in place", (33,), torch.float32) for r in range(hvd.size())]
    tensor = inputs[hvd.rank()].clone()
    assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
    assert torch.equal(tensor, expected("sum", inputs))
    leaf = torch.nn.Parameter(inputs[hvd.rank()].clone())
    hvd.allreduce_(leaf, op=hvd.Sum)
    assert torch.equal(leaf.detach(), expected("sum", inputs))


def layouts(rank: int) -> dict[str, torch.Tensor]:
    """Return tensors that are not contiguous in various ways."""
    image = made(rank, "image", (2, 3, 4, 5), torch.float32)
    unaligned = torch.frombuffer(bytearray(41), dtype=torch.float32, offset=1, count=10)
    unaligned.copy_(made(rank, "u", (10,), torch.float32))
    return {
        "transposed": made(rank, "t", (6, 5), torch.float32).t(),
        "channels last": image.contiguous(memory_format=torch.channels_last),
        "strided": made(rank, "s", (20,), torch.float32)[::3],
        "window": made(rank, "w", (9, 9), torch.float32)[2:7, 3:5],
        "negated": torch._neg_view(made(rank, "n", (7,), torch.float32)),
        "unaligned": unaligned,
    }


def check_any_dense_layout_works() -> None:
    everyone = [layouts(r) for r in range(hvd.size())]
    for name, mine in everyone[hvd.rank()].items():
        inputs = [tensors[name].clone() for tensors in everyone]
        wanted = expected("sum", inputs)
        assert torch.equal(hvd.allreduce(mine, op=hvd.Sum), wanted), name
        gathered = hvd.allgather(mine)
        assert torch.equal(gathered, torch.cat([tensor.contiguous() for tensor in inputs])), name
        assert torch.equal(hvd.broadcast(mine, hvd.size() - 1), inputs[-1]), name
        hvd.synchronize(hvd.allreduce_async_(mine, op=hvd.Sum))
        assert torch.equal(mine, wanted), name
    row = made(hvd.rank(), "row", (1, 4), torch.float32).expand(3, 4)
    assert hvd.allreduce(row, op=hvd.Sum).shape == (3, 4)
    raises(ValueError, "expanded", lambda: hvd.allreduce_(row))


def check_what_has_no_host_memory_is_refused() -> None:
    refused = {
        "Tensor type torch.complex64 is not supported.": torch.zeros(2, dtype=torch.complex64),
        "meta": torch.zeros(2, device="meta"),
        "float8": torch.zeros(2, dtype=torch.float8_e4m3fn),
    }
    for words, tensor in refused.items():
        for call in (hvd.allreduce, hvd.allgather_async, hvd.allreduce_async_):
            raises(ValueError, words, lambda call=call, tensor=tensor: call(tensor))
        raises(ValueError, words, lambda tensor=tensor: hvd.broadcast_(tensor, 0))
    sparse = torch.eye(2).to_sparse()
    for call in (hvd.allgather, hvd.allgather_async, hvd.allreduce_, hvd.allreduce_async):
        raises(ValueError, "to_dense", lambda call=call: call(sparse))
    raises(ValueError, "to_dense", lambda: hvd.broadcast_(sparse, 0))
    raises(ValueError, "root rank 99", lambda: hvd.broadcast(torch.zeros(1), 99))
    raises(ValueError, "op must be", lambda: hvd.allreduce(torch.zeros(1), op=17))
    raises(
        ValueError,
        "The op parameter supersedes average",
        lambda: hvd.allreduce(torch.zeros(1), average=True, op=hvd.Sum),
    )


def check_allgather_of_every_dtype() -> None:
    size = hvd.size()
    for dtype in DTYPES:
        inputs = [made(r, ("gather", dtype), (r % 3, 2, 3), dtype) for r in range(size)]
        result = hvd.allgather(inputs[hvd.rank()], name=f"gather.{dtype}")
        assert torch.equal(result, torch.cat(inputs)), dtype
        result.add_(1) if dtype != torch.bool else result.logical_not_()
    nothing = hvd.allgather(torch.empty(0, 3))
    assert nothing.shape == (0, 3)
    large = hvd.allgather(torch.full((100_003 + hvd.rank(),), hvd.rank()))
    assert torch.equal(large, torch.cat([torch.full((100_003 + r,), r) for r in range(size)]))


def check_gathered_memory_outlives_everything_else() -> None:
    slices = [hvd.allgather(torch.full((1000,), float(i)))[10:20] for i in range(50)]
    for i, part in enumerate(slices):
        assert part.eq(i).all()


def check_broadcast_of_every_dtype_and_root() -> None:
    for dtype in DTYPES:
        for root in range(hvd.size()):
            inputs = [made(r, (dtype, root), (3, 11), dtype) for r in range(hvd.size())]
            mine = inputs[hvd.rank()].clone()
            assert torch.equal(hvd.broadcast(mine, root), inputs[root]), (dtype, root)
            assert torch.equal(mine, inputs[hvd.rank()])
            assert hvd.broadcast_(mine, root) is mine
            assert torch.equal(mine, inputs[root])
    big = torch.full((1_000_003,), float(hvd.rank()))
    assert hvd.broadcast(big, hvd.size() - 1).eq(hvd.size() - 1).all()


def check_many_in_flight_in_any_order_of_waiting() -> None:
    handles = []
    for i in range(60):
        mine = torch.full((i,), float(hvd.rank() + i))
        start = (hvd.allreduce_async, hvd.allreduce_async_)[i % 2]
        handles.append((i, start(mine, op=hvd.Sum, name=f"many.{i}")))
        handles.append((i, hvd.broadcast_async(mine.clone(), 0, name=f"many.{i}")))
        handles.append((i, hvd.allgather_async(mine, name=f"many.{i}")))
        del mine
    random.Random(hvd.rank()).shuffle(handles)
    assert len({handle for _, handle in handles}) == len(handles)
    assert all(handle > 0 for _, handle in handles)
    shapes = sorted(tuple(hvd.synchronize(handle).shape) for i, handle in handles)
    wanted = [(i,) for i in range(60)] * 2 + [(i * hvd.size(),) for i in range(60)]
    assert shapes == sorted(wanted)


def check_a_thousand_names_in_random_order() -> None:
    order = list(range(1000))
    random.Random(100 + hvd.rank()).shuffle(order)
    tensors = [torch.full((1 + i % 257,), float(i * (hvd.rank() + 1))) for i in range(1000)]
    handles = {i: hvd.allreduce_async_(tensors[i], op=hvd.Sum, name=f"order.{i}") for i in order}
    for i in range(1000):
        hvd.synchronize(handles[i])
    factor = sum(range(1, hvd.size() + 1))
    assert all(tensor.eq(i * factor).all() for i, tensor in enumerate(tensors))
    all_equal(tensors)


def check_poll_becomes_true() -> None:
    handle = hvd.allreduce_async(torch.ones(10), name="polled")
    while not hvd.poll(handle):
        pass
    assert hvd.synchronize(handle).eq(1).all()
    raises(
        ValueError,
        f"Handle {handle} was not created or has been cleared.",
        lambda: hvd.poll(handle),
    )
    assert hvd.synchronize(handle) is None


def check_a_name_in_flight_is_refused() -> None:
    if hvd.size() == 1:
        return
    if hvd.rank() == 0:
        first = hvd.allreduce_async(torch.ones(4), name="twice")
        raises(ValueError, "same name", lambda: hvd.allreduce_async(torch.ones(4), name="twice"))
        hvd.barrier()
    else:
        hvd.barrier()
        first = hvd.allreduce_async(torch.ones(4), name="twice")
    assert hvd.synchronize(first).eq(1).all()


def check_disagreement_is_an_error_on_all_ranks() -> None:
    if hvd.size() == 1:
        return
    odd = hvd.rank() == hvd.size() - 1
    shape = torch.ones(17 + odd, 17)
    dtype = torch.ones(5, dtype=torch.int32 if odd else torch.float32)
    ones = torch.ones(4)
    cases: dict[str, Callable[[str], Any]] = {
        "tensor shapes": lambda name: hvd.allreduce(shape, name=name),
        "data types": lambda name: hvd.allreduce(dtype, name=name),
        "reduction operation": lambda name: hvd.allreduce(
            ones, op=hvd.Sum if odd else hvd.Max, name=name
        ),
        "scale factors": lambda name: hvd.allreduce(ones, prescale_factor=1.0 + odd, name=name),
        "root ranks": lambda name: hvd.broadcast(ones, int(odd), name=name),
        "broadcast tensor shapes": lambda name: hvd.broadcast(shape, 0, name=name),
        "allgather tensor shapes": lambda name: hvd.allgather(torch.ones((2, 5 + odd)), name=name),
    }
    for words, call in cases.items():
        error = raises(hvd.HorovodInternalError, words, functools.partial(call, words))
        assert error.kind == "mismatch"
        assert hvd.allreduce(ones, name="after").eq(1).all()
    raises(
        hvd.HorovodInternalError,
        "rank",
        lambda: hvd.allgather(torch.ones((2, 3) if odd else (2, 3, 4)), name="ndim"),
    )
    raises(hvd.HorovodInternalError, "rank-zero", lambda: hvd.allgather(torch.ones(()), name="0d"))
    handle = hvd.allreduce_async_(torch.ones(3 + odd), name="async")
    raises(hvd.HorovodInternalError, "Mismatched", lambda: hvd.synchronize(handle))
    raises(ValueError, "cleared", lambda: hvd.poll(handle))
    assert hvd.allreduce(ones).eq(1).all()


def check_barrier_holds_everyone() -> None:
    pending = hvd.allreduce_async(torch.ones(3), name="across the barrier")
    for _ in range(20):
        hvd.barrier()
    assert hvd.synchronize(pending).eq(1).all()


def check_unnamed_calls_are_counted_by_kind() -> None:
    def number_of(prefix: str, call: Callable[[torch.Tensor], Any]) -> int:
        """Return the number of an unnamed call, which the error of a mismatch tells."""
        error = raises(hvd.HoraInternalError, prefix, lambda: call(torch.ones(2, 2 + hvd.rank())))
        found = re.search(re.escape(prefix) + r"(\d+)", str(error))
        assert found is not None, error
        return int(found.group(1))

    if hvd.size() == 1:
        return
    first = number_of("allreduce.noname.", hvd.allreduce)
    gathered = number_of("allgather.noname.", hvd.allgather)
    hvd.allreduce(torch.ones(1))
    hvd.allreduce(torch.ones(1), name="x")
    assert number_of("allreduce.noname.", hvd.allreduce) == first + 2
    assert number_of("allgather.noname.", hvd.allgather) == gathered + 1
    raises(
        hvd.HoraInternalError,
        "broadcast.x",
        lambda: hvd.broadcast(torch.ones(2), int(hvd.rank() == 0), name="x"),
    )


def check_threads_may_call_at_once() -> None:
    errors: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for i in range(50):
                value = torch.full((200,), float(i + thread))
                result = hvd.allreduce(value, name=f"thread.{thread}")
                assert result.eq(i + thread).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def check_compression_fp16() -> None:
    inputs = [made(r, "fp16", (40,), torch.float64) for r in range(hvd.size())]
    result = hvd.allreduce(inputs[hvd.rank()], op=hvd.Sum, compression=hvd.Compression.fp16)
    assert result.dtype == torch.float64
    assert torch.equal(result, expected("sum", inputs))
    integers = hvd.allreduce(torch.ones(3, dtype=torch.int64), compression=hvd.Compression.fp16)
    assert integers.dtype == torch.int64


def check_gradients_are_those_of_horovod() -> None:
    size, rank = hvd.size(), hvd.rank()
    for op, factor in ((hvd.Sum, float(size)), (hvd.Average, 1.0)):
        x = torch.full((3, 4), float(rank), requires_grad=True)
        hvd.allreduce(x, op=op).sum().backward()
        assert x.grad is not None
        assert x.grad.eq(factor).all()
    x = torch.full((rank + 1, 2), float(rank), requires_grad=True)
    weights = torch.arange(float(sum(range(1, size + 1)))).unsqueeze(1)
    (hvd.allgather(x) * weights).sum().backward()
    first = sum(range(1, rank + 1))
    assert torch.equal(x.grad, weights[first : first + rank + 1].expand(-1, 2))
    root = size - 1
    x = torch.ones(5, requires_grad=True)
    (hvd.broadcast(x, root) * (rank + 1)).sum().backward()
    average = sum(range(1, size + 1)) / size
    torch.testing.assert_close(x.grad, torch.full((5,), average if rank == root else 0.0))
    x = torch.ones(2, requires_grad=True)
    (gradient,) = torch.autograd.grad(hvd.allreduce(x**3).sum(), x, create_graph=True)
    gradient.sum().backward()
    assert x.grad.eq(6).all()


def check_in_place_writes_are_seen_by_autograd() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    z = y * y
    hvd.allreduce_(y)
    raises(RuntimeError, "modified by an inplace operation", lambda: z.sum().backward())


def check_objects_travel() -> None:
    rank, size = hvd.rank(), hvd.size()
    sent = {"epoch": 3, "names": ["a", "b"], "weights": torch.arange(4)}
    for root in range(size):
        received = hvd.broadcast_object(sent if rank == root else None, root)
        assert received["epoch"] == 3
        assert torch.equal(received["weights"], torch.arange(4))
    assert hvd.broadcast_object(None) is None
    assert (
        hvd.broadcast_object(b"x" * 3_000_000 if rank == 0 else 7, name="big") == b"x" * 3_000_000
    )
    assert hvd.allgather_object("r" * rank) == ["r" * r for r in range(size)]


def check_an_object_that_cannot_be_pickled_fails_everywhere() -> None:
    thing = threading.Lock() if hvd.rank() == 0 else None
    kind: type[Exception] = TypeError if hvd.rank() == 0 else hvd.HoraInternalError
    raises(kind, "pickle", lambda: hvd.broadcast_object(thing, 0))
    assert hvd.broadcast_object(hvd.rank(), 0) == 0


def check_parameters_are_broadcast() -> None:
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    model = model.to(memory_format=torch.channels_last)
    model[1].running_mean.fill_(hvd.rank())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    all_equal(list(model.state_dict().values()))
    tensors = [torch.full((3,), float(hvd.rank())), torch.full((2,), hvd.rank())]
    hvd.broadcast_parameters(tensors, root_rank=hvd.size() - 1)
    assert all(tensor.eq(hvd.size() - 1).all() for tensor in tensors)
    hvd.broadcast_parameters([("named", tensors[0]), ("none", None)], root_rank=0)
    raises(
        ValueError,
        "invalid params of type",
        lambda: hvd.broadcast_parameters(model[0], 0),
    )


def check_statistics_count() -> None:
    from hora import _context

    stats = _context.current().runtime.stats()
    assert stats["tensors"] >= stats["collectives"] > 0
    hvd.shutdown()
    assert not hvd.is_initialized()
