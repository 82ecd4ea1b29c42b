"""Hosts on one machine: network namespaces behind a bridge, every link of a rate of its own.

    host 0   host 1   host 2   host 3      a namespace each: own addresses, own abstract sockets,
     eth0     eth0     eth0     eth0       own `lo`; nothing else is apart from the machine
      |        |        |        |         veth pairs; a token bucket (tc tbf) at *both* ends, so
     p0       p1       p2       p3         that a link is full duplex and shaped each way, as the
      +--------+---+----+--------+         port of a switch is
                   | bridge                in a namespace of its own

What cannot be told from four real hosts here: address, route, congestion control, who may share
memory with whom. What can: they share the cores, so a link faster than the cores can fill is bound
by these; and the kernel's queues are the only switch.

Making namespaces takes root (or root of a user namespace: ``unshare -Urnm``). ``Hosts`` removes
what it made, and first what an ended process of the same kind has left behind.

Run as a program this is one end of a plain TCP stream, the probe of what a link carries:
``hosts.py receive ADDRESS`` and ``hosts.py send ADDRESS SECONDS``.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

PREFIX = "hora-bench-"
PORT = 29600
CLOCK = struct.Struct("d")
# The bucket's depth and the queue behind it, by rate in Mbit/s: deep enough for the timer's tick.
BURSTS = {100: "64kb", 1000: "256kb", 10000: "2mb"}
QUEUE = "20ms"


def run(*command: str) -> str:
    """Run a command to its end; its output. OSError with its complaint if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def namespaces() -> list[str]:
    return [line.split()[0] for line in run("ip", "netns", "list").splitlines() if line.strip()]


def remove_leftovers() -> None:
    """Delete the namespaces of processes that were killed before they could."""
    for name in namespaces():
        if not name.startswith(PREFIX):
            continue
        pid = name[len(PREFIX) :].split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            run("ip", "netns", "del", name)


def why_not() -> str:
    """Why this machine cannot make hosts, or nothing."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"no {' and no '.join(missing)} (iproute2)"
    try:
        with Hosts(1) as hosts:
            hosts.shape(1000)
    except OSError as error:
        return f"network namespaces cannot be made, which takes root: {error}"
    return ""


class Hosts:
    """`count` hosts with the addresses 10.9.0.1, 10.9.0.2, ...; unshaped at first."""

    def __init__(self, count: int, congestion: str = "") -> None:
        """`congestion`: TCP congestion control of all connections between them."""
        self.count = count
        self.congestion = congestion
        self.prefix = f"{PREFIX}{os.getpid()}-"
        self.switch = f"{self.prefix}switch"

    def __enter__(self) -> Hosts:
        remove_leftovers()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def name(self, host: int) -> str:
        return f"{self.prefix}{host}"

    @staticmethod
    def address(host: int) -> str:
        return f"10.9.0.{host + 1}"

    def inside(self, host: int, command: Sequence[str]) -> list[str]:
        """Return the command that runs `command` on a host."""
        return ["ip", "netns", "exec", self.name(host), *command]

    def shape(self, rate_mbit: int) -> None:
        """Give every link this rate, each way; 0: as fast as it goes."""
        for host in range(self.count):
            for name, device in ((self.name(host), "eth0"), (self.switch, f"p{host}")):
                start = ["tc", "-n", name, "qdisc"]
                if rate_mbit == 0:
                    run(*start, "replace", "dev", device, "root", "noqueue")
                    continue
                bucket = ["tbf", "rate", f"{rate_mbit}mbit", "burst", BURSTS[rate_mbit]]
                run(*start, "replace", "dev", device, "root", *bucket, "latency", QUEUE)

    def probe_gbit(self, seconds: float = 1.0) -> float:
        """Return what one TCP stream from host 0 to host 1 carries, in Gbit/s of payload."""
        start = [sys.executable, str(Path(__file__).resolve())]
        address = self.address(1)
        receiver = subprocess.Popen(
            self.inside(1, [*start, "receive", address]), stdout=subprocess.PIPE, text=True
        )
        try:
            run(*self.inside(0, [*start, "send", address, str(seconds)]))
            output, _ = receiver.communicate(timeout=seconds + 30)
        finally:
            receiver.kill()
        return float(json.loads(output)["gbit_per_s"])

    def _make(self) -> None:
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for host in range(self.count):
            name, port = self.name(host), f"p{host}"
            run("ip", "netns", "add", name)
            pair = ["link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name]
            run("ip", "-n", self.switch, *pair)
            run("ip", "-n", self.switch, "link", "set", port, "master", "bridge", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            if self.congestion:
                route = ["10.9.0.0/24", "dev", "eth0", "src", self.address(host)]
                run("ip", "-n", name, "route", "replace", *route, "congctl", self.congestion)

    def _remove(self) -> None:
        for name in namespaces():
            if name.startswith(self.prefix):
                run("ip", "netns", "del", name)


def receive(address: str) -> None:
    """Take one stream and print its rate, from when the sender began to the last byte."""
    with socket.create_server((address, PORT)) as server:
        server.settimeout(30)
        connection, _ = server.accept()
    buffer = bytearray(1 << 20)
    # Both ends read one clock. What came before this process ran is not taken for a faster link.
    (begin,) = CLOCK.unpack(connection.recv(CLOCK.size, socket.MSG_WAITALL))
    total = 0
    while got := connection.recv_into(buffer):
        total += got
    gbit = 8e-9 * total / (time.monotonic() - begin)
    print(json.dumps({"gbit_per_s": gbit}))


def send(address: str, seconds: float) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            connection = socket.create_connection((address, PORT), timeout=10)
            break
        except OSError:  # Not listening yet.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    payload = bytes(1 << 20)
    with connection:
        begin = time.monotonic()
        connection.sendall(CLOCK.pack(begin))
        end = begin + seconds
        while time.monotonic() < end:
            connection.sendall(payload)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(sys.argv[2])
    else:
        send(sys.argv[2], float(sys.argv[3]))
