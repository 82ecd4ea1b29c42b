"""The operations, where Horovod keeps them."""

from hora.torch import *  # noqa: F403
from hora.torch import __all__ as _names
from hora.torch import is_homogeneous

__all__ = [*_names, "is_homogeneous"]
