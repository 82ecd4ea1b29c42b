"""What the environment says of this process before `init`."""

from __future__ import annotations

import os
import re

__all__ = ["get_env_rank_and_size", "is_exportable"]

_PAIRS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
_IGNORED = re.compile(r"BASH_FUNC_.*|OLDPWD|.*CUDA_VISIBLE_DEVICES")


def is_exportable(v: str) -> bool:
    """Return whether a variable is handed to workers."""
    return _IGNORED.match(v) is None


def get_env_rank_and_size() -> tuple[int, int]:
    """Return this process's rank and the size; (0, 1) if no launcher has set them."""
    for rank_name, size_name in _PAIRS:
        rank, size = os.environ.get(rank_name), os.environ.get(size_name)
        if rank is not None and size is not None:
            return int(rank), int(size)
        if rank is not None or size is not None:
            raise RuntimeError(
                f"Could not determine process rank and size: only one of {rank_name} and "
                f"{size_name} found in environment"
            )
    return 0, 1
