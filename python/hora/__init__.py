"""Hora: elastic all-reduce for data-parallel training.

Start a script on several processes with ``horarun -np 4 python script.py`` and, in it::

    import hora.torch as hvd  # or hora.numpy

    hvd.init()
    print(hvd.allreduce(tensor))

The functions have Horovod's names, arguments and meaning. This package alone needs neither torch
nor numpy.
"""

from hora import _core
from hora._codec import codec
from hora._context import (
    cross_rank,
    cross_size,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from hora._features import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from hora._run import run
from hora._startup import init
from hora.exceptions import HoraInternalError, HorovodInternalError
from hora.process_sets import (
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    global_process_set,
    process_set_included,
    remove_process_set,
)

__version__ = _core.__version__

__all__ = [
    "HoraInternalError",
    "HorovodInternalError",
    "ProcessSet",
    "__version__",
    "add_process_set",
    "ccl_built",
    "codec",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included",
    "rank",
    "remove_process_set",
    "rocm_built",
    "run",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
