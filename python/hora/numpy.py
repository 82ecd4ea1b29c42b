"""Collectives on NumPy arrays.

Every function takes any array-like of a supported dtype: int8 to int64, uint8, uint16, bool,
float16, float32, float64, and bfloat16 where the package ml_dtypes is installed. Layout does not
matter: what is not contiguous is copied. Results are new, C-contiguous arrays; the functions that
end in ``_`` work in place.

The functions that end in ``_async`` return a handle for `poll` and `synchronize`; until then the
input must not be changed, nor the output of an in-place function be used. All ranks must call with
the same names; unnamed calls are counted, so they must come in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import hora
from hora import *  # noqa: F403
from hora import _calls, _context, _core, _objects, _parameters
from hora._calls import Adasum, Average, Max, Min, Product, Sum, join, poll, synchronize
from hora._objects import allgather_object
from hora.process_sets import ProcessSet, global_process_set, registered_id

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_parameters",
    "join",
    "poll",
    "synchronize",
]
__all__ += hora.__all__

Array = NDArray[Any]

_NUMBERS: dict[np.dtype[Any], int] = {}


def _dtype_number(dtype: np.dtype[Any]) -> int:
    number = _NUMBERS.get(dtype)
    if number is None:
        if not dtype.isnative:
            raise ValueError(
                f"Tensor type {dtype} is not supported: it is not in this machine's byte order. "
                "Convert it with array.astype(array.dtype.newbyteorder('='))."
            )
        number = _core.DTYPES.get(dtype.name)
        if number is None:
            raise ValueError(
                f"Tensor type {dtype} is not supported. Convert the array to one of "
                f"{', '.join(_core.DTYPES)}; send complex numbers as array.view of their parts."
            )
        _NUMBERS[dtype] = number
    return number


def _readable(tensor: ArrayLike) -> Array:
    """Return the values as an aligned C-contiguous array; a private copy unless they are one."""
    array = np.asarray(tensor)
    _dtype_number(array.dtype)
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return array.copy(order="C")


def _writable(tensor: Array) -> Array:
    """Return the buffer of an in-place call: the array, or a copy if it is not contiguous."""
    if isinstance(tensor, np.ndarray) and tensor.flags.carray and tensor.dtype in _NUMBERS:
        return tensor  # Contiguous, aligned and writable, and not the first of its type.
    if not isinstance(tensor, np.ndarray):
        raise ValueError(
            f"An in-place collective needs a NumPy array, not {type(tensor).__name__}."
        )
    if not tensor.flags.writeable:
        raise ValueError("An in-place collective needs a writable array; this one is read-only.")
    return _readable(tensor)


def _write_back(tensor: Array, buffer: Array, _: _core.Handle | None = None) -> Array:
    if buffer is not tensor:
        np.copyto(tensor, buffer)
    return tensor


class _NoneCompressor:
    """Sends arrays as they are."""

    @staticmethod
    def compress(tensor: Array) -> tuple[Array, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Array, ctx: Any) -> Array:
        return tensor


class _FP16Compressor:
    """Sends floating-point arrays as float16."""

    @staticmethod
    def compress(tensor: Array) -> tuple[Array, Any]:
        if np.issubdtype(tensor.dtype, np.floating):
            return tensor.astype(np.float16), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: Array, ctx: Any) -> Array:
        return tensor if ctx is None else tensor.astype(ctx)


class Compression:
    """What a tensor may be turned into for the journey."""

    none = _NoneCompressor
    fp16 = _FP16Compressor


def _gathered(dtype: np.dtype[Any], source: Array, handle: _core.Handle) -> Array:
    shape = handle.output_shape
    output = handle.take_output(dtype.itemsize)
    if len(output) == 0:
        return np.empty(shape, dtype)
    result: Array = np.frombuffer(memoryview(output), dtype).reshape(shape)
    return result


def allreduce(
    tensor: ArrayLike,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Reduce a tensor over the ranks of a process set.

    Parameters
    ----------
    tensor
        The same shape and dtype on all ranks of the set.
    average
        Deprecated: True means ``op=Average``, False ``op=Sum``.
    name
        Names the call, the same on all ranks; counted if None.
    compression
        `Compression.none` or `Compression.fp16`.
    op
        Average (if None), Sum, Min, Max or Product.
    prescale_factor, postscale_factor
        Multiply each input before, and the result after the reduction.
    process_set
        Whose ranks reduce; they alone call.

    Returns
    -------
    A new array of the same shape, equal on all ranks of the set to the last bit.

    Raises
    ------
    ValueError
        An argument is wrong, or the name is still in flight.
    HoraInternalError
        The ranks disagree, or the job has failed.
    """
    op = _calls.reduction(op, average)
    if compression is not Compression.none:
        _calls.require_compressor(compression)
    compressed, ctx = compression.compress(np.asarray(tensor))
    source = _readable(compressed)
    output = np.empty(source.shape, source.dtype)
    _context.current().runtime.run(
        _core.ALLREDUCE,
        name,
        _NUMBERS[source.dtype],
        source.shape,
        _core.address(source),
        _core.address(output),
        (source, output),
        op,
        prescale_factor,
        postscale_factor,
        0,
        registered_id(process_set, "allreduce"),
    )
    result: Array = compression.decompress(output, ctx)
    return result


def allreduce_async(
    tensor: ArrayLike,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an `allreduce` and return its handle."""
    op = _calls.reduction(op, average)
    source = _readable(tensor)
    output = np.empty(source.shape, source.dtype)
    finish = partial(_keep, source, output)
    return _start_allreduce(
        name, source, output, finish, op, prescale_factor, postscale_factor, process_set
    )


def allreduce_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Reduce in place and return the same array; see `allreduce`."""
    op = _calls.reduction(op, average)
    buffer = _writable(tensor)
    address = _core.address(buffer)
    _context.current().runtime.run(
        _core.ALLREDUCE,
        name,
        _NUMBERS[buffer.dtype],
        buffer.shape,
        address,
        address,
        buffer,
        op,
        prescale_factor,
        postscale_factor,
        0,
        registered_id(process_set, "allreduce"),
    )
    return _write_back(tensor, buffer)


def allreduce_async_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an `allreduce_` and return its handle."""
    op = _calls.reduction(op, average)
    buffer = _writable(tensor)
    finish = partial(_write_back, tensor, buffer)
    return _start_allreduce(
        name, buffer, buffer, finish, op, prescale_factor, postscale_factor, process_set
    )


def _keep(source: Array, output: Array, _: _core.Handle) -> Array:
    return output


def _start_allreduce(
    name: str | None,
    source: Array,
    output: Array,
    finish: _context.Finish,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> int:
    return _calls.start(
        _core.ALLREDUCE,
        name,
        _NUMBERS[source.dtype],
        source.shape,
        _core.address(source),
        _core.address(output),
        finish,
        op,
        prescale,
        postscale,
        process_set=process_set,
    )


def allgather(
    tensor: ArrayLike,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Concatenate the tensors of the set's ranks along their first dimension, in rank order.

    The first dimension may differ between ranks, also be 0; the others must be equal.
    """
    source = _readable(tensor)
    handle = _context.current().runtime.gather(
        name,
        _NUMBERS[source.dtype],
        source.shape,
        _core.address(source),
        source,
        registered_id(process_set, "allgather"),
    )
    return _gathered(source.dtype, source, handle)


def allgather_async(
    tensor: ArrayLike,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an `allgather` and return its handle."""
    source = _readable(tensor)
    return _calls.start(
        _core.ALLGATHER,
        name,
        _NUMBERS[source.dtype],
        source.shape,
        _core.address(source),
        0,
        partial(_gathered, source.dtype, source),
        process_set=process_set,
    )


def broadcast(
    tensor: ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Return the root's tensor on every rank of the set, as a new array.

    `root_rank` is a rank of the job, not a place in the set. Shape and dtype must be equal on all
    ranks of the set.
    """
    buffer = np.array(tensor, order="C")
    return broadcast_(buffer, root_rank, name, process_set)


def broadcast_async(
    tensor: ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a `broadcast` and return its handle."""
    buffer = np.array(tensor, order="C")
    return broadcast_async_(buffer, root_rank, name, process_set)


def broadcast_(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Overwrite the tensor with the root's, in place, and return it."""
    root = _calls.checked_root(root_rank, process_set)
    buffer = _writable(tensor)
    address = _core.address(buffer)
    _context.current().runtime.run(
        _core.BROADCAST,
        name,
        _NUMBERS[buffer.dtype],
        buffer.shape,
        address,
        address,
        buffer,
        root=root,
        process_set=registered_id(process_set, "broadcast"),
    )
    return _write_back(tensor, buffer)


def broadcast_async_(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a `broadcast_` and return its handle."""
    root = _calls.checked_root(root_rank, process_set)
    buffer = _writable(tensor)
    address = _core.address(buffer)
    return _calls.start(
        _core.BROADCAST,
        name,
        _NUMBERS[buffer.dtype],
        buffer.shape,
        address,
        address,
        partial(_write_back, tensor, buffer),
        root=root,
        process_set=process_set,
    )


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the set have come here."""
    _calls.barrier(process_set)


def broadcast_parameters(params: Mapping[str, Array] | Iterable[Any], root_rank: int) -> None:
    """Overwrite arrays with the root's, in place.

    Parameters
    ----------
    params
        A dict of arrays, or an iterable of arrays or (name, array) tuples; in the same order on
        all ranks.
    root_rank
        Whose values they get.
    """
    _parameters.broadcast_all(params, root_rank, broadcast_async_)


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's object on every rank of the set; None will do on the other ranks."""
    return _objects.broadcast_object(obj, root_rank, name, process_set)
