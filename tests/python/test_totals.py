"""The totals of `make test`: nothing that failed is lost on the way from ctest's log."""

from __future__ import annotations

from pathlib import Path

import run_tests

RULE = "-" * 79
PASSED = "All tests passed (40 assertions in 12 test cases)"
FAILED = f"""\
{RULE}
ring: every rank ends with the sum
{RULE}
tests/ops/ring_test.cc:5

test cases: 7 | 5 passed | 2 failed
assertions: 9 | 7 passed | 2 failed"""


def log(*programs: tuple[str, str, bool]) -> str:
    """ctest's LastTest.log of programs given as name, output and whether they succeeded."""
    text = "Start testing: Nov 30 12:00 UTC\n"
    for number, (name, output, succeeded) in enumerate(programs, start=1):
        text += f"{number}/{len(programs)} Testing: {name}\n{number}/{len(programs)} Test: {name}\n"
        text += f"Output:\n----------------------------------------------------------\n{output}\n"
        text += f"<end of output>\nTest time =   0.05 sec\n{RULE}\n"
        text += "Test Passed.\n" if succeeded else "Test Failed.\n"
    return text


def test_cases_of_all_binaries_are_added() -> None:
    totals = run_tests.read_ctest_log(log(("base", PASSED, True), ("ops", FAILED, False)))
    assert (totals.passed, totals.failed) == (17, 2)
    assert totals.failures == ["ops: ring: every rank ends with the sum"]
    assert str(totals) == "17 passed, 2 failed"


def test_a_crash_without_summary_is_one_failure() -> None:
    totals = run_tests.read_ctest_log(log(("ops", "Segmentation fault", False)))
    assert (totals.passed, totals.failed) == (0, 1)
    assert "ops" in totals.failures[0]


def test_a_report_after_all_cases_passed_is_a_failure() -> None:
    totals = run_tests.read_ctest_log(log(("ops", PASSED + "\nERROR: LeakSanitizer", False)))
    assert (totals.passed, totals.failed) == (12, 1)


def test_skipped_tests_are_neither_passed_nor_failed(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite>"
        "<testcase classname='a' name='good'/>"
        "<testcase classname='a' name='bad'><failure/></testcase>"
        "<testcase classname='a' name='broken'><error/></testcase>"
        "<testcase classname='a' name='absent'><skipped/></testcase>"
        "</testsuite></testsuites>"
    )
    totals = run_tests.read_junit(report)
    assert totals.failures == ["a.bad", "a.broken"]
    assert str(totals) == "1 passed, 2 failed, 1 skipped"
