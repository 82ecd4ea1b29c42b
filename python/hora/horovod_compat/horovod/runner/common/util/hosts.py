"""Hosts, their slots, and who gets which rank, where Horovod keeps them.

The same rules as horarun's (launcher/plan.h): ranks are host-major in the order in which hosts are
named; `cross` counts, for one local rank, the hosts that have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "INVALID_SLOT_INFO",
    "HostInfo",
    "SlotInfo",
    "get_host_assignments",
    "parse_host_files",
    "parse_hosts",
    "parse_hosts_and_slots",
]

_ENTRY = re.compile(r"([\w.-]+):(\d+)")


@dataclass
class HostInfo:
    """A host, and how many ranks it may run."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Read ``name:slots``."""
        name, slots = host_string.strip().split(":")
        return HostInfo(name, int(slots))


@dataclass
class SlotInfo:
    """The place of a rank."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int = 0
    local_size: int = 0
    cross_size: int = 0

    def to_response_string(self) -> str:
        """Return the six numbers in the order in which Horovod writes them."""
        numbers = (self.rank, self.size, self.local_rank, self.local_size, self.cross_rank)
        return ",".join(str(number) for number in (*numbers, self.cross_size))


INVALID_SLOT_INFO = SlotInfo("", -1, -1, -1, -1, -1, -1)


def parse_host_files(filename: str) -> str:
    """Return the hosts of a file, ``name slots=N`` or ``name:N`` a line, as one text for ``-H``."""
    entries = []
    for line in Path(filename).read_text().splitlines():
        words = line.partition("#")[0].replace("slots=", ":").split()
        if words:
            entries.append("".join(words))
    return ",".join(entries)


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """Return the names in ``a:2,b:1`` in order, and the slots of each.

    Raises
    ------
    ValueError
        The text has another form.
    """
    slots = {}
    for entry in hosts.split(","):
        match = _ENTRY.fullmatch(entry.strip())
        if match is None:
            raise ValueError(
                "Invalid host input, please make sure it has format as : worker-0:2,worker-1:2."
            )
        slots[match[1]] = int(match[2])
    return list(slots), slots


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Return the hosts in ``a:2,b:1``."""
    return [HostInfo.from_string(entry) for entry in hosts_string.split(",")]


def get_host_assignments(
    hosts: Iterable[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Deal ranks to the slots of hosts.

    Raises
    ------
    ValueError
        There are fewer slots than `min_num_proc`.
    """
    slots: list[SlotInfo] = []
    for host in hosts:
        for local in range(host.slots):
            if max_num_proc is None or len(slots) < max_num_proc:
                cross = sum(slot.local_rank == local for slot in slots)
                slots.append(SlotInfo(host.hostname, len(slots), local, cross))
    if len(slots) < min_num_proc:
        raise ValueError(
            f"Requested more processes ({min_num_proc}) than there are available slots "
            f"({len(slots)})"
        )
    for slot in slots:
        slot.size = len(slots)
        slot.local_size = sum(other.hostname == slot.hostname for other in slots)
        slot.cross_size = sum(other.local_rank == slot.local_rank for other in slots)
    return slots
