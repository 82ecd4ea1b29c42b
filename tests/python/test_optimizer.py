"""DistributedOptimizer and broadcast_optimizer_state."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hora.torch as hvd

BATCH = 12  # can be divided by 2, 3 and 4
STEPS = 20


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_optimizer(checked: Callable[..., list[Any]], check: Callable[[], Any], size: int) -> None:
    """Run every check of this file."""
    checked(check, size)


def network(seed: int = 0) -> nn.Sequential:
    """Return a small network in float64, the same for the same seed."""
    torch.manual_seed(seed)
    convolution = [nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten()]
    dense = [nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1)]
    return nn.Sequential(*convolution, *dense).double()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the whole batch of a step."""
    generator = torch.Generator().manual_seed(1000 + step)
    images = torch.randn(BATCH, 2, 4, 4, generator=generator, dtype=torch.float64)
    return images, torch.randn(BATCH, 1, generator=generator, dtype=torch.float64)


def share(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's part of the batch."""
    images, targets = batch(step)
    return images[hvd.rank() :: hvd.size()], targets[hvd.rank() :: hvd.size()]


def distance(one: nn.Module, other: nn.Module) -> float:
    """Return the largest difference between two networks, relative to the largest parameter."""
    pairs = [(a.detach(), b.detach()) for a, b in zip(one.parameters(), other.parameters())]
    largest = max(float(a.abs().max()) for a, _ in pairs)
    return max(float((a - b).abs().max()) for a, b in pairs) / largest


def same_everywhere(model: nn.Module) -> None:
    """Assert that all ranks have the same parameters, to the last bit."""
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    rows = hvd.allgather(flat.unsqueeze(0))
    assert all(torch.equal(row, rows[0]) for row in rows)


Make = Callable[[Any], torch.optim.Optimizer]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Return SGD with momentum and weight decay."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


def reference(make: Make = sgd, steps: int = STEPS) -> nn.Module:
    """Train on one process with whole batches."""
    model = network()
    optimizer = make(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        images, targets = batch(step)
        nn.functional.mse_loss(model(images), targets).backward()
        optimizer.step()
    return model


def backward(model: nn.Module, step: int) -> torch.Tensor:
    """Compute this rank's loss of a step and its gradients."""
    images, targets = share(step)
    loss = nn.functional.mse_loss(model(images), targets)
    loss.backward()
    return loss


def wrapped(model: nn.Module, make: Make = sgd, **options: Any) -> Any:
    """Return the distributed optimizer of a model."""
    return hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), **options)


def check_training_equals_one_process() -> None:
    hvd.init()
    for make in (sgd, torch.optim.Adam):
        model = network()
        optimizer = wrapped(model, make)
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
        difference = distance(reference(make), model)
        assert difference <= 1e-12, (make, difference)
        same_everywhere(model)


def check_channels_last_training_equals_one_process() -> None:
    model = network().to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
    for step in range(5):
        optimizer.zero_grad(set_to_none=bool(step % 2))
        backward(model, step)
        optimizer.step()
    assert distance(reference(steps=5), model) <= 1e-12


def check_ways_to_the_same_result() -> None:
    """Options that must not change what is learnt."""
    for options in (
        {"gradient_predivide_factor": 2.0},
        {"gradient_predivide_factor": 2.0, "groups": 1},
        {"groups": 2},
    ):
        model = network()
        optimizer = wrapped(model, **options)
        for step in range(3):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
        assert distance(reference(steps=3), model) <= 1e-12, options


def check_accumulated_passes_equal_one() -> None:
    model, plain = network(), network()
    optimizer = wrapped(model, backward_passes_per_step=2)
    local = sgd(plain.parameters())
    for step in range(4):
        optimizer.zero_grad()
        local.zero_grad()
        for part in (2 * step, 2 * step + 1):
            backward(model, part)
            images, targets = batch(part)
            nn.functional.mse_loss(plain(images), targets).backward()
        optimizer.step()
        local.step()
    assert distance(plain, model) <= 1e-12


def check_too_many_passes_are_an_error() -> None:
    if hvd.size() == 1:
        return
    model = network()
    optimizer = wrapped(model)
    backward(model, 0)
    with pytest.raises(AssertionError, match="more than backward_passes_per_step times"):
        backward(model, 1)
    optimizer.zero_grad()
    backward(model, 0)
    optimizer.step()
    same_everywhere(model)


def check_a_step_after_the_end_of_the_job_is_an_error() -> None:
    if hvd.size() == 1:
        return
    model = network()
    optimizer = wrapped(model, backward_passes_per_step=2)
    backward(model, 0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    hvd.barrier()
    hvd.shutdown()
    with pytest.raises(hvd.HorovodInternalError, match="init"):
        optimizer.step()
    hvd.init()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    same_everywhere(model)


def check_a_skipped_step_leaves_nothing_behind() -> None:
    """What a GradScaler does when it meets an infinite gradient; here on all ranks and on one."""
    for skips in (True, hvd.rank() == 0):
        for forget in ("optimizer", "model"):
            model = network()
            optimizer = wrapped(model)
            backward(model, 7)
            if not skips:
                optimizer.synchronize()
            (optimizer if forget == "optimizer" else model).zero_grad()
            for step in range(3):
                backward(model, step)
                optimizer.step()
                optimizer.zero_grad()
            assert distance(reference(steps=3), model) <= 1e-12, (skips, forget)
            assert not optimizer._handles


def check_a_real_grad_scaler_works() -> None:
    model = nn.Linear(4, 1)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = wrapped(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    for step in range(4):
        optimizer.zero_grad()
        factor = float("inf") if step == 1 and hvd.rank() == 0 else 1.0
        scaler.scale(model(torch.ones(2, 4)).sum() * factor).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2.0
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    same_everywhere(model)


def check_a_closure_runs_once_and_its_gradients_are_used() -> None:
    model = network()
    optimizer = wrapped(model)
    for step in range(3):
        losses = []

        def closure(step: int = step, losses: list[torch.Tensor] = losses) -> torch.Tensor:
            optimizer.zero_grad()
            losses.append(backward(model, step))
            return losses[-1]

        returned = optimizer.step(closure)
        assert len(losses) == 1
        assert returned is losses[0]
    assert distance(reference(steps=3), model) <= 1e-12


def check_unused_parameters_take_part_as_zeros() -> None:
    torch.manual_seed(0)
    branches = nn.ModuleList([nn.Linear(3, 1, bias=False) for _ in range(hvd.size())])
    before = copy.deepcopy(branches)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(branches.parameters(), lr=1.0), branches.named_parameters(), op=hvd.Sum
    )
    branches[hvd.rank()](torch.ones(1, 3)).sum().backward()
    optimizer.step()
    for old, new in zip(before.parameters(), branches.parameters()):
        torch.testing.assert_close(new, old - 1)


def check_synchronize_then_step_warns_once_and_reduces_once() -> None:
    model = network()
    optimizer = wrapped(model, op=hvd.Sum)
    backward(model, 0)
    optimizer.synchronize()
    gradient = next(model.parameters()).grad.clone()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    assert len(caught) == 1
    words = "optimizer.step() called without optimizer.skip_synchronize() context after"
    assert str(caught[0].message).startswith(words)
    assert torch.equal(next(model.parameters()).grad, gradient)


def check_it_is_the_optimizer_it_was_made_from() -> None:
    model = network()
    plain = torch.optim.Adam(model.parameters(), lr=0.1)
    model(batch(0)[0]).sum().backward()
    plain.step()
    plain.zero_grad()
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    assert isinstance(optimizer, torch.optim.Adam)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert type(optimizer).__name__ == "Adam"
    assert optimizer.state is plain.state
    assert len(optimizer.state) == len(list(model.parameters()))
    assert optimizer.param_groups is plain.param_groups
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backward(model, 0)
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    later = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.zero_grad()
        backward(model, 1)
        optimizer.step()
        later.step()
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(state)
    assert optimizer.state_dict()["param_groups"] == state["param_groups"]
    backward_steps = {int(entry["step"]) for entry in optimizer.state.values()}
    assert backward_steps == {3}
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(optimizer)


def check_step_hooks_run_once() -> None:
    model = network()
    optimizer = wrapped(model)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    backward(model, 0)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    backward(model, 1)
    optimizer.step()
    assert calls == ["before", "after"] * 2


def check_parameters_that_come_later_are_reduced() -> None:
    frozen, added = nn.Linear(2, 1), nn.Linear(2, 1)
    hvd.broadcast_parameters([*frozen.parameters(), *added.parameters()], 0)
    frozen.requires_grad_(False)
    head = nn.Linear(1, 1)
    hvd.broadcast_parameters(head.state_dict(), 0)
    everything = [*frozen.parameters(), *head.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(everything, lr=0.1))
    optimizer.add_param_group({"params": list(added.parameters())})
    frozen.requires_grad_(True)
    for step in range(2):
        optimizer.zero_grad()
        x = torch.full((1, 2), float(hvd.rank() + step))
        head(frozen(x) + added(x)).sum().backward()
        optimizer.step()
    same_everywhere(frozen)
    same_everywhere(added)
    same_everywhere(head)


def check_a_dropped_optimizer_reduces_nothing() -> None:
    model = network()
    first = wrapped(model)
    backward(model, 0)
    first.step()
    del first
    optimizer = wrapped(model)
    optimizer.zero_grad()
    backward(model, 1)
    optimizer.step()
    same_everywhere(model)


def check_ranks_with_fewer_batches_join() -> None:
    """A joined rank gives zeros, and the average still divides by all ranks."""
    size = hvd.size()
    for options in ({}, {"groups": 1}, {"op": hvd.Sum}, {"sparse_as_dense": True}):
        torch.manual_seed(0)
        model = nn.Embedding(3, 2, sparse="sparse_as_dense" in options).double()
        before = model.weight.detach().clone()
        optimizer = wrapped(
            model, lambda parameters: torch.optim.SGD(parameters, lr=1.0), **options
        )
        steps = hvd.rank() + 1
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.tensor([1])).sum().backward()
            optimizer.step()
        assert hvd.join() == size - 1
        # In step k of this rank's there were those ranks left that have k batches or more.
        total = sum(float(size - step) for step in range(steps))
        expected = before.clone()
        expected[1] -= total if "op" in options else total / size
        torch.testing.assert_close(model.weight.detach(), expected)


def check_compression_and_sparse_gradients() -> None:
    model = network()
    optimizer = wrapped(model, compression=hvd.Compression.fp16)
    backward(model, 0)
    optimizer.step()
    same_everywhere(model)
    assert distance(reference(steps=1), model) <= 1e-3
    embedding = nn.Embedding(10, 3, sparse=True)
    hvd.broadcast_parameters(embedding.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(embedding.parameters(), lr=1.0), sparse_as_dense=True
    )
    embedding(torch.tensor([hvd.rank(), 5])).sum().backward()
    optimizer.step()
    same_everywhere(embedding)
    weights = embedding.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=1.0))
    embedding.weight.grad = None
    embedding(torch.tensor([hvd.rank(), 5])).sum().backward()
    optimizer.step()
    assert embedding.weight.grad.is_sparse
    weights[: hvd.size()] -= 1 / hvd.size()
    weights[5] -= 1
    torch.testing.assert_close(embedding.weight.detach(), weights)


def check_arguments_are_checked() -> None:
    model = network()
    named = list(model.named_parameters())
    for words, arguments in {
        "must be unique. Found duplicates": {"named_parameters": [named[0], named[0]]},
        "were not named": {"named_parameters": named[1:]},
        "sequence of tuples": {"named_parameters": [p for _, p in named]},
        "must be > 0": {"backward_passes_per_step": 0},
        "gradient_predivide_factor": {"gradient_predivide_factor": 2.0, "op": hvd.Sum},
        "only appear once": {"groups": [[named[0][1]], [named[0][1]]]},
    }.items():
        with pytest.raises(ValueError, match=words):
            hvd.DistributedOptimizer(sgd(model.parameters()), **arguments)
    unnamed = hvd.DistributedOptimizer(sgd(model.parameters()))
    names = list(unnamed._parameter_names.values())
    assert re.fullmatch(r"allreduce\.noname\.0\.0(@\d+)?", names[0])
    assert len(set(names)) == len(names)


def trained(make: Make, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a network and its optimizer after some local steps."""
    model = network()
    optimizer = make(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(step)[0]).sum().backward()
        optimizer.step()
    return model, optimizer


def check_optimizer_state_goes_from_the_root_to_ranks_that_have_none() -> None:
    makers: list[Make] = [
        sgd,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.RMSprop,
        torch.optim.Adagrad,
        torch.optim.Adadelta,
        lambda parameters: torch.optim.Adam(parameters, amsgrad=True, lr=0.5),
    ]
    root = hvd.size() - 1
    for make in makers:
        wanted = trained(make, 3)[1]
        mine = wanted if hvd.rank() == root else trained(make, 0)[1]
        if hvd.rank() != root:
            mine.param_groups[0]["lr"] = 123.0
        before = copy.deepcopy(wanted.state_dict())
        hvd.broadcast_optimizer_state(mine, root_rank=root)
        received = mine.state_dict()
        assert received["param_groups"] == before["param_groups"]
        assert received["state"].keys() == before["state"].keys()
        for key, entries in before["state"].items():
            for name, value in entries.items():
                other = received["state"][key][name]
                assert type(other) is type(value)
                if isinstance(value, torch.Tensor):
                    assert other.dtype == value.dtype
                    assert torch.equal(other, value)
                else:
                    assert other == value


def check_broadcasting_an_empty_state_changes_nothing() -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=0.1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert not optimizer.state_dict()["state"]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), root_rank=0)
