"""DistributedOptimizer, where Horovod keeps it."""

from hora.torch.optimizer import *  # noqa: F403
