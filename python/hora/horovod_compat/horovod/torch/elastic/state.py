"""The state and its handlers, where Horovod keeps them."""

from hora.torch.elastic.state import *  # noqa: F403
