"""Compressors, where Horovod keeps it."""

from hora.torch.compression import *  # noqa: F403
