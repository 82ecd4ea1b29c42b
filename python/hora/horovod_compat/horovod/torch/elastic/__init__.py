"""Elastic training, where Horovod keeps it."""

from hora.torch.elastic import *  # noqa: F403
