"""Process sets, where Horovod keeps them."""

from hora.process_sets import *  # noqa: F403
