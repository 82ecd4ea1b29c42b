"""What users of Horovod complain about, one test each, where no other file has it.

names differ between ranks: a report of who waits for what      test_stalls
a name is used again for something else: a wrong result         here
a second init forgets handles, queries before init crash        here
channels_last, transposed, groups of them                       here, test_torch_groups
zero_grad(set_to_none), closures, skipped steps, GradScaler     test_optimizer, ..._copies
an optimizer that nobody can derive from, two of one model      here, test_optimizer_copies
broadcast_optimizer_state makes a step, state is lost           test_starting_state
broadcast_object(None) elsewhere                                here
unnamed calls in a process set shift those of others            here, test_process_sets
add_process_set with ranks that there are not                   here, test_process_sets
a group hides the failure of a member                           here, test_torch_groups
a large reducescatter with a factor, a gradient written over    here
integer averages are rounded, float16 sums overflow             here, test_torch_collectives
bool, uint8, int8, int16 and bfloat16 are refused               here, test_torch_collectives
gradient_predivide_factor is forgotten in groups                test_optimizer
a wrong argument on one rank stalls the others                  test_refusals
a hook, a layer or a compressor that raises stalls the others   test_refusals
a killed rank: abort, hang, broken timeline                     test_horovod_jobs, tests/chaos
a rank that is done at once                                     test_horovod_jobs
joins forget all but allreduce, or name a wrong rank            test_join, test_optimizer
sets are lost at a new init, or crash                           test_process_sets
more processes than asked for, one process with output files    test_horovod_jobs, test_launcher
run() without cycle time and cache                              test_horovod_jobs, test_run
a hostfile's blank lines and comments                           tests/launcher/hosts_test.cc
ssh, interfaces: which host, which command, what it said        test_launcher_ssh, ..._hosts
idle ranks and waiting ranks use a core                         tests/bench/idle.py
init a hundred times, hang at exit, hang at Ctrl-C              test_lifecycle
strangers' connections and pickles                              test_strangers
the sampler's last samples                                      test_elastic_state, here
a user's mistake loops for ever in elastic.run                  test_elastic_state
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import hora
import hora.torch as hvd


@pytest.mark.parametrize("size", [2, 3])
def test_complaints(checked: Callable[..., list[Any]], check: Callable[[], Any], size: int) -> None:
    checked(check, size)


def check_a_transposed_member_of_a_group() -> None:
    hvd.init()
    rows = torch.arange(12.0).view(3, 4) + hvd.rank()
    sums = hvd.grouped_allreduce([rows, rows.t()], op=hvd.Sum)
    expected = sum(torch.arange(12.0).view(3, 4) + rank for rank in range(hvd.size()))
    assert torch.equal(sums[0], expected)
    assert torch.equal(sums[1], expected.t())


def check_a_name_is_used_again_for_other_things() -> None:
    size = hvd.size()
    for turn in range(3):
        for dtype in (torch.float32, torch.int64):
            for shape in ((2,), (3, 2), (6,)):
                ones = torch.ones(shape, dtype=dtype)
                for op, expected in ((hvd.Sum, size), (hvd.Average, 1), (hvd.Max, 1)):
                    result = hvd.allreduce(ones, op=op, name="again")
                    assert torch.equal(result, expected * ones), (turn, op)
                assert hvd.allgather(ones[: hvd.rank() + 1], name="again").sum() > 0
                root = turn % size
                assert torch.equal(
                    hvd.broadcast(ones * hvd.rank(), root, name="again"), ones * root
                )
        factors = {"prescale_factor": 1.0 + turn, "postscale_factor": 0.5}
        scaled = hvd.allreduce(torch.ones(2), op=hvd.Sum, name="again", **factors)
        assert scaled[0] == size * (1.0 + turn) * 0.5


def check_a_second_init_changes_nothing() -> None:
    handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="kept")
    hvd.init()
    assert hvd.synchronize(handle)[0] == hvd.size()
    hvd.shutdown()
    for query in (hvd.size, hvd.local_rank, hora.is_homogeneous):
        with pytest.raises(ValueError, match="has not been initialized; use hvd"):
            query()
    with pytest.raises(hvd.HorovodInternalError, match="has not been initialized"):
        hvd.allreduce(torch.ones(1))
    hvd.init()


def check_a_class_is_derived_from_a_distributed_optimizer() -> None:
    parameter = torch.zeros(2, requires_grad=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))

    class Counting(type(optimizer)):  # type: ignore[misc]
        steps = 0

        def step(self, closure: Any = None) -> Any:
            self.steps += 1
            return super().step(closure)

        def zero_grad(self, *args: Any, **kwargs: Any) -> None:
            super().zero_grad(*args, **kwargs)

    optimizer.__class__ = Counting
    optimizer.zero_grad(set_to_none=True)
    (parameter * float(hvd.rank())).sum().backward()
    optimizer.step()
    assert optimizer.steps == 1
    assert torch.equal(parameter.detach(), torch.full((2,), -(hvd.size() - 1) / 2))


def check_a_large_reducescatter_with_factors_and_its_gradient() -> None:
    size = hvd.size()
    rows = torch.ones(size * 5, 250_000, requires_grad=True)
    part = hvd.reducescatter(rows, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert part.shape == (5, 250_000)
    assert (part == 2.0 * size).all()
    gradient = torch.ones_like(part)
    part.backward(gradient)
    assert (gradient == 1).all()
    assert rows.grad is not None
    assert (rows.grad == 2.0 * size).all()


def check_an_object_that_only_the_root_has() -> None:
    given = {"epoch": 3} if hvd.rank() == 0 else None
    assert hvd.broadcast_object(given) == {"epoch": 3}
    assert hvd.allgather_object(None if hvd.rank() else "text")[0] == "text"


def check_unnamed_calls_of_a_set_do_not_shift_the_others() -> None:
    first = hvd.add_process_set([0])
    if hvd.rank() == 0:
        for _ in range(3):
            hvd.allreduce(torch.ones(1), process_set=first)
            hvd.allgather(torch.ones(1), process_set=first)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
    assert hvd.remove_process_set(first)


def check_sets_that_cannot_be_are_errors_and_no_abort() -> None:
    for ranks in ([0, 99], [0, 0], [-1]):
        with pytest.raises(ValueError, match=r"rank|process set"):
            hvd.add_process_set(ranks)
    assert hvd.allreduce(torch.ones(1)).item() == 1


def check_the_first_member_of_a_group_fails_all() -> None:
    members = [torch.ones(2 + hvd.rank()), torch.ones(3), torch.ones(4)]
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched ALLREDUCE tensor shapes"):
        hvd.grouped_allreduce(members, name="group")
    assert hvd.grouped_allreduce([torch.ones(3)] * 3, name="group")[2].sum() == 3


def check_integer_averages_are_exact() -> None:
    size = hvd.size()
    for value in (2**61, -(2**61), 2**53 + 1, -7, 5, 49, 1):
        mine = value // size + hvd.rank()
        total = sum(value // size + rank for rank in range(size))
        average = hvd.allreduce(torch.tensor([mine], dtype=torch.int64)).item()
        assert average == int(abs(total) // size) * (1 if total >= 0 else -1), value


def check_small_and_half_dtypes_in_every_call() -> None:
    size = hvd.size()
    for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.bfloat16, torch.float16):
        mine = torch.ones(size, 2).to(dtype)
        assert torch.equal(hvd.allreduce(mine, op=hvd.Max), mine)
        assert torch.equal(hvd.broadcast(mine, 0), mine)
        assert torch.equal(hvd.allgather(mine), torch.cat([mine] * size))
        assert torch.equal(hvd.alltoall(mine), mine)
        if dtype is not torch.bool:
            assert torch.equal(hvd.reducescatter(mine, op=hvd.Sum), mine[:1] * size)
    large = torch.full((4,), 30000.0, dtype=torch.float16)
    assert torch.equal(hvd.allreduce(large), large)


def check_one_sample_for_all_ranks_and_none() -> None:
    sampler = hvd.elastic.ElasticSampler([0])
    assert list(sampler) == [0]
    assert len(sampler) == 1
    sampler.record_batch(0, 1)
    sampler.reset()
    assert list(sampler) == []
    assert len(sampler) == 0


def check_a_closure_that_makes_the_gradients() -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    before = model.weight.detach().clone()
    calls = 0

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad(set_to_none=True)
        loss = (model.weight * float(hvd.rank() + 1)).sum()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    mean = sum(range(1, hvd.size() + 1)) / hvd.size()
    assert calls == 1
    assert loss is not None
    assert torch.allclose(before - model.weight.detach(), torch.full((1, 3), mean))
