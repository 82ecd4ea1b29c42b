"""A wrong argument on one rank: it raises there, and the ranks that wait for the call learn why.

Rank 0 makes the mistake; all others call rightly. Afterwards the same names and the count of
unnamed calls are in step again on all ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import hora.numpy
import hora.torch as hvd
from hora.torch import blocking, group_calls

SIZES = [1, 3]
Call = Callable[[], Any]


@pytest.mark.parametrize("size", SIZES)
def test_refusals(checked: Callable[..., list[Any]], check: Callable[[], Any], size: int) -> None:
    checked(check, size)


def told(wrong: Call, right: Call, kind: type[Exception], *words: str) -> None:
    """Rank 0 calls `wrong`, which raises `kind`; the others call `right` and are told."""
    hvd.init()
    if hvd.rank() == 0:
        with pytest.raises(kind) as caught:
            wrong()
        return
    with pytest.raises(hvd.HorovodInternalError) as caught:
        right()
    for word in ("rank 0", *words):
        assert word in str(caught.value), caught.value


def in_step() -> None:
    """Check that all calls that a mistake may have put out of step work."""
    ones = torch.ones(hvd.size(), 2)
    for name in ("x", None):
        assert torch.equal(hvd.allreduce(ones, name=name), ones)
        assert hvd.allgather(ones, name=name).shape == (hvd.size() ** 2, 2)
        assert torch.equal(hvd.broadcast(ones, 0, name=name), ones)
        assert hvd.reducescatter(ones, name=name).shape == (1, 2)
        assert hvd.alltoall(ones, name=name).shape == (hvd.size(), 2)
        assert torch.equal(hvd.grouped_allreduce([ones, ones], name=name)[1], ones)


def tensor_calls(module: ModuleType) -> list[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Return the calls of a tensor: prefix of their names, function, further arguments."""
    names = [
        f"{kind}{form}"
        for kind, forms in (
            ("allreduce", ("", "_", "_async", "_async_")),
            ("broadcast", ("", "_", "_async", "_async_")),
            ("allgather", ("", "_async")),
            ("reducescatter", ("", "_async")),
            ("alltoall", ("", "_async")),
        )
        for form in forms
    ]
    return [
        (
            name.partition("_")[0],
            getattr(module, name),
            {"root_rank": 0} if "broadcast" in name else {},
        )
        for name in names
    ]


def finished(call: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call, and wait if it is one of the asynchronous."""
    result = call(*args, **named)
    return hvd.synchronize(result) if isinstance(result, int) else result


def check_what_is_no_tensor() -> None:
    hvd.init()
    for module, good in ((hvd, torch.ones(3, 2)), (hora.numpy, np.ones((3, 2), np.float32))):
        for name in ("x", None):
            for prefix, call, more in tensor_calls(module):
                told(
                    lambda: finished(call, None, name=name, **more),  # noqa: B023
                    lambda: finished(call, good, name=name, **more),  # noqa: B023
                    ValueError,
                    f"'{prefix}.{name or 'noname'}",
                    "ValueError",
                )
    in_step()


def check_splits() -> None:
    rows = torch.ones(6, 2)
    for splits, words in (
        ([1], "Number of entries in splits does not equal number of workers"),
        ([9] * 3, "Sum of splits entries is greater than the first dimension of tensor"),
        ([1.5] * 3, "splits to be integers"),
    ):
        hvd.init()
        if hvd.size() > 1:
            told(
                lambda: hvd.alltoall(rows, splits=splits, name="x"),  # noqa: B023
                lambda: hvd.alltoall(rows, splits=[2] * hvd.size(), name="x"),
                ValueError,
                "alltoall.x",
                words,
            )
    in_step()


def check_roots_operations_and_factors() -> None:
    ones = torch.ones(2)
    told(
        lambda: hvd.broadcast(ones, 99, name="x"),
        lambda: hvd.broadcast(ones, 0, name="x"),
        ValueError,
        "invalid root rank 99",
    )
    for wrong, kind, words in (
        ({"op": 77}, ValueError, "op must be"),
        ({"op": "Sum"}, TypeError, "op must be an integer"),
        ({"op": hvd.Sum, "average": True}, ValueError, "supersedes average"),
        ({"prescale_factor": "2"}, TypeError, "prescale_factor must be a number"),
        ({"compression": "fp16"}, TypeError, "compression must be"),
    ):
        for name in ("x", None):
            told(
                partial(hvd.allreduce, ones, name=name, **wrong),
                partial(hvd.allreduce, ones, name=name),
                kind,
                "allreduce.",
                words,
            )
    in_step()


def check_a_scalar_and_an_operation_that_only_the_core_refuses() -> None:
    told(
        lambda: hvd.reducescatter(torch.tensor(1.0), name="x"),
        lambda: hvd.reducescatter(torch.ones(3), name="x"),
        ValueError,
        "scalar",
    )
    told(
        lambda: hvd.reducescatter(torch.ones(3), op=hvd.Max),
        lambda: hvd.reducescatter(torch.ones(3)),
        hvd.HorovodInternalError,
        "only supports AVERAGE and SUM",
    )
    in_step()


def check_groups() -> None:
    good = [torch.ones(3), torch.ones(3)]
    for name in ("x", None):
        for call in (
            hvd.grouped_allreduce,
            hvd.grouped_allreduce_,
            hvd.grouped_allgather,
            hvd.grouped_reducescatter,
        ):
            told(
                lambda: call([torch.ones(3), "no tensor"], name=name),  # noqa: B023
                lambda: call(good, name=name),  # noqa: B023
                ValueError,
                "grouped_",
                "of2",
            )
    in_step()


class Broken:
    """A compressor that fails on rank 0, before or after the collective."""

    def __init__(self, late: bool) -> None:
        self.late = late

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        if not self.late and hvd.rank() == 0:
            raise RuntimeError("cannot compress")
        return tensor, None

    def decompress(self, tensor: torch.Tensor, ctx: None) -> torch.Tensor:
        if self.late and hvd.rank() == 0:
            raise ValueError("cannot decompress")
        return tensor


def check_compressors_of_the_users() -> None:
    ones = torch.ones(2)
    told(
        lambda: hvd.allreduce(ones, compression=Broken(late=False)),
        lambda: hvd.allreduce(ones, compression=Broken(late=False)),
        RuntimeError,
        "cannot compress",
    )
    in_step()
    # After the collective the others have their results: there is nothing to tell.
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match="cannot decompress"):
            hvd.allreduce(ones, compression=Broken(late=True))
    else:
        assert torch.equal(hvd.allreduce(ones, compression=Broken(late=True)), ones)
    in_step()


def check_only_the_sets_ranks_are_told() -> None:
    hvd.init()
    if hvd.size() < 3:
        return
    pair = hvd.add_process_set([0, 2])
    if hvd.rank() in pair.ranks:
        told(
            lambda: hvd.allreduce(None, name="x", process_set=pair),
            lambda: hvd.allreduce(torch.ones(2), name="x", process_set=pair),
            ValueError,
            "process set",
        )
        assert hvd.allreduce(torch.ones(2), process_set=pair).sum() == 2
    in_step()
    # Who is no member may try, and nobody is concerned.
    if hvd.rank() == 1:
        with pytest.raises(ValueError, match="not a member"):
            hvd.allreduce(torch.ones(2), process_set=pair)
    assert hvd.remove_process_set(pair)
    in_step()


def check_a_barrier_and_sets_that_are_none() -> None:
    hvd.init()
    everybody = list(range(hvd.size()))
    ones = torch.ones(2)
    for wrong in (None, 5, everybody, "all", hvd.ProcessSet(everybody)):
        told(
            lambda: hvd.barrier(process_set=wrong),  # noqa: B023
            hvd.barrier,
            ValueError,
            "barrier.noname",
            "ValueError",
        )
        told(
            lambda: hvd.allreduce(ones, name="x", process_set=wrong),  # noqa: B023
            lambda: hvd.allreduce(ones, name="x"),
            ValueError,
            "allreduce.x",
        )
    hvd.barrier()
    in_step()


def check_objects_and_sparse_tensors() -> None:
    entries = torch.eye(2).to_sparse()
    for name in ("x", None):
        told(
            partial(hvd.broadcast_object, "text", root_rank=99, name=name),
            partial(hvd.broadcast_object, "text", name=name),
            ValueError,
            "invalid root rank 99",
        )
        told(
            partial(hvd.sparse_allreduce_async, torch.ones(2), name, hvd.Sum),
            partial(sparse_sum, entries, name),
            ValueError,
            "layout torch.sparse_coo",
        )
    told(
        partial(hvd.allgather_object, "text", process_set=[0, 99]),
        partial(hvd.allgather_object, "text"),
        Exception,
        "object",
    )
    assert hvd.broadcast_object(hvd.rank()) == 0
    assert sparse_sum(entries, "x").to_dense()[0, 0] == hvd.size()
    in_step()


def check_many_parameters_at_once() -> None:
    """What comes after the wrong one is told, too: the others have submitted all."""
    values = {name: torch.full((2,), float(hvd.rank())) for name in "abc"}
    told(
        partial(hvd.broadcast_parameters, values, 99),
        partial(hvd.broadcast_parameters, values, 0),
        ValueError,
        "invalid root rank 99",
    )
    hvd.broadcast_parameters(values, 0)
    assert all(torch.equal(value, torch.zeros(2)) for value in values.values())
    in_step()


def sparse_sum(tensor: torch.Tensor, name: str | None) -> torch.Tensor:
    return hvd.sparse_allreduce_async(tensor, name, hvd.Sum)()


def check_backward_passes() -> None:
    """What a gradient is made of on rank 0 cannot be reduced."""
    hvd.init()
    for call, arguments in (
        (hvd.allreduce, {}),
        (hvd.allgather, {}),
        (hvd.broadcast, {"root_rank": 0}),
        (hvd.reducescatter, {}),
        (hvd.alltoall, {}),
        (lambda tensor: hvd.grouped_allreduce([tensor, tensor])[0], {}),
        (lambda tensor: hvd.grouped_allgather([tensor, tensor])[0], {}),
        (lambda tensor: hvd.grouped_reducescatter([tensor, tensor])[0], {}),
    ):
        for turn in range(2):
            leaf = torch.ones(hvd.size() * 2, 2, requires_grad=True)
            result = call(leaf, **arguments)
            if turn == 0:
                with without_memory_on_rank_0():
                    told(result.sum().backward, result.sum().backward, ValueError)
            else:
                result.sum().backward()
                assert leaf.grad is not None
    in_step()


@contextlib.contextmanager
def without_memory_on_rank_0() -> Iterator[None]:
    """Make rank 0 refuse all tensors, as it does those of a GPU."""

    def refuse(tensor: torch.Tensor) -> torch.Tensor:
        raise ValueError("no memory of the host")

    with pytest.MonkeyPatch.context() as patch:
        if hvd.rank() == 0:
            for module in (blocking, group_calls):
                patch.setattr(module, "readable", refuse)
        yield


def network() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))


def trained(model: torch.nn.Module, optimizer: Any) -> None:
    """Make a step, and check that all ranks have made the same."""
    optimizer.zero_grad()
    model(torch.full((2, 3), hvd.rank() + 1.0)).sum().backward()
    optimizer.step()
    for parameter in model.parameters():
        both = hvd.allgather(parameter.detach().unsqueeze(0))
        assert torch.equal(both[0], both[-1])


class Moody:
    """A compressor that fails once on rank 0, at its third tensor."""

    def __init__(self) -> None:
        self.calls = 0

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        self.calls += 1
        if self.calls == 3 and hvd.rank() == 0:
            raise RuntimeError("in no mood to compress")
        return tensor, None

    def decompress(self, tensor: torch.Tensor, ctx: None) -> torch.Tensor:
        return tensor


def check_hooks_of_an_optimizer() -> None:
    hvd.init()
    if hvd.size() == 1:
        return  # No gradient is reduced.
    for op in (hvd.Average, hvd.Adasum):
        for goes_on in ("steps", "forgets"):
            model = network()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1),
                named_parameters=model.named_parameters(),
                compression=Moody(),
                op=op,
            )

            def step(model: Any = model, optimizer: Any = optimizer) -> None:
                model(torch.ones(2, 3)).sum().backward()
                optimizer.step()

            before = [parameter.detach().clone() for parameter in model.parameters()]
            told(step, step, RuntimeError, "in no mood to compress", "allreduce.")
            if hvd.rank() == 0 and op == hvd.Average and goes_on == "steps":
                with pytest.raises(RuntimeError, match="in no mood"):
                    optimizer.step()
            assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
            trained(model, optimizer)
    in_step()


def check_a_gradient_that_is_part_of_a_graph() -> None:
    hvd.init()
    if hvd.size() == 1:
        return
    model = network()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    def step(graph: bool) -> None:
        model(torch.ones(2, 3)).pow(2).sum().backward(create_graph=graph)
        optimizer.step()

    told(lambda: step(True), lambda: step(False), AssertionError, "requires a gradient itself")
    trained(model, optimizer)
    in_step()


def check_a_layer_that_normalizes() -> None:
    hvd.init()
    if hvd.size() == 1:
        return  # It asks nobody.
    layer = hvd.SyncBatchNorm(4)
    for wrong, words in (
        (torch.ones(4), "at least 2D input"),
        (torch.ones(2, 3), "4 channels"),
        (torch.ones(2, 5, 2), "4 channels"),
    ):
        told(
            lambda: layer(wrong),  # noqa: B023
            lambda: layer(torch.ones(2, 4)),
            ValueError,
            "sync_batch_norm.4",
            words,
        )
        assert layer(torch.ones(2, 4)).shape == (2, 4)
    in_step()


def check_the_same_mistake_everywhere() -> None:
    hvd.init()
    for _ in range(3):
        with pytest.raises(ValueError, match=r"torch\.Tensor"):
            hvd.allreduce(None)
        with pytest.raises(ValueError, match=r"torch\.Tensor"):
            hvd.grouped_allgather([None, None])
    in_step()
