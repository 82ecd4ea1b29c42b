"""The package `mock` for tests that want it: Python has had it as unittest.mock for long."""

from unittest.mock import *  # noqa: F403
