"""Runs the C++ tests (ctest) and the Python tests (pytest) and adds up their results.

ctest counts binaries, one per folder; what a reader wants to know is the number of test *cases*,
so the binaries' own summaries are read from ctest's log. A binary that ends without a summary (a
crash, a sanitizer's report, a time-out) counts as one failure under its own name. Everything that
failed is named at the end, then comes one line of totals:

    214 passed, 0 failed, 3 skipped

Usage: run_tests.py [--ctest BUILD_DIRECTORY[:NAME_REGEX]]... [--pytest] [PYTEST_ARGUMENT...]
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CTEST_LIMIT_S = 1500
PYTEST_LIMIT_S = 1800

_ALL_PASSED = re.compile(r"^All tests passed \(.* in (\d+) test cases?\)", re.MULTILINE)
_SOME_FAILED = re.compile(
    r"^test cases: +(\d+) \|(?: +(\d+) passed \|)? +(\d+) failed", re.MULTILINE
)
_FAILED_CASE = re.compile(r"^-{79}\n(\S.*)\n(?:  .*\n)*-{79}$", re.MULTILINE)
_SECTION = re.compile(r"^\d+/\d+ Testing: (.+)$", re.MULTILINE)


@dataclass
class Totals:
    """How many test cases passed, failed and were skipped, and the names of those that failed."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Totals) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


def read_ctest_log(log: str) -> Totals:
    """Add up the test cases of every binary in the text of ctest's ``LastTest.log``."""
    totals = Totals()
    starts = list(_SECTION.finditer(log))
    for start, end in zip(starts, [*starts[1:], None]):
        name = start.group(1)
        text = log[start.end() : end.start() if end else len(log)]
        succeeded = re.search(r"^Test Passed\.$", text, re.MULTILINE) is not None
        if all_passed := _ALL_PASSED.search(text):
            totals.passed += int(all_passed.group(1))
        elif some_failed := _SOME_FAILED.search(text):
            bad = int(some_failed.group(3))
            totals.passed += int(some_failed.group(2) or 0)
            totals.failed += bad
            cases = list(dict.fromkeys(_FAILED_CASE.findall(text)))
            totals.failures += [f"{name}: {case}" for case in cases] or [name]
        elif succeeded:
            totals.passed += 1  # a program that is not a Catch binary
        if not succeeded and not _SOME_FAILED.search(text):
            totals.failed += 1
            totals.failures.append(f"{name} (crashed, timed out or reported an error at its end)")
    return totals


def read_junit(path: Path) -> Totals:
    """Add up pytest's JUnit report."""
    totals = Totals()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            totals.failed += 1
            totals.failures.append(f"{case.get('classname')}.{case.get('name')}")
        elif case.find("skipped") is not None:
            totals.skipped += 1
        else:
            totals.passed += 1
    return totals


def run_bounded(command: list[str], limit_s: float) -> int:
    """Run a command in a process group of its own, which is killed at the limit."""
    sys.stdout.flush()
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait(limit_s)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, KeyboardInterrupt):
            raise
        print(f"{command[0]}: killed after {limit_s:.0f} s", flush=True)
        return 124


def run_ctest(build: Path, names: str) -> Totals:
    """Run the tests of a build tree whose names match, and count their cases."""
    log = build / "Testing" / "Temporary" / "LastTest.log"
    log.unlink(missing_ok=True)
    command = ["ctest", "--test-dir", str(build), "--output-on-failure", "--no-tests=error"]
    # One binary at a time: many of them start several ranks, and ranks outnumber cores as it is.
    status = run_bounded([*command, "-R", names], CTEST_LIMIT_S)
    totals = read_ctest_log(log.read_text(errors="replace")) if log.exists() else Totals()
    if status != 0 and totals.failed == 0:
        totals.add(Totals(failed=1, failures=[f"ctest in {build} (status {status})"]))
    return totals


def run_pytest(arguments: list[str]) -> Totals:
    """Run pytest and count its tests."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", f"--junitxml={report}", *arguments]
        status = run_bounded(command, PYTEST_LIMIT_S)
        totals = read_junit(report) if report.exists() else Totals()
    if status != 0 and totals.failed == 0:
        totals.add(Totals(failed=1, failures=[f"pytest (status {status})"]))
    return totals


def main() -> int:
    """Run what the command line names; 0 if something ran and nothing failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ctest", action="append", default=[], metavar="BUILD[:REGEX]")
    parser.add_argument("--pytest", action="store_true")
    options, pytest_arguments = parser.parse_known_args()

    # A caller's time limit ends what runs here too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    totals = Totals()
    for item in options.ctest:
        build, _, names = item.partition(":")
        totals.add(run_ctest(ROOT / build, names or "."))
    if options.pytest:
        totals.add(run_pytest(pytest_arguments))
    for name in totals.failures:
        print(f"FAILED {name}")
    print(totals, flush=True)
    return 0 if totals.failed == 0 and totals.passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
