"""DistributedOptimizer: several in one job, copies, groups, layouts, other hooks and threads."""

from __future__ import annotations

import copy
import io
import pickle
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hora.torch as hvd
from hora.torch.gradient_flight import in_memory_order


@pytest.mark.parametrize("size", [1, 2, 4])
def test_copies(checked: Callable[..., list[Any]], check: Callable[[], Any], size: int) -> None:
    """Run every check of this file."""
    checked(check, size)


def linear(seed: int = 0) -> nn.Linear:
    """Return a layer, the same for the same seed, in float64."""
    torch.manual_seed(seed)
    return nn.Linear(3, 2).double()


def rows(step: int, rank: int) -> torch.Tensor:
    """Return a rank's part of a batch."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 3, generator=generator, dtype=torch.float64)


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    return model(rows(step, hvd.rank())).pow(2).mean()


def averaged(model: nn.Module, step: int) -> list[torch.Tensor]:
    """Return what the averaged gradients must be."""
    twin = copy.deepcopy(model)
    twin.zero_grad()
    for rank in range(hvd.size()):
        (twin(rows(step, rank)).pow(2).mean() / hvd.size()).backward()
    return [parameter.grad for parameter in twin.parameters()]


def has_averaged(model: nn.Module, step: int) -> None:
    for parameter, wanted in zip(model.parameters(), averaged(model, step)):
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-12, atol=1e-14)


def sgd(model: nn.Module, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)


def check_networks_with_the_same_names_are_reduced_at_the_same_time() -> None:
    hvd.init()
    first, second = linear(0), linear(1)
    optimizers = [sgd(first), sgd(second)]
    for step in range(2):
        (loss_of(first, step) + loss_of(second, step)).backward()
        for optimizer in optimizers:
            optimizer.synchronize()
        has_averaged(first, step)
        has_averaged(second, step)
        for optimizer in optimizers:
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()
    unnamed = [hvd.DistributedOptimizer(torch.optim.SGD(m.parameters())) for m in (first, second)]
    names = [name for optimizer in unnamed for name in optimizer._parameter_names.values()]
    assert len(set(names)) == 4


def check_a_discriminator_in_the_path_of_a_generator() -> None:
    """The generator's backward pass leaves gradients in the discriminator that nobody wants."""
    generator, discriminator = linear(2), nn.Linear(2, 1).double()
    hvd.broadcast_parameters(discriminator.state_dict(), 0)
    optimizers = [sgd(generator), sgd(discriminator)]
    for step in range(3):
        optimizers[1].zero_grad()
        discriminator(generator(rows(step, hvd.rank())).detach()).mean().backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        discriminator(generator(rows(step, hvd.rank()))).mean().backward()
        optimizers[0].step()
    for model in (generator, discriminator):
        flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        assert all(torch.equal(row, flat) for row in hvd.allgather(flat.unsqueeze(0)))


def check_the_later_of_two_optimizers_of_a_model_reduces_for_both() -> None:
    model = linear(3)
    earlier, later = sgd(model), sgd(model, op=hvd.Average)
    for step, optimizer in enumerate([earlier, later, earlier, later]):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.synchronize()
        has_averaged(model, step)
        with optimizer.skip_synchronize():
            optimizer.step()
    loss_of(model, 9).backward()  # Two passes without a step ...
    earlier.zero_grad()  # ... are possible if the gradients of the first are dropped.
    loss_of(model, 10).backward()
    earlier.synchronize()
    has_averaged(model, 10)
    del later
    earlier.zero_grad()
    loss_of(model, 11).backward()
    earlier.synchronize()
    has_averaged(model, 11)


def check_a_copy_with_its_model_trains_like_the_original() -> None:
    model = linear(4)
    optimizer = sgd(model, backward_passes_per_step=2, groups=1)
    for step in range(2):
        loss_of(model, step).backward()
    optimizer.step()
    optimizer.zero_grad()
    deep = copy.deepcopy((model, optimizer))
    pickled = pickle.loads(pickle.dumps((model, optimizer)))
    buffer = io.BytesIO()
    torch.save((model, optimizer), buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=False)
    pairs = [(model, optimizer), deep, pickled, saved]
    for other, twin in pairs:
        assert isinstance(twin, torch.optim.SGD)
        assert twin.backward_passes_per_step == 2
        assert twin.param_groups[0]["params"][0] is other.weight
        assert list(twin._parameter_names.values()) == list(optimizer._parameter_names.values())
        for step in range(2, 4):
            loss_of(other, step).backward()
        twin.step()
        torch.testing.assert_close(other.weight, model.weight, rtol=0, atol=0)
    assert optimizer.param_groups[0]["params"][0] is model.weight


def check_groups_wait_for_their_last_member() -> None:
    model = nn.ModuleList([linear(i) for i in range(3)])
    weights = [layer.weight for layer in model]
    for groups in (1, 2, 100, [weights], [[model[0].weight, model[2].bias], [model[1].bias]]):
        optimizer = sgd(model, groups=groups)
        for step in range(2):
            sum(loss_of(layer, step) for layer in model).backward()
            optimizer.synchronize()
            for layer in model:
                has_averaged(layer, step)
            optimizer.zero_grad()
        # A member that only some ranks use, and one that is frozen.
        model[1].requires_grad_(False)
        loss = loss_of(model[0], 5)
        if hvd.rank() == 0:
            loss = loss + loss_of(model[2], 5)
        loss.backward()
        optimizer.synchronize()
        has_averaged(model[0], 5)
        assert model[1].weight.grad is None
        if hvd.size() > 1:
            grads = hvd.allgather(model[2].bias.grad.unsqueeze(0))
            assert all(torch.equal(row, grads[0]) for row in grads)
        model[1].requires_grad_(True)
        optimizer.zero_grad()
    with pytest.warns(DeprecationWarning, match="num_groups"):
        sgd(model, num_groups=2)


def check_dense_layouts_are_reduced_where_they_lie() -> None:
    plain = torch.arange(48.0).reshape(2, 3, 2, 4)
    for tensor in (
        plain,
        plain.to(memory_format=torch.channels_last),
        plain[:, :, :1].to(memory_format=torch.channels_last),
        plain.reshape(6, 8).t(),
        plain.reshape(1, 2, 3, 2, 4).to(memory_format=torch.channels_last_3d),
        torch.view_as_complex(plain.reshape(6, 4, 2)).t(),
    ):
        view = in_memory_order(tensor)
        assert view.is_contiguous()
        assert view.data_ptr() == tensor.data_ptr()
        wanted = tensor * (1 + sum(range(hvd.size())))
        twin = tensor.clone() * (hvd.rank() + (hvd.rank() == 0))
        hvd.allreduce_(in_memory_order(twin), op=hvd.Sum)
        torch.testing.assert_close(twin, wanted)
    # Ranks whose layouts differ are told so.
    if hvd.size() > 1:
        layout = torch.channels_last if hvd.rank() == 0 else torch.contiguous_format
        cube = torch.ones(3, 3, 3, 3).contiguous(memory_format=layout)
        with pytest.raises(hvd.HorovodInternalError, match=r"\[1, 1, 1, 3, 3, 3, 3\]"):
            hvd.allreduce_(in_memory_order(cube), name="cube")


def check_a_complex_parameter_and_one_without_a_dense_layout() -> None:
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.complex128))
    strided = nn.Parameter(torch.zeros(4, 2)[:, 0])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter, strided], lr=1.0))
    (torch.view_as_real(parameter).sum() * (hvd.rank() + 1) + 2 * strided.sum()).backward()
    optimizer.step()
    mean = (hvd.size() + 1) / 2
    torch.testing.assert_close(
        parameter.detach(), torch.full((2,), complex(-mean, -mean)).cdouble()
    )
    torch.testing.assert_close(strided.detach(), torch.full((4,), -2.0))


def check_a_shared_parameter_is_reduced_once() -> None:
    one, other = linear(5), linear(6)
    other.weight = one.weight
    model = nn.ModuleList([one, other])
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(remove_duplicate=False),
        op=hvd.Sum,
    )
    (loss_of(one, 0) + loss_of(other, 0)).backward()
    optimizer.synchronize()
    twin = copy.deepcopy(model)
    twin.zero_grad()
    for rank in range(hvd.size()):
        sum(layer(rows(0, rank)).pow(2).mean() for layer in twin).backward()
    torch.testing.assert_close(one.weight.grad, twin[0].weight.grad)


def check_backward_passes_on_several_threads() -> None:
    models = [linear(i) for i in range(4)]
    both = nn.ModuleList(models)
    optimizer = sgd(both)
    for step in range(3):
        losses = [loss_of(model, step) for model in models]
        threads = [threading.Thread(target=loss.backward) for loss in losses]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        optimizer.synchronize()
        for model in models:
            has_averaged(model, step)
        optimizer.zero_grad()


def check_dropping_added_up_passes_starts_anew() -> None:
    model = linear(7)
    optimizer = sgd(model, backward_passes_per_step=2)
    for forget in (optimizer.zero_grad, model.zero_grad):
        loss_of(model, 0).backward()
        forget()
        loss_of(model, 1).backward()
        assert hvd.size() == 1 or not any(handle for handle, _ in optimizer._handles.values())
        loss_of(model, 1).backward()
        optimizer.synchronize()
        for parameter, wanted in zip(model.parameters(), averaged(model, 1)):
            torch.testing.assert_close(parameter.grad, 2 * wanted)
        optimizer.zero_grad()


def check_a_gradient_that_another_hook_has_taken() -> None:
    model = linear(8)
    taken: list[torch.Tensor] = []

    def take(parameter: torch.Tensor) -> None:
        taken.append(parameter.grad)
        parameter.grad = None

    model.weight.register_post_accumulate_grad_hook(take)
    optimizer = sgd(model)
    loss_of(model, 0).backward()
    optimizer.step()
    assert len(taken) == 1


def check_grad_scaler_waits_for_the_reduction() -> None:
    """Neither `scaler.step` nor `scaler.unscale_` needs a call of synchronize before it."""
    model = linear(9).float()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    for step, clips in enumerate([False, True, False]):
        optimizer.zero_grad()
        before = copy.deepcopy(model)
        infinite = step == 2 and hvd.rank() == 0
        loss = loss_of_float(model, step) * (float("inf") if infinite else 1.0)
        scaler.scale(loss).backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if clips:
                scaler.unscale_(optimizer)
                wanted = averaged(before.double(), step)
                torch.testing.assert_close(
                    model.weight.grad.double(), wanted[0], rtol=1e-5, atol=1e-6
                )
            scaler.step(optimizer)
        scaler.update()
        flat = model.weight.detach().flatten()
        assert all(torch.equal(row, flat) for row in hvd.allgather(flat.unsqueeze(0)))
    assert scaler.get_scale() == 2.0
    assert model.weight.isfinite().all()


def loss_of_float(model: nn.Module, step: int) -> torch.Tensor:
    return model(rows(step, hvd.rank()).float()).pow(2).mean()


def check_skipping_what_was_not_synchronized_warns_and_waits() -> None:
    model = linear(10)
    optimizer = sgd(model)
    loss_of(model, 0).backward()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with optimizer.skip_synchronize():
            optimizer.step()
    assert len(caught) == (hvd.size() > 1)
    has_averaged_step = hvd.allgather(model.weight.detach().flatten().unsqueeze(0))
    assert all(torch.equal(row, has_averaged_step[0]) for row in has_averaged_step)


def check_sparse_gradients_stay_sparse() -> None:
    embedding = nn.Embedding(10, 3, sparse=True)
    hvd.broadcast_parameters(embedding.state_dict(), 0)
    parameters = list(embedding.parameters())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SparseAdam(parameters, lr=0.1), sparse_as_dense=True
    )
    for _ in range(2):
        optimizer.zero_grad()
        embedding(torch.tensor([hvd.rank(), 5])).sum().backward()
        optimizer.synchronize()
        gradient = embedding.weight.grad
        assert gradient.is_sparse
        assert gradient.sparse_dim() == 1
        assert float(gradient.to_dense()[5, 0]) == 1.0
        with optimizer.skip_synchronize():
            optimizer.step()


def check_an_optimizer_that_outlives_its_job() -> None:
    model = linear(11)
    optimizer = sgd(model)
    loss_of(model, 0).backward()
    hvd.barrier()
    hvd.shutdown()
    optimizer.zero_grad()
    hvd.init()
    loss_of(model, 1).backward()
    optimizer.synchronize()
    has_averaged(model, 1)
    optimizer.zero_grad()
    loss_of(model, 2).backward()
    hvd.barrier()
    hvd.shutdown()
    hvd.init()
    if hvd.size() > 1:
        with pytest.raises(hvd.HorovodInternalError, match="run the backward pass again"):
            optimizer.step()
        loss_of(model, 3).backward()
    optimizer.step()
