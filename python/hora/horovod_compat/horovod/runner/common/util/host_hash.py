"""A name that processes have in common if they share a host and its memory, as Horovod makes it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket

__all__ = ["host_hash"]


def _hash(string: str) -> str:
    return hashlib.md5(string.encode(), usedforsecurity=False).hexdigest()


def _namespaces() -> str:
    """Return what tells the containers of a host apart."""
    links = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir("/proc/self/ns")):
            links.append(os.readlink(f"/proc/self/ns/{name}"))
    return " ".join(links)


def host_hash(salt: str | None = None) -> str:
    """Return the host's name and a hash; processes with different salts get different ones."""
    name = socket.gethostname()
    text = f"{name}-{_namespaces()}" + (f"-{salt}" if salt else "")
    return f"{name.partition('.')[0]}-{_hash(text)}"
