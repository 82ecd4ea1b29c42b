"""The comparison between hosts: what is reported was measured, and the hosts are what they say."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import hosts
import network
import pytest


def run(row: str, ours: bool, number: int, mean_us: float) -> network.Run:
    result = {"bytes": 100e6, "mean_us": mean_us, "p90_us": mean_us, "cpu_us": 1.0}
    return network.Run(row, ours, [1, 1, 1, 1], 1000, "", number, 0.0, [result])


def test_a_cell_is_the_mean_over_rounds_and_the_ratio_that_of_the_fastest_peer() -> None:
    runs = [run("hora", True, 0, 1.1e6), run("hora", True, 1, 1.3e6)]
    runs += [run("slow", False, 0, 4.8e6), run("fast", False, 0, 2.4e6)]
    cells = {cell["row"]: cell for cell in network.summarize(runs)}
    assert cells["hora"]["mean_us"] == pytest.approx(1.2e6)
    assert (cells["hora"]["least_us"], cells["hora"]["most_us"]) == (1.1e6, 1.3e6)
    assert cells["hora"]["ratio"] == pytest.approx(2)
    assert cells["slow"]["ratio"] == pytest.approx(0.5)


def test_the_line_is_full_when_a_host_sends_all_that_it_must() -> None:
    # 4 hosts, 100 MB: each link carries 150 MB each way, 1.2 s at 1 Gbit/s.
    (cell,) = network.summarize([run("hora", True, 0, 1.2e6)])
    assert cell["line"] == pytest.approx(1)
    assert network.least_seconds(100_000_000, 2, 1000) == pytest.approx(0.8)


def test_ranks_are_placed_host_by_host() -> None:
    cluster = network.Cluster(hosts.Hosts(3), [2, 1, 3])
    assert [cluster.host_of(rank) for rank in range(6)] == [0, 0, 1, 2, 2, 2]
    assert [cluster.local_rank(rank) for rank in range(6)] == [0, 1, 0, 0, 1, 2]


def test_slow_lines_get_few_calls_and_fast_ones_many() -> None:
    assert network.iterations_of(102_400_000, 4, 100) == 2
    assert network.iterations_of(1024, 4, 1000) == 300


def test_a_variant_is_a_row_with_an_environment() -> None:
    assert network.hora_variant("wide:HORA_WINDOW=8,HORA_SEGMENT_BYTES=1M") == (
        "wide",
        (("HORA_WINDOW", "8"), ("HORA_SEGMENT_BYTES", "1M")),
    )


def test_what_was_measured_can_be_read_again(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    file.write_text('{"runs": [], "summary": []}')
    assert network.read_runs(file) == []


@pytest.fixture
def two_hosts() -> Iterator[hosts.Hosts]:
    if reason := hosts.why_not():
        pytest.skip(reason)
    with hosts.Hosts(2) as made:
        yield made


def test_a_shaped_link_carries_its_rate_and_not_more(two_hosts: hosts.Hosts) -> None:
    two_hosts.shape(100)
    assert 0 < two_hosts.probe_gbit(0.5) < 0.11


def test_hosts_have_addresses_of_their_own_and_leave_nothing(two_hosts: hosts.Hosts) -> None:
    command = two_hosts.inside(1, ["ip", "-brief", "address", "show", "eth0"])
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "10.9.0.2/24" in shown
    made = {two_hosts.name(0), two_hosts.name(1), two_hosts.switch}
    assert made <= set(hosts.namespaces())
    two_hosts.__exit__(None, None, None)
    assert not made & set(hosts.namespaces())
