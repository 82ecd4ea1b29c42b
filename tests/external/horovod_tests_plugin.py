"""A pytest plugin for run_horovod_tests.py: what Horovod's tests need on a newer PyTorch.

Nothing of Horovod's files is changed. Three things are adapted:

* Optimizers that PyTorch has got since, and that can't be made for the tests' models, are taken out
  of the classes which the tests find by their module's name. Muon takes matrices only.
* `test_timeline_api` is marked as skipped because of a defect of Horovod's; it is run.
* The Adasum tests skip without MPI, which Horovod's Adasum needs and Hora's does not: they are told
  that there is MPI.
"""

from __future__ import annotations

from typing import Any

_NOT_FOR_EVERY_MODEL = ("Muon",)


def pytest_configure(config: Any) -> None:
    """Hide optimizers from tests that iterate over all of torch.optim."""
    import torch

    for name in _NOT_FOR_EVERY_MODEL:
        kind = getattr(torch.optim, name, None)
        if kind is not None:
            kind.__module__ = "hidden_from_tests"


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Run what is skipped for reasons that are not ours."""
    for item in items:
        if item.name == "test_timeline_api":
            item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "skip"]
        if item.fspath.basename == "test_adasum_pytorch.py":
            item.module.hvd.mpi_enabled = lambda: True
