"""Python objects as bytes through the tensor collectives.

Broadcast: the root sends a header (length, whether pickling failed), then the bytes. The names of
both do not depend on the object, so ranks that pass None take part; and when the root cannot pickle
its object, the others learn it instead of waiting. Allgather: the pickles are one gathered array
with as many rows per rank as its pickle has bytes, so lengths need no exchange.

Objects are unpickled: they come from ranks of this job, which have proven that they know its
secret.
"""

from __future__ import annotations

import ctypes
import importlib
import pickle
import struct
from typing import Any

from hora import _calls, _context, _core
from hora.exceptions import HoraInternalError

_HEADER = struct.Struct("qq")


def dumps(obj: object) -> bytes:
    """Pickle `obj`; where installed by cloudpickle, which takes lambdas and local classes too."""
    try:
        pickler: Any = importlib.import_module("cloudpickle")
    except ImportError:
        pickler = pickle
    pickled: bytes = pickler.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    return pickled


def _address(buffer: bytearray) -> int:
    """Return where a buffer's bytes are; it may not be resized while they are in use."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer)) if buffer else 0


def _broadcast_bytes(buffer: bytearray, root: int, name: str) -> None:
    address = _address(buffer)
    _calls.run(
        _core.BROADCAST,
        name,
        _core.DTYPES["uint8"],
        (len(buffer),),
        address,
        address,
        buffer,
        root=root,
    )


def broadcast_object(obj: Any = None, root_rank: int = 0, name: str | None = None) -> Any:
    """Return the root's object on every rank.

    Parameters
    ----------
    obj
        The root's object; ignored elsewhere.
    root_rank
        Whose object it is.
    name
        Names the call, the same on all ranks; needed only when several are under way at once.

    Raises
    ------
    HoraInternalError
        The root could not pickle its object (there, the original exception is raised).
    """
    name = "object" if name is None else name
    root = _calls.checked_root(root_rank)
    if _context.current().rank == root:
        return _send_object(obj, root, name)
    header = bytearray(_HEADER.size)
    _broadcast_bytes(header, root, f"{name}.header")
    length, failed = _HEADER.unpack(header)
    payload = bytearray(length)
    _broadcast_bytes(payload, root, f"{name}.data")
    if failed:
        raise HoraInternalError(
            f"broadcast_object '{name}': rank {root} could not pickle its object: "
            + payload.decode(errors="replace")
        )
    return pickle.loads(payload)


def _send_object(obj: Any, root: int, name: str) -> Any:
    error: Exception | None = None
    try:
        payload = bytearray(dumps(obj))
    except Exception as caught:
        error = caught
        payload = bytearray(f"{type(caught).__name__}: {caught}".encode())
    header = bytearray(_HEADER.pack(len(payload), error is not None))
    _broadcast_bytes(header, root, f"{name}.header")
    _broadcast_bytes(payload, root, f"{name}.data")
    if error is not None:
        raise error
    return obj


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return the objects of all ranks, in rank order.

    `name` names the call, the same on all ranks; needed only when several are under way at once.
    """
    payload = bytearray(dumps(obj))
    handle = _calls.run(
        _core.ALLGATHER,
        "object" if name is None else name,
        _core.DTYPES["uint8"],
        (len(payload),),
        _address(payload),
        0,
        payload,
    )
    gathered = memoryview(handle.take_output(1))
    objects = []
    offset = 0
    for length in handle.first_dims:
        objects.append(pickle.loads(gathered[offset : offset + length]))
        offset += length
    return objects
