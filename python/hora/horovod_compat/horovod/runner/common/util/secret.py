"""Proofs that a message comes from somebody who knows a secret, where Horovod keeps them."""

from __future__ import annotations

import hmac
import secrets

__all__ = [
    "DIGEST_LENGTH",
    "SECRET_LENGTH",
    "check_digest",
    "compute_digest",
    "make_secret_key",
]

SECRET_LENGTH = 32
DIGEST_LENGTH = 32


def make_secret_key() -> bytes:
    """Return random bytes."""
    return secrets.token_bytes(SECRET_LENGTH)


def compute_digest(key: bytes, message: bytes) -> bytes:
    """Return the HMAC-SHA256 of a message."""
    return hmac.digest(key, message, "sha256")


def check_digest(key: bytes, message: bytes, digest: bytes) -> bool:
    """Return whether a digest is that of the message."""
    return hmac.compare_digest(compute_digest(key, message), digest)
