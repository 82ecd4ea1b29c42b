"""What a gradient may be turned into for the journey.

A compressor is anything with the two static methods below; users may pass their own. A codec of
the core (`hora.codec`) is one too.
"""

from __future__ import annotations

from typing import Any

import torch

from hora._codec import Codec

__all__ = ["Compression", "Compressor"]


class Compressor:
    """Interface of a compressor: sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return what is sent, and what `decompress` needs to know."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the received tensor in its original form."""
        return tensor


class NoneCompressor(Compressor):
    """Sends tensors as they are."""


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16; others as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor as float16, and its dtype."""
        if tensor.dtype.is_floating_point:
            return tensor.to(torch.float16), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor in its original dtype."""
        return tensor if ctx is None else tensor.to(ctx)


class Compression:
    """The compressors that come with Hora."""

    none = NoneCompressor
    fp16 = FP16Compressor
    # Codecs of the core: rounded to bfloat16 on the way; to 8 bits, with error feedback, which
    # needs a name to keep the error under (an optimizer's gradients have names).
    bf16 = Codec("bf16")
    int8 = Codec("int8+ef")
