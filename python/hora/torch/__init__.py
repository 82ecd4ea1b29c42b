"""Data-parallel training with PyTorch, with the names of ``horovod.torch``::

import hora.torch as hvd

hvd.init()
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "hora.torch needs PyTorch, which is not installed: run `pip install torch`. "
        "Collectives on NumPy arrays are in hora.numpy."
    ) from error

import hora
from hora import *  # noqa: F403
from hora._calls import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    contributors,
    join,
    poll,
    synchronize,
)
from hora._features import check_extension
from hora._objects import allgather_object
from hora.torch import elastic
from hora.torch.compression import Compression
from hora.torch.exchange import alltoall, alltoall_async, reducescatter, reducescatter_async
from hora.torch.functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from hora.torch.groups import (
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
)
from hora.torch.ops import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
)
from hora.torch.optimizer import DistributedOptimizer
from hora.torch.sparse import sparse_allreduce_async
from hora.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "check_extension",
    "contributors",
    "elastic",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += hora.__all__
