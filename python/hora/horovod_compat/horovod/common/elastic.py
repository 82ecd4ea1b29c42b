"""States and the loop around a training function, where Horovod keeps them."""

from hora.elastic import ObjectState, State, notification_manager, run_fn

__all__ = ["ObjectState", "State", "notification_manager", "run_fn"]
