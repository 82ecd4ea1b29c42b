"""Training that can be taken back to its last commit: states, and the loop around a function.

This package alone is for any framework; :mod:`hora.torch.elastic` has what fits PyTorch.
"""

from hora.elastic.run import HostUpdateResult, notification_manager, run, run_fn
from hora.elastic.state import ObjectState, State

__all__ = [
    "HostUpdateResult",
    "ObjectState",
    "State",
    "notification_manager",
    "run",
    "run_fn",
]
