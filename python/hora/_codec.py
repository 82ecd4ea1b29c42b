"""Codecs of the core, as compressors.

A codec works inside the core, segment by segment: what is sent is encoded there, and what comes is
decoded. So to Python it is a compressor that changes nothing, with words that the core is given
beside the tensor.
"""

from __future__ import annotations

from typing import Any, TypeVar

from hora import _core
from hora._calls import Adasum

Tensor = TypeVar("Tensor")


class Codec:
    """A compressor that the core runs. Made by `codec`."""

    def __init__(self, words: str) -> None:
        if not isinstance(words, str):
            raise TypeError(f"a codec is made from a str, not {type(words).__name__}.")
        self.words = _core.codec(words)

    def __repr__(self) -> str:
        return f"hora.codec({self.words or 'none'!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Codec) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.words)

    def compress(self, tensor: Tensor) -> tuple[Tensor, Any]:
        """Return the tensor as it is: it is encoded in the core."""
        return tensor, None

    def decompress(self, tensor: Tensor, ctx: Any) -> Tensor:
        """Return the tensor as it is: it was decoded in the core."""
        return tensor


def codec(words: str) -> Codec:
    """Return a codec for the argument `compression`.

    Parameters
    ----------
    words
        ``name``, ``name(key=value, ...)``, and ``+ef`` behind it for error feedback: what encoding
        loses is kept on its rank and added to the next tensor of the same name.

        ======================  ===============================================================
        ``none``                numbers as they are
        ``fp16``                float16: half the bytes of float32, largest number 65504
        ``bf16``                bfloat16: half the bytes, the range of float32
        ``int8``                a quarter: 8 bits, and a scale for every 256 elements
        ``topk(ratio=0.01)``    of every part of a tensor the largest elements, 8 bytes each; only
                                with ``+ef`` does training converge
        ======================  ===============================================================

    Only sums and averages of floating-point tensors are encoded; others are sent as they are, and
    Adasum with a codec is an error. All ranks must give the same codec.

    Raises
    ------
    ValueError
        There is no such codec, key or value.
    """
    return Codec(words)


def words_of(compression: Any, op: int) -> str:
    """Return what the core is told about a compressor: the words of a codec, or nothing.

    Raises
    ------
    ValueError
        A codec with Adasum, which adds no encoded tensors.
    """
    words = compression.words if isinstance(compression, Codec) else ""
    if words and op == Adasum:
        raise ValueError(
            f"compression={compression!r} is for sums and averages, not for op=hvd.Adasum: use "
            "hvd.Compression.fp16, a compressor of yours, or none."
        )
    return words
