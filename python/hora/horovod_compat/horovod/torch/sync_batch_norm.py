"""SyncBatchNorm, where Horovod keeps it."""

from hora.torch.sync_batch_norm import *  # noqa: F403
