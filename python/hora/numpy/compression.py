"""What a tensor may be turned into for the journey."""

from __future__ import annotations

from typing import Any

import numpy as np

from hora._codec import Codec
from hora.numpy.arrays import Array


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
    # Codecs of the core: rounded to bfloat16 on the way; to 8 bits, with error feedback, which
    # needs a name to keep the error under.
    bf16 = Codec("bf16")
    int8 = Codec("int8+ef")
