"""Grouped collectives without autograd: what `groups` and their gradients are made of."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from hora import _calls, _core
from hora.process_sets import ProcessSet
from hora.torch.tensors import DTYPES, core_output, output_for, readable, write_back


def start(
    kind: int,
    name: str | None,
    sources: list[torch.Tensor],
    targets: list[torch.Tensor] | None,
    finish: Any,
    op: int = _calls.Sum,
    prescale: float = 1.0,
    postscale: float = 1.0,
    *,
    process_set: ProcessSet,
    codec: str = "",
) -> int:
    """Start a group; without `targets` the core makes the outputs."""
    return _calls.start_group(
        kind,
        name,
        [DTYPES[source.dtype] for source in sources],
        [tuple(source.shape) for source in sources],
        [source.data_ptr() for source in sources],
        [target.data_ptr() for target in targets] if targets else [0] * len(sources),
        finish,
        op,
        prescale,
        postscale,
        process_set,
        codec,
    )


def _made(sources: list[torch.Tensor], handles: list[_core.Handle]) -> list[torch.Tensor]:
    return [core_output(source, handle) for source, handle in zip(sources, handles)]


def written(
    tensors: list[torch.Tensor], buffers: list[torch.Tensor], _: list[_core.Handle]
) -> list[torch.Tensor]:
    """Finish: the tensors of an in-place call, with what is in their buffers."""
    return [write_back(tensor, buffer) for tensor, buffer in zip(tensors, buffers)]


def start_reduce(
    tensors: list[torch.Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    codec: str = "",
) -> int:
    """Start a grouped allreduce into new tensors."""
    sources = [readable(tensor) for tensor in tensors]
    outputs = [output_for(tensor, source) for tensor, source in zip(tensors, sources)]
    finish = partial(_calls.output, sources, outputs)
    return start(
        _core.ALLREDUCE,
        name,
        sources,
        outputs,
        finish,
        op,
        prescale,
        postscale,
        process_set=process_set,
        codec=codec,
    )


def start_gather(tensors: list[torch.Tensor], name: str | None, process_set: ProcessSet) -> int:
    """Start a grouped allgather."""
    sources = [readable(tensor) for tensor in tensors]
    return start(
        _core.ALLGATHER, name, sources, None, partial(_made, sources), process_set=process_set
    )


def start_scatter(
    tensors: list[torch.Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> int:
    """Start a grouped reducescatter."""
    sources = [readable(tensor) for tensor in tensors]
    finish = partial(_made, sources)
    return start(
        _core.REDUCESCATTER,
        name,
        sources,
        None,
        finish,
        op,
        prescale,
        postscale,
        process_set=process_set,
    )
