"""NumPy arrays as memory.

The core wants contiguous, aligned host memory. What is not is copied; then in-place collectives
copy the result back. Results that the core makes are arrays on its memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hora import _core

Array = NDArray[Any]

NUMBERS: dict[np.dtype[Any], int] = {}


def dtype_number(dtype: np.dtype[Any]) -> int:
    """Return the core's number of a dtype; ValueError if it has none."""
    number = NUMBERS.get(dtype)
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
        NUMBERS[dtype] = number
    return number


def readable(tensor: ArrayLike) -> Array:
    """Return the values as an aligned C-contiguous array; a private copy unless they are one."""
    array = np.asarray(tensor)
    dtype_number(array.dtype)
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return array.copy(order="C")


def writable(tensor: Array) -> Array:
    """Return the buffer of an in-place call: the array, or a copy if it is not contiguous."""
    if isinstance(tensor, np.ndarray) and tensor.flags.carray and tensor.dtype in NUMBERS:
        return tensor  # Contiguous, aligned and writable, and not the first of its type.
    if not isinstance(tensor, np.ndarray):
        raise ValueError(
            f"An in-place collective needs a NumPy array, not {type(tensor).__name__}."
        )
    if not tensor.flags.writeable:
        raise ValueError("An in-place collective needs a writable array; this one is read-only.")
    return readable(tensor)


def write_back(tensor: Array, buffer: Array, _: _core.Handle | None = None) -> Array:
    """Finish an in-place call whose result is in `buffer`; returns `tensor`."""
    if buffer is not tensor:
        np.copyto(tensor, buffer)
    return tensor


def core_output(dtype: np.dtype[Any], source: Array, handle: _core.Handle) -> Array:
    """Return the result that the core has made: its memory, not a copy.

    `source` is an argument so that a partial of this function keeps it alive.
    """
    shape = handle.output_shape
    output = handle.take_output(dtype.itemsize)
    if len(output) == 0:
        return np.empty(shape, dtype)
    result: Array = np.frombuffer(memoryview(output), dtype).reshape(shape)
    return result
