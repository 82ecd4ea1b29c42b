"""Python objects as bytes through the tensor collectives.

Broadcast: the root sends a header (length, whether pickling failed), then the bytes. The names of
both do not depend on the object, so ranks that pass None take part; and when the root cannot pickle
its object, the others learn it instead of waiting. Allgather: the pickles are one gathered array
with as many rows per rank as its pickle has bytes, so lengths need no exchange; a last byte tells
of a rank that could not pickle its own.

Objects are unpickled: they come from ranks of this job, which have proven that they know its
secret.
"""

from __future__ import annotations

import importlib
import pickle
import struct
from typing import Any, Callable

from hora import _calls, _context, _core
from hora._refusals import telling
from hora.exceptions import HoraInternalError
from hora.process_sets import ProcessSet, global_process_set, registered_id

_HEADER = struct.Struct("qq")


def dumps(obj: object) -> bytes:
    """Pickle `obj`; where installed by cloudpickle, which takes lambdas and local classes too."""
    try:
        pickler: Any = importlib.import_module("cloudpickle")
    except ImportError:
        pickler = pickle
    pickled: bytes = pickler.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    return pickled


def _broadcast_bytes(buffer: bytearray, root: int, name: str, process_set: ProcessSet) -> None:
    address = _core.address(buffer)
    _context.current().runtime.run(
        _core.BROADCAST,
        name,
        _core.DTYPES["uint8"],
        (len(buffer),),
        address,
        address,
        buffer,
        root=root,
        process_set=registered_id(process_set, "broadcast"),
    )


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's object on every rank of the set.

    Parameters
    ----------
    obj
        The root's object; ignored elsewhere.
    root_rank
        Whose object it is.
    name
        Names the call, the same on all ranks; needed only when several are under way at once.
    process_set
        Whose ranks take part; the root is one of them.

    Raises
    ------
    HoraInternalError
        The root could not pickle its object (there, the original exception is raised).
    """
    name = "object" if name is None else name
    pickled = broadcast_pickle(lambda: dumps(obj), root_rank, name, process_set)
    return obj if pickled is None else pickle.loads(pickled)


def broadcast_pickle(
    dump: Callable[[], bytes],
    root_rank: int,
    name: str,
    process_set: ProcessSet = global_process_set,
) -> bytearray | None:
    """Return what the root's `dump` returns, on the other ranks; None on the root itself.

    `dump` is called on the root alone. What it raises is raised there, and as a HoraInternalError
    on the others.
    """
    with telling(_core.BROADCAST, f"{name}.header", process_set):
        root = _calls.checked_root(root_rank, process_set)
    if _context.current().rank == root:
        _send_pickle(dump, root, name, process_set)
        return None
    header = bytearray(_HEADER.size)
    _broadcast_bytes(header, root, f"{name}.header", process_set)
    length, failed = _HEADER.unpack(header)
    payload = bytearray(length)
    _broadcast_bytes(payload, root, f"{name}.data", process_set)
    if failed:
        raise _not_pickled("broadcast", name, root, payload)
    return payload


def _send_pickle(dump: Callable[[], bytes], root: int, name: str, process_set: ProcessSet) -> None:
    payload, error = _tried(dump)
    header = bytearray(_HEADER.pack(len(payload), error is not None))
    _broadcast_bytes(header, root, f"{name}.header", process_set)
    _broadcast_bytes(payload, root, f"{name}.data", process_set)
    if error is not None:
        raise error


def _tried(dump: Callable[[], bytes]) -> tuple[bytearray, Exception | None]:
    """Return a pickle, or the text of what was raised instead, and that."""
    try:
        return bytearray(dump()), None
    except Exception as error:
        return bytearray(f"{type(error).__name__}: {error}".encode()), error


def _not_pickled(what: str, name: str, rank: int, text: Any) -> HoraInternalError:
    error = HoraInternalError(
        f"{what}_object '{name}': rank {rank} could not pickle its object: "
        + bytes(text).decode(errors="replace")
    )
    error.kind = "unsupported"
    error.peer = rank
    return error


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the objects of all ranks of the set, in rank order.

    `name` names the call, the same on all ranks; needed only when several are under way at once.

    Raises
    ------
    HoraInternalError
        A rank could not pickle its object (there, the original exception is raised).
    """
    name = "object" if name is None else name
    payload, error = _tried(lambda: dumps(obj))
    # Each rank's bytes end with whether they are a text instead of a pickle.
    payload.append(error is not None)
    with telling(_core.ALLGATHER, name, process_set):
        number = registered_id(process_set, "allgather")
    handle = _context.current().runtime.produce(
        _core.ALLGATHER,
        name,
        _core.DTYPES["uint8"],
        (len(payload),),
        _core.address(payload),
        payload,
        process_set=number,
    )
    gathered = memoryview(handle.take_output(1))
    if error is not None:
        raise error
    objects = []
    offset = 0
    for rank, length in zip(process_set.ranks, handle.first_dims):
        pickled, failed = gathered[offset : offset + length - 1], gathered[offset + length - 1]
        if failed:
            raise _not_pickled("allgather", name, rank, pickled)
        objects.append(pickle.loads(pickled))
        offset += length
    return objects
