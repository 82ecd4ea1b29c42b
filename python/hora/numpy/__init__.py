"""Collectives on NumPy arrays.

Every function takes any array-like of a supported dtype: int8 to int64, uint8, uint16, bool,
float16, float32, float64, and bfloat16 where the package ml_dtypes is installed. Layout does not
matter: what is not contiguous is copied. Results are new, C-contiguous arrays; the functions that
end in ``_`` work in place.

The functions that end in ``_async`` return a handle for `poll` and `synchronize`; until then the
input must not be changed, nor the output of an in-place function be used. All ranks must call with
the same names; unnamed calls are counted, so they must come in the same order.
"""

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
from hora._objects import allgather_object
from hora.numpy.compression import Compression
from hora.numpy.exchange import alltoall, alltoall_async, reducescatter, reducescatter_async
from hora.numpy.groups import (
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
)
from hora.numpy.ops import (
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
    broadcast_object,
    broadcast_parameters,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "Max",
    "Min",
    "Product",
    "Sum",
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
    "broadcast_parameters",
    "contributors",
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
    "synchronize",
]
__all__ += hora.__all__
