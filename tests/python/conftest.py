"""Running tests on several ranks.

A start of a job costs a second or two (every rank imports torch), so a file's checks run in few
jobs. There are two fixtures:

run_ranks   starts ``horarun`` once, with a script or functions of a test file, and gives back what
            each rank returned, the output and the exit status
checked     for functions called ``check_*``: all of a file's run in one job per size, and each is
            reported as a test of its own

A function that runs on ranks has no arguments, is at the top level of its file, and initializes
hora itself if it needs it: `rank_main.py` only calls it.

The launcher is $HORARUN, or the ``horarun`` of this environment.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.launching import find_horarun

RANK_MAIN = Path(__file__).with_name("rank_main.py")


@dataclass
class Job:
    """How a job ended: what each function returned, by name and rank, or the traceback."""

    size: int
    status: int
    output: str
    outcomes: dict[str, list[tuple[bool, Any] | None]] = field(default_factory=dict)

    def results(self, function: str) -> list[Any]:
        """Return what `function` returned on each rank; fails the test if it did not return."""
        outcomes = self.outcomes[function]
        errors = [
            f"rank {rank} of {self.size}: {outcome[1]}"
            for rank, outcome in enumerate(outcomes)
            if outcome is not None and not outcome[0]
        ]
        if errors:
            pytest.fail("\n".join([f"{function} failed", *errors]), pytrace=False)
        missing = [rank for rank, outcome in enumerate(outcomes) if outcome is None]
        if missing:
            why = f"{function} did not finish on ranks {missing}; exit status {self.status}"
            pytest.fail(why if self.explained else f"{why}:\n{self.output[-6000:]}", pytrace=False)
        return [outcome[1] for outcome in outcomes if outcome is not None]

    @property
    def explained(self) -> bool:
        """Whether some function's own failure explains why later ones did not finish."""
        every = [outcome for outcomes in self.outcomes.values() for outcome in outcomes]
        return any(outcome is not None and not outcome[0] for outcome in every)


def environment(overrides: dict[str, str]) -> dict[str, str]:
    """Return this process's environment, fit for many ranks on few cores."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **overrides}


def run_command(command: list[str], timeout: float, env: dict[str, str]) -> tuple[int, str]:
    """Run a command: (exit status, output). Status 124: it ran too long and was ended."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment(env),
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            output, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        return 124, output + f"\n(ended after {timeout:.0f} s)"
    return process.returncode, output


def run_job(
    size: int,
    what: Path | list[Callable[[], Any]],
    directory: Path,
    timeout: float = 120,
    env: dict[str, str] | None = None,
    arguments: tuple[str, ...] = (),
) -> Job:
    """Run a script with arguments, or functions of one file, on `size` ranks."""
    start = [find_horarun(), "-np", str(size), sys.executable]
    if isinstance(what, Path):
        return Job(size, *run_command([*start, str(what), *arguments], timeout, env or {}))
    names = [function.__name__ for function in what]
    file = what[0].__code__.co_filename
    command = [*start, str(RANK_MAIN), file, str(directory), ",".join(names)]
    job = Job(size, *run_command(command, timeout, env or {}))
    for name in names:
        files = [directory / f"{name}.{rank}.pickle" for rank in range(size)]
        job.outcomes[name] = [
            pickle.loads(file.read_bytes()) if file.exists() else None for file in files
        ]
    return job


@pytest.fixture
def run_ranks(tmp_path: Path) -> Callable[..., Job]:
    """Return ``run_ranks(size, script_or_functions, *arguments, timeout=60, env=None) -> Job``."""

    def run(
        size: int,
        what: Any,
        *arguments: str,
        timeout: float = 120,
        env: dict[str, str] | None = None,
    ) -> Job:
        if callable(what):
            what = [what]
        return run_job(size, what, tmp_path, timeout, env, arguments)

    return run


def checks_of(module: ModuleType) -> list[Callable[[], Any]]:
    """Return a file's check functions, in the order in which they are written."""
    return [value for name, value in vars(module).items() if name.startswith("check_")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every test that asks for `check` each of its file's checks."""
    if "check" in metafunc.fixturenames:
        checks = checks_of(metafunc.module)
        metafunc.parametrize("check", checks, ids=[check.__name__[6:] for check in checks])


@pytest.fixture(scope="session")
def jobs() -> dict[tuple[str, int], Job]:
    """Jobs that have run, by file and size."""
    return {}


@pytest.fixture
def checked(
    request: pytest.FixtureRequest,
    jobs: dict[tuple[str, int], Job],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., list[Any]]:
    """Return ``checked(check, size)``: what the check returned on each rank."""

    def outcome(check: Callable[[], Any], size: int, timeout: float = 280) -> list[Any]:
        key = (request.module.__name__, size)
        if key not in jobs:
            directory = tmp_path_factory.mktemp("ranks")
            jobs[key] = run_job(size, checks_of(request.module), directory, timeout)
        return jobs[key].results(check.__name__)

    return outcome
