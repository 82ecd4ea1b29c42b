"""What the tests of torch collectives send: all dtypes, and inputs that every rank can compute."""

from __future__ import annotations

import zlib

import numpy as np
import torch

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DTYPES = [*INTEGERS, *FLOATS, torch.bool]


def made(rank: int, case: object, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return what `rank` sends in a case: small integers, at most 3 in magnitude."""
    generator = np.random.default_rng([rank, zlib.crc32(repr(case).encode())])
    low = 0 if dtype in (torch.uint8, torch.bool) else -3
    values = generator.integers(low, 2 if dtype == torch.bool else 4, size=shape)
    return torch.from_numpy(np.asarray(values)).to(dtype)
