"""The comparison's arithmetic: what is reported is what was measured."""

from __future__ import annotations

import allreduce
import pytest


def run(row: str, number: int, median_us: float, foreign_cores: float = 0.0) -> allreduce.Run:
    result = {"bytes": 1_000_000.0, "median_us": median_us, "p90_us": median_us, "cpu_us": 1.0}
    return allreduce.Run(row, 4, number, foreign_cores, [result])


def test_ratio_is_that_of_the_fastest_peer() -> None:
    runs = [run("ours", 0, 50), run("slow peer", 0, 400), run("fast peer", 0, 100)]
    cells = {cell["row"]: cell for cell in allreduce.summarize(runs, {"ours"})}
    assert cells["ours"]["ratio"] == 2
    assert cells["fast peer"]["ratio"] == 1
    assert cells["slow peer"]["ratio"] == 0.25


def test_bus_bandwidth_counts_what_a_rank_sends() -> None:
    (cell,) = allreduce.summarize([run("ours", 0, 1000)], {"ours"})
    assert cell["bus_gb_per_s"] == pytest.approx(1.5)  # 2 * 3/4 MB in 1 ms


def test_median_and_quartiles_are_over_the_rounds() -> None:
    runs = [run("ours", number, us) for number, us in enumerate((10, 20, 30, 40, 1000))]
    (cell,) = allreduce.summarize(runs, {"ours"})
    assert (cell["q1_us"], cell["median_us"], cell["q3_us"]) == (20, 30, 40)
    assert cell["ratio"] is None


def test_a_run_beside_other_work_is_marked() -> None:
    (cell,) = allreduce.summarize([run("ours", 0, 10, foreign_cores=0.5)], {"ours"})
    assert cell["disturbed"]


def test_output_of_a_launcher_that_marks_its_ranks_is_read() -> None:
    output = '[0] {"bytes": 4, "median_us": 1.5}\nnoise\n{"bytes": 8, "median_us": 2.5}\n'
    assert [result["bytes"] for result in allreduce.parse_results(output)] == [4, 8]
