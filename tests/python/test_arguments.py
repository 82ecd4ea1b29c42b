"""Wrong arguments: whatever a user passes, the error names the argument and nothing is started."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import hora.numpy
import hora.torch

TENSOR_CALLS = [
    "allreduce",
    "allreduce_async",
    "allreduce_",
    "allreduce_async_",
    "allgather",
    "allgather_async",
    "broadcast",
    "broadcast_async",
    "broadcast_",
    "broadcast_async_",
]


def test_wrong_arguments(checked: Callable[..., list[Any]], check: Callable[[], Any]) -> None:
    """Run every check of this file in a job of one."""
    checked(check, 1)


def refused(words: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Assert that a call raises ValueError or TypeError, with these words in its message."""
    with pytest.raises((ValueError, TypeError)) as caught:
        call(*arguments, **named)
    message = str(caught.value)
    assert words in message, (call, message)
    assert "incompatible function arguments" not in message
    # What the interpreter says about an operation says nothing about an argument.
    assert "object has no attribute" not in message
    assert "unsupported operand" not in message
    assert "not supported between" not in message


def calls(module: ModuleType) -> list[tuple[Callable[..., Any], dict[str, Any]]]:
    """Return every collective of a tensor, with the arguments that it needs besides."""
    return [
        (getattr(module, name), {"root_rank": 0} if "broadcast" in name else {})
        for name in TENSOR_CALLS
    ]


def check_names() -> None:
    hora.torch.init()
    for module, tensor in ((hora.numpy, np.ones(3)), (hora.torch, torch.ones(3))):
        for call, needed in calls(module):
            refused("name must be", call, tensor, name="\udc80", **needed)
            refused("name must be", call, tensor, name=5, **needed)
            refused("name must be", call, tensor, name=b"x", **needed)
            refused("4096 bytes", call, tensor, name="x" * 5000, **needed)
    assert hora.torch.allreduce(torch.ones(2), name="Zürich \U0001f600").eq(1).all()


def check_tensors() -> None:
    for call, needed in calls(hora.torch):
        for wrong in ([1.0, 2.0], None, 3.5, np.ones(3), "text"):
            refused("torch.Tensor", call, wrong, **needed)
    for call, needed in calls(hora.numpy):
        for wrong in (None, "text", object(), {"a": 1}):
            in_place = call.__name__.endswith("_")
            refused("NumPy array" if in_place else "Tensor type", call, wrong, **needed)


def check_numbers() -> None:
    for module, tensor in ((hora.numpy, np.ones(3)), (hora.torch, torch.ones(3))):
        for call, needed in calls(module):
            if needed:
                for wrong in ("0", 0.0, None, [0]):
                    refused("root_rank", call, tensor, root_rank=wrong)
                refused("root rank -1", call, tensor, root_rank=-1)
            elif "allreduce" in call.__name__:
                for wrong in ("Sum", 1.0, [1], 99, -1):
                    refused("op must be", call, tensor, op=wrong)
                for factor in ("prescale_factor", "postscale_factor"):
                    for wrong in ("2", None, [1.0]):
                        refused(factor, call, tensor, **{factor: wrong})
            refused("process_set", call, tensor, process_set=[0], **needed)
        refused("compression", module.allreduce, tensor, compression="fp16")
        refused("compression", module.allreduce, tensor, compression=None)
        refused("root_rank", module.broadcast_object, 1, root_rank="0")
        refused("root_rank", module.broadcast_parameters, {"a": tensor}, root_rank="0")
        refused("invalid params", module.broadcast_parameters, 7, root_rank=0)
        refused("Handle", module.poll, 12345)
        refused("process_set", module.barrier, process_set=1)
    assert hora.numpy.allreduce(np.ones(3), op=np.int64(1), prescale_factor=np.float32(2))[0] == 2


def check_optimizers() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    make = hora.torch.DistributedOptimizer
    refused("optimizer must be", make, model)
    for wrong in (model, [("a", 1)], [("a",)], [(1, model.weight)], 5):
        refused("named_parameters", make, optimizer, named_parameters=wrong)
    refused("compression", make, optimizer, compression="fp16")
    for wrong in ("2", 1.5, None):
        refused("backward_passes_per_step", make, optimizer, backward_passes_per_step=wrong)
    refused("op must be", make, optimizer, op="Sum")
    for wrong in (0, "2", None, float("nan")):
        refused("gradient_predivide_factor", make, optimizer, gradient_predivide_factor=wrong)
    refused("process_set", make, optimizer, process_set=0)


def check_nothing_was_started() -> None:
    from hora import _context

    assert not _context.current()._pending
    assert hora.torch.allreduce(torch.ones(1)).item() == 1
