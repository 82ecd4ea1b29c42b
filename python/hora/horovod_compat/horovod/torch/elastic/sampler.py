"""The sampler, where Horovod keeps it."""

from hora.torch.elastic.sampler import *  # noqa: F403
