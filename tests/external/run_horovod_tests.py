"""Runs Horovod's own tests, unmodified, against Hora.

    run_horovod_tests.py [CHECKOUT] [-k NAME] [--size N]...

CHECKOUT (or $HOROVOD_CHECKOUT) is a source tree of Horovod; nothing of it is changed, and none of
Horovod is built or imported: `import horovod` finds Hora's aliases. Each file is run as Horovod's
CI runs it, one pytest on every rank of a job, in one go. A failure on one rank puts the ranks out
of step, so what has not passed then is run again, each test in a job of its own; its second verdict
counts. A table of all files ends the output; the exit status is 1 if a test has failed.

The plugin `horovod_tests_plugin.py` beside this file adapts the tests to a PyTorch that is newer
than they are, and runs two that Horovod skips.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
FILE_LIMIT_S = 600
TEST_LIMIT_S = 90


@dataclass(frozen=True)
class TestFile:
    """A file of Horovod's, and how it is run: the sizes of jobs, 0 for pytest without a job."""

    path: str
    sizes: tuple[int, ...]


FILES = (
    TestFile("test/parallel/test_torch.py", (2, 4)),
    TestFile("test/parallel/test_adasum_pytorch.py", (2, 4)),
    TestFile("test/parallel/test_timeline.py", (2,)),
    TestFile("test/parallel/test_common.py", (2,)),
    TestFile("test/single/test_torch_elastic.py", (0,)),
    TestFile("test/single/test_elastic_run.py", (0,)),
    TestFile("test/single/test_run.py", (0,)),
    TestFile("test/integration/test_interactiverun.py", (0,)),
)


@dataclass
class Verdicts:
    """What became of the tests of a file: passed, failed or skipped, and why."""

    outcomes: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def count(self, outcome: str) -> int:
        return sum(found == outcome for found in self.outcomes.values())

    def add(self, name: str, outcome: str, reason: str) -> None:
        """Note a verdict of one rank: the worst of all ranks counts."""
        order = ("passed", "skipped", "failed")
        worst = max(outcome, self.outcomes.get(name, "passed"), key=order.index)
        if worst != self.outcomes.get(name):
            self.outcomes[name] = worst
            self.reasons[name] = reason


def package_folder() -> Path:
    """Return where the package hora is."""
    import hora

    return Path(hora.__file__).parent


def environment() -> dict[str, str]:
    """Return the environment of the tests: they find the aliases, `mock` and the plugin."""
    folders = [str(package_folder() / "horovod_compat"), str(HERE), str(HERE / "modules")]
    folders += filter(None, [os.environ.get("PYTHONPATH")])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folders),
        "HORA_HOROVOD_COMPAT": "1",
        "OMP_NUM_THREADS": "1",
    }


def run_pytest(checkout: Path, tests: list[str], size: int, limit: float) -> tuple[Verdicts, str]:
    """Run tests on every rank of a job, or without one: verdicts of those that ended, and output.

    A test that a rank did not get to has no verdict from it, and so none at all.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "pytest", "-p", "horovod_tests_plugin", "-p", "no:cacheprovider",
            "-c", os.devnull, "--rootdir", str(checkout), "-q", "--tb=short", *tests,
        ]  # fmt: skip
        if size > 0:
            command = [str(package_folder() / "bin" / "horarun"), "-np", str(size), *command]
        output = run_limited(command, limit, {"HOROVOD_TESTS_VERDICTS": folder})
        return read_reports([Path(folder) / str(rank) for rank in range(max(size, 1))]), output


def run_limited(command: list[str], limit: float, variables: dict[str, str] | None = None) -> str:
    """Run a command and return its output; it is ended when it takes too long.

    It runs in an empty folder: in the checkout, Python would find Horovod's own package.
    """
    with tempfile.TemporaryDirectory() as folder:
        return run_in(folder, command, limit, {**environment(), **(variables or {})})


def run_in(folder: str, command: list[str], limit: float, variables: dict[str, str]) -> str:
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        return process.communicate(timeout=limit)[0]
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            output = process.communicate(timeout=20)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            output = process.communicate()[0]
        return f"{output}\n(ended after {limit:.0f} s)"


def read_reports(reports: list[Path]) -> Verdicts:
    """Return the verdicts on which all ranks have reported; a test in which a rank hung has none.

    A report has a line for each phase of a test that ended: its setup, its call, its teardown.
    """
    verdicts = Verdicts()
    ended: dict[str, int] = {}
    for report in reports:
        lines = report.read_text().splitlines() if report.exists() else []
        for line in lines:
            name, phase, outcome, reason = json.loads(line)
            verdicts.add(name, outcome, reason)
            ended[name] = ended.get(name, 0) + (phase == "teardown")
    for name in [name for name in verdicts.outcomes if ended[name] < len(reports)]:
        del verdicts.outcomes[name]
        verdicts.reasons.pop(name, None)
    return verdicts


def names_in(checkout: Path, file: TestFile, pattern: str) -> list[str]:
    """Return the tests of a file, as Class::name."""
    listed = run_limited(
        [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(checkout), "-q",
         "-p", "horovod_tests_plugin", "-p", "no:cacheprovider", "--collect-only", "-k", pattern,
         str(checkout / file.path)],
        TEST_LIMIT_S,
    )  # fmt: skip
    lines = [line for line in listed.splitlines() if "::" in line and " " not in line]
    return [line.partition("::")[2] for line in lines]


def run_file(checkout: Path, file: TestFile, size: int, pattern: str) -> Verdicts:
    """Run a file in one go, then what has not passed again, one by one."""
    start = time.monotonic()
    names = names_in(checkout, file, pattern)
    path = str(checkout / file.path)
    all_tests = [f"{path}::{name}" for name in names]
    verdicts, output = run_pytest(checkout, all_tests, size, FILE_LIMIT_S / 2)
    again = [name for name in names if verdicts.outcomes.get(name, "failed") == "failed"]
    for name in again:
        left = FILE_LIMIT_S - (time.monotonic() - start)
        if left < TEST_LIMIT_S:
            verdicts.outcomes.setdefault(name, "failed")
            verdicts.reasons.setdefault(name, "no time was left to run it alone")
            continue
        alone, output = run_pytest(checkout, [f"{path}::{name}"], size, TEST_LIMIT_S)
        verdicts.outcomes[name] = alone.outcomes.get(name, "failed")
        verdicts.reasons[name] = alone.reasons.get(name, output[-1500:])
    if again:
        print(f"  in one go {len(names) - len(again)} of {len(names)} did not fail")
    verdicts.seconds = time.monotonic() - start
    return verdicts


def main() -> int:
    """Run the files and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", nargs="?", default=os.environ.get("HOROVOD_CHECKOUT"))
    parser.add_argument("-k", dest="pattern", default="", help="only tests with this in their name")
    parser.add_argument("--file", default="", help="only files with this in their path")
    parser.add_argument("--size", type=int, action="append", help="only jobs of this size")
    options = parser.parse_args()
    if not options.checkout:
        parser.error("name a checkout of Horovod, or set HOROVOD_CHECKOUT")
    checkout = Path(options.checkout).resolve()
    table = []
    for file in FILES:
        for size in file.sizes:
            if options.file not in file.path or (options.size and size not in options.size):
                continue
            print(f"{file.path}, {f'{size} ranks' if size else 'no launcher'}", flush=True)
            verdicts = run_file(checkout, file, size, options.pattern)
            for name, outcome in verdicts.outcomes.items():
                if outcome == "failed":
                    print(f"  FAILED {name}: {verdicts.reasons[name][:600]}")
            table.append((file.path, size, verdicts))
    print(f"\n{'file':44} {'ranks':>5} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}")
    for path, size, verdicts in table:
        counts = [verdicts.count(outcome) for outcome in ("passed", "failed", "skipped")]
        print(
            f"{path:44} {size:5} {counts[0]:7} {counts[1]:7} {counts[2]:8} {verdicts.seconds:8.0f}"
        )
    return int(any(verdicts.count("failed") for _, _, verdicts in table))


if __name__ == "__main__":
    sys.exit(main())
