"""broadcast_parameters, broadcast_optimizer_state, broadcast_object, allgather_object."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hora.torch as hvd


@pytest.mark.parametrize("size", [1, 3])
def test_state(checked: Callable[..., list[Any]], check: Callable[[], Any], size: int) -> None:
    """Run every check of this file."""
    checked(check, size)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and bits, NaNs included."""
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.reshape(-1).contiguous().view(torch.uint8).tolist()
        == other.reshape(-1).contiguous().view(torch.uint8).tolist()
    )


def parameters_of(rank: int) -> dict[str, Any]:
    """Return a rank's parameters, of many kinds."""
    scale = 1 + rank
    return {
        "scalar": torch.tensor(2.5) * scale,
        "integer": torch.tensor(3) * scale,
        "flag": torch.tensor([rank % 2 == 0]),
        "half": torch.ones(3, dtype=torch.float16) * scale,
        "brain": torch.ones(3, dtype=torch.bfloat16) * scale,
        "complex": torch.ones(2, dtype=torch.complex64) * scale,
        "eight_bits": (torch.ones(4) * scale).to(torch.float8_e5m2),
        "unsigned": torch.tensor(7 * scale, dtype=torch.uint32),
        "transposed": (torch.arange(6.0) * scale).reshape(2, 3).t(),
        "every_other": (torch.arange(8.0) * scale)[::2],
        "channels": torch.full((2, 3, 2, 2), float(scale)).to(memory_format=torch.channels_last),
        "empty": torch.empty(0, 3),
        "nothing": None,
        "parameter": nn.Parameter(torch.full((2,), float(scale))),
    }


def check_parameters_of_any_kind_are_broadcast() -> None:
    hvd.init()
    root = hvd.size() - 1
    forms: list[Callable[[dict[str, Any]], Any]] = [
        lambda params: params,
        lambda params: list(params.items()),
        lambda params: iter(params.items()),
        lambda params: list(params.values()),
    ]
    for form in forms:
        mine = parameters_of(hvd.rank())
        hvd.broadcast_parameters(form(mine), root_rank=root)
        for key, wanted in parameters_of(root).items():
            assert wanted is None or same(mine[key], wanted), key


def check_what_is_no_parameter_is_refused() -> None:
    for params in (torch.ones(3), "weights", 7, np.ones(3)):
        with pytest.raises(ValueError, match="invalid params of type"):
            hvd.broadcast_parameters(params, root_rank=0)
    with pytest.raises(ValueError, match="resolve_conj"):
        hvd.broadcast_parameters([torch.ones(2, dtype=torch.complex64).conj()], root_rank=0)
    with pytest.raises(ValueError, match=r"'step'.*torch\.Tensor, not int"):
        hvd.broadcast_parameters({"step": 3}, root_rank=0)


def check_tied_weights_are_broadcast() -> None:
    one, other = nn.Linear(3, 3), nn.Linear(3, 3)
    other.weight = one.weight
    model = nn.ModuleList([one, other])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    assert all(torch.equal(row, one.weight) for row in hvd.allgather(one.weight.unsqueeze(0)))


def optimizers(parameters: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
    """Return one of each class of torch.optim, with options that give it state."""
    options = {"momentum": 0.9, "lr": 0.1, "centered": True, "amsgrad": True, "weight_decay": 0.01}
    made = []
    for kind in sorted(torch.optim.Optimizer.__subclasses__(), key=lambda kind: kind.__name__):
        if kind.__module__.startswith("torch.optim") and kind is not torch.optim.LBFGS:
            taken = inspect.signature(kind.__init__).parameters
            chosen = {key: value for key, value in options.items() if key in taken}
            made.append(kind(parameters, **chosen))
    return made


def used(steps: int) -> list[torch.optim.Optimizer]:
    """Return optimizers of every class that have made some steps on this rank."""
    torch.manual_seed(hvd.rank())
    parameters = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(2, 2))]
    made = optimizers(parameters)
    for optimizer in made:
        for _ in range(steps):
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape)
                if isinstance(optimizer, torch.optim.SparseAdam):
                    parameter.grad = parameter.grad.to_sparse()
            optimizer.step()
        optimizer.zero_grad()
    return made


def tree_same(one: Any, other: Any) -> None:
    """Assert that two state_dicts are equal: types of scalars, dtypes and bits of tensors."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            tree_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for left, right in zip(one, other):
            tree_same(left, right)
    elif isinstance(one, torch.Tensor):
        assert same(one, other)
    else:
        assert one == other


def check_every_optimizer_gets_the_state_of_the_root() -> None:
    """Whether it was used on the root, elsewhere, on both or nowhere."""
    root = hvd.size() - 1
    for on_root, elsewhere in ((2, 0), (0, 2), (2, 3), (0, 0)):
        for optimizer in used(on_root if hvd.rank() == root else elsewhere):
            if hvd.rank() != root:
                optimizer.param_groups[0]["lr"] = 7
            before = [p.detach().clone() for p in optimizer.param_groups[0]["params"]]
            wanted = hvd.broadcast_object(optimizer.state_dict(), root)
            hvd.broadcast_optimizer_state(optimizer, root_rank=root)
            tree_same(optimizer.state_dict(), wanted)
            parameters = optimizer.param_groups[0]["params"]
            assert all(map(torch.equal, parameters, before))
            assert all(parameter.grad is None for parameter in parameters)


def check_a_distributed_optimizer_has_gradients_afterwards() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert not optimizer.state
    assert model.bias.grad is None
    if hvd.size() > 1:
        assert torch.equal(model.weight.grad, torch.zeros(2, 2))


def check_a_state_that_cannot_be_pickled_is_an_error_everywhere() -> None:
    if hvd.size() == 1:
        return
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    if hvd.rank() == 0:
        optimizer.param_groups[0]["lock"] = threading.Lock()
    error = TypeError if hvd.rank() == 0 else hvd.HorovodInternalError
    with pytest.raises(error, match="cannot pickle"):
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.barrier()


def check_objects_that_cannot_be_pickled_are_an_error_everywhere() -> None:
    guilty = hvd.size() - 1
    obj = threading.Lock() if hvd.rank() == guilty else "fine"
    error = TypeError if hvd.rank() == guilty else hvd.HorovodInternalError
    with pytest.raises(error, match="cannot pickle"):
        hvd.allgather_object(obj)
    with pytest.raises(error, match="cannot pickle"):
        hvd.broadcast_object(obj, guilty)
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))


def check_objects_of_many_sizes_and_names() -> None:
    for size in (0, 1, 1 << 20):
        wanted = bytes(range(256)) * (size // 256 + 1)
        assert hvd.broadcast_object(wanted if hvd.rank() == 0 else None, 0, name="big") == wanted
        gathered = hvd.allgather_object(b"x" * size * hvd.rank(), name="big")
        assert [len(got) for got in gathered] == [size * rank for rank in range(hvd.size())]
    assert hvd.broadcast_object(hvd.rank(), root_rank=hvd.size() - 1) == hvd.size() - 1
    assert hvd.allgather_object(None) == [None] * hvd.size()
