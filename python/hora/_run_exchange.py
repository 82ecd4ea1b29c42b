"""How ranks of ``hora.run`` on other hosts get their task and give back their results.

Ranks on the caller's host share its private folder. The others connect to the caller, at the
address at which they reach horarun, once for the task and once for the result::

    rank                                          caller
    a, mac("rank", a)                   ------>   wrong, or late: closed without a word
                                        <------   b, mac("caller", a, b)
    mac("order", a, b, order), order    ------>   "task", or "result" with a number and bytes
                                        <------   mac("answer", a, b, answer), answer

`a` and `b` are random, `mac` is HMAC-SHA256 under a key of this call, which travels as a variable
of the ranks' environment: what is unpickled on either side comes from who knows the key. Nothing
is encrypted.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import socket
import threading
from pathlib import Path

_NONCE = 32
_MAC = 32
_HELLO_PATIENCE_S = 10.0
_PATIENCE_S = 120.0
_VISITORS = 64  # At once; more are turned away and come again.
_ATTEMPTS = 20


def _mac(key: bytes, *parts: bytes) -> bytes:
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def _receive(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(min(count - len(data), 1 << 20))
        if not piece:
            raise ConnectionError("the other side has closed the connection")
        data += piece
    return bytes(data)


def _send_message(connection: socket.socket, mac: bytes, data: bytes) -> None:
    connection.sendall(mac + len(data).to_bytes(8, "little"))
    connection.sendall(data)


def _receive_message(connection: socket.socket, key: bytes, *context: bytes) -> bytes:
    mac = _receive(connection, _MAC)
    size = int.from_bytes(_receive(connection, 8), "little")
    data = _receive(connection, size)
    if not hmac.compare_digest(mac, _mac(key, *context, data)):
        raise ConnectionError("a message was changed on its way")
    return data


class Office:
    """The caller's side: hands out ``folder/task`` and takes ``folder/result.N``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = secrets.token_bytes(32)
        self._places = threading.Semaphore(_VISITORS)
        self._door = socket.create_server(("", 0), backlog=_VISITORS)
        self._thread = threading.Thread(target=self._serve, daemon=True, name="hora.run office")
        self._thread.start()

    @property
    def variables(self) -> dict[str, str]:
        """What ranks find the office by."""
        port = self._door.getsockname()[1]
        return {"HORA_RUN_PORT": str(port), "HORA_RUN_KEY": self._key.hex()}

    def close(self) -> None:
        """Accept no more visitors."""
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                visitor, _ = self._door.accept()
            except OSError:
                return
            if self._places.acquire(blocking=False):
                threading.Thread(target=self._receive_visitor, args=(visitor,), daemon=True).start()
            else:
                visitor.close()

    def _receive_visitor(self, visitor: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.closing(visitor):
            self._talk(visitor)
        self._places.release()

    def _talk(self, visitor: socket.socket) -> None:
        visitor.settimeout(_HELLO_PATIENCE_S)
        a = _receive(visitor, _NONCE)
        if not hmac.compare_digest(_receive(visitor, _MAC), _mac(self._key, b"rank", a)):
            return
        visitor.settimeout(_PATIENCE_S)
        b = secrets.token_bytes(_NONCE)
        visitor.sendall(b + _mac(self._key, b"caller", a, b))
        order = _receive_message(visitor, self._key, b"order", a, b)
        answer = self._carry_out(order)
        _send_message(visitor, _mac(self._key, b"answer", a, b, answer), answer)

    def _carry_out(self, order: bytes) -> bytes:
        if order == b"task":
            return self._folder.joinpath("task").read_bytes()
        kind, rank, data = order[:6], order[6:14], order[14:]
        if kind != b"result":
            return b""
        number = int.from_bytes(rank, "little")
        partial = self._folder / f"partial.{number}"
        partial.write_bytes(data)
        partial.rename(self._folder / f"result.{number}")
        return b"taken"


class Visitor:
    """A rank's side: asks the caller of the job that this process belongs to."""

    def __init__(self) -> None:
        # The key is for this process, not for those that it starts.
        self._key = bytes.fromhex(os.environ.pop("HORA_RUN_KEY"))
        port = int(os.environ.pop("HORA_RUN_PORT"))
        host = os.environ["HORA_RENDEZVOUS"].rpartition(":")[0].strip("[]")
        self._address = (host, port)

    def task(self) -> bytes:
        """Return the task."""
        return self._ask(b"task")

    def give(self, rank: int, data: bytes) -> None:
        """Hand in the result of a rank."""
        self._ask(b"result" + rank.to_bytes(8, "little") + data)

    def _ask(self, order: bytes) -> bytes:
        for attempt in range(_ATTEMPTS):
            try:
                return self._ask_once(order)
            except OSError as error:
                if attempt + 1 == _ATTEMPTS:
                    raise RuntimeError(
                        f"hora.run: the calling process cannot be reached at {self._address[0]}:"
                        f"{self._address[1]} ({error}). Let its host's firewall pass that port, or "
                        "set TMPDIR to a folder that all hosts share."
                    ) from error
                threading.Event().wait(0.05 * (attempt + 1))
        raise AssertionError

    def _ask_once(self, order: bytes) -> bytes:
        a = secrets.token_bytes(_NONCE)
        with socket.create_connection(self._address, timeout=_PATIENCE_S) as connection:
            connection.sendall(a + _mac(self._key, b"rank", a))
            b = _receive(connection, _NONCE)
            if not hmac.compare_digest(
                _receive(connection, _MAC), _mac(self._key, b"caller", a, b)
            ):
                raise ConnectionError("whoever answers does not know the key of this job")
            _send_message(connection, _mac(self._key, b"order", a, b, order), order)
            return _receive_message(connection, self._key, b"answer", a, b)
