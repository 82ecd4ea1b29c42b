"""``import horovod.torch as hvd``: hora.torch under Horovod's name.

`elastic` is the submodule here, which has Horovod's own submodules; it is Hora's otherwise.
"""

import importlib as _importlib

from hora.torch import *  # noqa: F403
from hora.torch import __all__ as _names

__all__ = [*_names]

globals()["elastic"] = _importlib.import_module("horovod.torch.elastic")


def _check_has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
