"""A pytest plugin for run_horovod_tests.py: what Horovod's tests need on a newer PyTorch.

Each phase of a test that ends is written down at once, in a file of this rank's in the folder
$HOROVOD_TESTS_VERDICTS, so that what hangs later takes no verdict along.

Nothing of Horovod's files is changed. Four things are adapted:

* Optimizers that PyTorch has got since, and that can't be made for the tests' models, are taken out
  of the classes which the tests find by their module's name. Muon takes matrices only.
* `test_timeline_api` is marked as skipped because of a defect of Horovod's; it is run.
* The Adasum tests skip without MPI, which Horovod's Adasum needs and Hora's does not: they are told
  that there is MPI.
* test_run.py imports psutil and modules that start jobs by MPI and LSF, of which Hora has none: an
  empty module takes the place of one that is missing, so that the file can be read. Its tests of
  MPI and LSF are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_NOT_FOR_EVERY_MODEL = ("Muon",)


_STAND_INS = {
    "horovod.runner.mpi_run": (
        "_get_mpi_implementation _get_mpi_implementation_flags _LARGE_CLUSTER_THRESHOLD "
        "mpi_available mpi_run _OMPI_IMPL _SMPI_IMPL _MPICH_IMPL _IMPI_IMPL _UNKNOWN_IMPL "
        "_MISSING_IMPL"
    ),
    "horovod.runner.js_run": "js_run generate_jsrun_rankfile",
    "psutil": "",
}
# Parts of the names of tests of what Hora does not have.
_OF_MPI_AND_LSF = ("_mpi_", "js_run", "jsrun", "run_controller")


def pytest_configure(config: Any) -> None:
    """Hide optimizers from tests that iterate over all of torch.optim; make the stand-ins."""
    import torch

    for name, attributes in _STAND_INS.items():
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = ModuleType(name)
            for attribute in attributes.split():
                setattr(sys.modules[name], attribute, None)

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
        if item.fspath.basename == "test_run.py" and any(p in item.name for p in _OF_MPI_AND_LSF):
            item.add_marker(pytest.mark.skip("Hora starts no jobs by MPI or LSF"))


def pytest_runtest_logreport(report: Any) -> None:
    """Write down how a phase of a test has ended."""
    folder = os.environ.get("HOROVOD_TESTS_VERDICTS")
    if folder is None:
        return
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    outcome = str(report.outcome)
    line = [
        report.nodeid.partition("::")[2],
        report.when,
        outcome,
        "" if outcome == "passed" else reason,
    ]
    with Path(folder, os.environ.get("HORA_RANK", "0")).open("a") as file:
        file.write(json.dumps(line) + "\n")
