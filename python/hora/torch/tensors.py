"""Torch tensors as memory.

The core wants contiguous host memory. A tensor that is not contiguous (a transposed view,
channels_last) is copied; then in-place collectives copy the result back. Tensors that have no such
memory at all are refused with a message that says what to do instead.

Nothing here uses torch's C++ headers, so one build of Hora works with every version of torch.
"""

from __future__ import annotations

from typing import Any

import torch

from hora import _core

DTYPES: dict[torch.dtype, int] = {
    getattr(torch, name): number for name, number in _core.DTYPES.items() if hasattr(torch, name)
}

# Tells autograd that memory was written behind its back (torch >= 2.1).
_increment_version = getattr(torch.autograd.graph, "increment_version", None)


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values as a contiguous host tensor: `tensor` itself, or a private copy.

    Raises
    ------
    ValueError
        The dtype, device or layout is not supported.
    """
    if (
        not isinstance(tensor, torch.Tensor)
        or tensor.dtype not in DTYPES
        or tensor.layout is not torch.strided
        or not tensor.is_cpu
    ):
        _refuse(tensor)
    aligned = tensor.data_ptr() % tensor.element_size() == 0
    if aligned and tensor.is_contiguous() and not tensor.is_neg():
        return tensor
    return tensor.detach().resolve_neg().clone(memory_format=torch.contiguous_format)


def require_tensor(tensor: Any) -> None:
    """Raise ValueError unless `tensor` is one of torch's."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"A collective needs a torch.Tensor, not {type(tensor).__name__}.")


def _refuse(tensor: Any) -> None:
    require_tensor(tensor)
    if tensor.device.type == "meta":
        raise ValueError("A tensor on the meta device has no data to send.")
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"Tensors of layout {tensor.layout} are not supported; call tensor.to_dense() first "
            "(or pass sparse_as_dense=True to DistributedOptimizer)."
        )
    if tensor.dtype not in DTYPES:
        advice = (
            "Send torch.view_as_real(tensor)"
            if tensor.is_complex()
            else f"Convert it to one of {', '.join(str(dtype) for dtype in DTYPES)}"
        )
        raise ValueError(f"Tensor type {tensor.dtype} is not supported. {advice}.")
    raise ValueError(
        f"The tensor is on {tensor.device}, but Hora's plug-in for that device is not installed. "
        "Call tensor.cpu() and move the result back."
    )


def writable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the buffer of an in-place call: `tensor`, or a copy that `write_back` copies back."""
    buffer = readable(tensor)
    if buffer is not tensor and any(
        stride == 0 and extent > 1 for stride, extent in zip(tensor.stride(), tensor.shape)
    ):
        raise ValueError(
            "An in-place collective cannot write to an expanded tensor, whose elements share "
            "memory; call tensor.clone() first."
        )
    return buffer


def write_back(
    tensor: torch.Tensor, buffer: torch.Tensor, _: _core.Handle | None = None
) -> torch.Tensor:
    """Finish an in-place call whose result is in `buffer`; returns `tensor`."""
    if buffer is not tensor:
        with torch.no_grad():
            tensor.copy_(buffer)
    elif _increment_version is not None and not tensor.is_inference():
        _increment_version(tensor)
    return tensor


def output_for(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Return where the result of reducing `tensor` goes: its private copy if there is one."""
    return torch.empty_like(source) if source is tensor else source


def core_output(source: torch.Tensor, handle: _core.Handle) -> torch.Tensor:
    """Return the result that the core has made, of `source`'s dtype: its memory, not a copy."""
    shape = handle.output_shape
    output = handle.take_output(source.element_size())
    if len(output) == 0:
        return torch.empty(shape, dtype=source.dtype)
    return torch.frombuffer(output, dtype=source.dtype).view(shape)
