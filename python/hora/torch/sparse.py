"""Sparse tensors: allreduce as two gathers.

The sum of sparse tensors is the list of all their entries: indices and values are gathered, as a
group, and make an uncoalesced tensor; entries with the same index count together. An average
divides the values. The amounts may differ between ranks.
"""

from __future__ import annotations

from functools import partial
from typing import Callable

import torch

from hora import _calls, _core
from hora._calls import Average, Sum
from hora._refusals import telling
from hora.process_sets import ProcessSet, global_process_set, registered_id
from hora.torch.group_calls import start_gather
from hora.torch.tensors import require_tensor

__all__ = ["sparse_allreduce_async"]


def _start(tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> int:
    detached = tensor.detach()
    # Rows of the gathered tensor are entries, so indices travel transposed.
    parts = [detached._indices().t().contiguous(), detached._values()]
    return start_gather(parts, name, process_set)


def _result(handle: int, shape: torch.Size, divisor: int) -> torch.Tensor:
    indices, values = _calls.synchronize(handle)
    if divisor != 1:
        rounding = None if values.is_floating_point() else "trunc"
        values = torch.div(values, divisor, rounding_mode=rounding)
    # What the ranks sent were valid tensors of this shape.
    return torch.sparse_coo_tensor(indices.t(), values, shape, check_invariants=False)


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Start the allreduce of a sparse (COO) tensor.

    Parameters
    ----------
    tensor
        The same shape, numbers of sparse and dense dimensions, and dtype on all ranks; any number
        of entries, coalesced or not.
    name
        Names the call, the same on all ranks; counted if None.
    op
        Average divides by the number of ranks of the set; any other acts as Sum.
    process_set
        Whose ranks take part; this rank must be one of them.

    Returns
    -------
    A function that waits and returns the result, an uncoalesced tensor. Call it once.

    Raises
    ------
    ValueError
        The tensor is not sparse.
    """
    with telling(_core.ALLGATHER, name, process_set, members=2):
        registered_id(process_set, "allgather")
        require_tensor(tensor)
        if tensor.layout is not torch.sparse_coo:
            raise ValueError(
                f"sparse_allreduce_async needs a tensor of layout torch.sparse_coo, not "
                f"{tensor.layout}; use allreduce_async for dense ones."
            )
        divisor = len(process_set.ranks) if _calls.integer("op", op) == Average else 1
        return partial(_result, _start(tensor, name, process_set), tensor.shape, divisor)


def reduce_sparse(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> torch.Tensor:
    """Reduce a sparse tensor and wait: the `allreduce` of one.

    Raises
    ------
    ValueError
        The operation needs all entries of all ranks: it is neither Average nor Sum.
    """
    if op not in (Average, Sum):
        raise ValueError("allreduce of a sparse tensor takes op=hvd.Average or op=hvd.Sum only.")
    scaled = tensor.detach() if prescale == 1.0 else tensor.detach() * prescale
    result = sparse_allreduce_async(scaled, name, op, process_set)()
    return result if postscale == 1.0 else result * postscale
