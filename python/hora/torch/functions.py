"""Starting from equal states: parameters, optimizer state, objects.

The state of an optimizer is a tree of options, numbers and tensors, and may exist on the root alone
(after it has loaded a checkpoint). So the root pickles the tree with a number in the place of each
tensor; the others build tensors from the shapes that come with it, and then all tensors are
broadcast in place, at once. No step is made up to create state: broadcasting changes nothing but
what it says.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from hora import _objects, _parameters
from hora.process_sets import ProcessSet, global_process_set
from hora.torch.ops import broadcast_async_
from hora.torch.optimizer import DistributedFace
from hora.torch.tensors import DTYPES

__all__ = ["broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(params: Mapping[str, Any] | Iterable[Any], root_rank: int) -> None:
    """Overwrite tensors with the root's, in place.

    Parameters
    ----------
    params
        A dict such as ``model.state_dict()``, or tensors or (name, tensor) tuples such as
        ``model.named_parameters()``, in a list or any other iterable; the same on all ranks. The
        tensors may be of any dtype, and have any layout in memory.
    root_rank
        Whose values they get.

    Raises
    ------
    ValueError
        `params` is of another type, or holds what is not a tensor: use `broadcast_object` for that.
    """
    _parameters.broadcast_all(params, root_rank, _broadcast_bits)


def _broadcast_bits(tensor: torch.Tensor, root: int, name: str | None) -> int:
    """Start the broadcast of a tensor; of a dtype that the core does not know, of its bits."""
    if not isinstance(tensor, torch.Tensor) or tensor.dtype in DTYPES:
        return broadcast_async_(tensor, root, name)
    bits = tensor.detach()
    if bits.is_conj():
        raise ValueError("A conjugate view cannot be broadcast in place; resolve_conj() it first.")
    if bits.is_complex():
        return broadcast_async_(torch.view_as_real(bits), root, name)
    as_integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return broadcast_async_(bits.view(as_integers[bits.element_size()]), root, name)


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's object on every rank of the set; None will do on the other ranks.

    The object is pickled (with cloudpickle where installed). The root gets its own object back.
    """
    return _objects.broadcast_object(obj, root_rank, name, process_set)


class _Pickler(pickle.Pickler):
    """Takes the tensors that can be broadcast out of the pickled tree."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        """Return the number that stands for `obj`, or None to pickle it."""
        if not isinstance(obj, torch.Tensor) or obj.layout is not torch.strided:
            return None
        if obj.dtype not in DTYPES or not obj.is_cpu:
            return None
        if id(obj) not in self._numbers:
            self._numbers[id(obj)] = len(self.tensors)
            self.tensors.append(obj)
        return self._numbers[id(obj)]


class _Unpickler(pickle.Unpickler):
    """Puts the tensors back."""

    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, pid: Any) -> torch.Tensor:
        """Return the tensor that `pid` stands for."""
        number: int = pid
        return self._tensors[number]


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Give every rank the optimizer state and the options of the root.

    The state need not exist on the other ranks. On the root nothing changes. Parameters that a
    distributed optimizer reduces have a gradient afterwards: zeros, where there was none.

    Parameters
    ----------
    optimizer
        The same class and number of parameters on all ranks.
    root_rank
        Whose state they get.
    model
        Not needed; accepted for compatibility.

    Raises
    ------
    ValueError
        The optimizer is LBFGS, or its parameters do not match the root's.
    HoraInternalError
        The root could not pickle its state.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    tensors: list[torch.Tensor] = []

    def dump() -> bytes:
        tree, taken_out = _taken_apart(optimizer)
        tensors.extend(taken_out)
        return pickle.dumps((tree, [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]))

    pickled = _objects.broadcast_pickle(dump, root_rank, "optimizer_state")
    if pickled is None:
        _broadcast_tensors(tensors, root_rank)
    else:
        tree, layout = pickle.loads(pickled)
        tensors.extend(torch.empty(shape, dtype=dtype) for dtype, shape in layout)
        _broadcast_tensors(tensors, root_rank)
        state = _Unpickler(io.BytesIO(tree), tensors).load()
        _install_state(optimizer, state, root_rank)
    if isinstance(optimizer, DistributedFace):
        optimizer.fill_gradients()


def _taken_apart(optimizer: torch.optim.Optimizer) -> tuple[bytes, list[torch.Tensor]]:
    """Return a state as a pickled tree with numbers in the places of its tensors, and these."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(optimizer.state_dict())
    return file.getvalue(), pickler.tensors


def _broadcast_tensors(tensors: list[torch.Tensor], root: int) -> None:
    named = [(f"optimizer_state.{i}", tensor) for i, tensor in enumerate(tensors)]
    _parameters.broadcast_all(named, root, broadcast_async_)


def _install_state(optimizer: torch.optim.Optimizer, state: dict[str, Any], root: int) -> None:
    """Put a state_dict in place as it is.

    `Optimizer.load_state_dict` would convert floating-point state to the dtype of its parameter,
    and so make ranks differ from the root.
    """
    groups = state["param_groups"]
    mine = [len(group["params"]) for group in optimizer.param_groups]
    theirs = [len(group["params"]) for group in groups]
    if mine != theirs:
        raise ValueError(
            f"broadcast_optimizer_state: this rank's optimizer has parameter groups of {mine} "
            f"parameters, that of rank {root} has {theirs}."
        )
    by_number: dict[Any, torch.Tensor] = {}
    for group, received in zip(optimizer.param_groups, groups):
        by_number.update(zip(received["params"], group["params"]))
        for key in [key for key in group if key not in received]:
            del group[key]
        group.update({key: value for key, value in received.items() if key != "params"})
    optimizer.state.clear()
    for key, value in state["state"].items():
        optimizer.state[by_number.get(key, key)] = value
