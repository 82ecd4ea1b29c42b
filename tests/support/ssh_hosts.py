"""Hosts with an sshd each, on one machine: network namespaces that horarun reaches by real ssh.

    host 0      horarun runs here
    host 1, 2   an sshd each, on port 22 of 10.9.0.2 and 10.9.0.3

They share files, processes and users with this machine; addresses, ports and abstract sockets are
their own, and so is their host id. A folder of the test's can be hidden from a host: what lies in
it is then missing there. Everything is made in a temporary folder - keys, configuration, known
hosts - and gone with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from hosts import Hosts, run, why_not

LIMIT_S = 20
SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")


def why_no_ssh_hosts() -> str:
    """Why this machine cannot make such hosts, or nothing."""
    if SSHD is None or shutil.which("ssh") is None:
        return "no sshd or no ssh (openssh-server, openssh-client)"
    if os.geteuid() != 0:
        return "an sshd that takes this user's keys needs root"
    return why_not()


class SshHosts:
    """Host 0 for horarun, and `count` - 1 others with an sshd."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts = hosts
        self.folder = folder
        self.hidden = folder / "only-here"
        self.hidden.mkdir()
        self.key = folder / "key"
        self.config = folder / "ssh_config"
        self.sshds: dict[int, subprocess.Popen[bytes]] = {}
        for name in (self.key, folder / "host_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(name))
        self._write_configurations()

    def _write_configurations(self) -> None:
        names = "".join(
            f"Host {self.name(host)}\n  HostName {self.hosts.address(host)}\n"
            for host in range(1, self.hosts.count)
        )
        self.config.write_text(
            f"{names}Host *\n  IdentityFile {self.key}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.folder}/known_hosts\n"
        )
        (self.folder / "sshd_config").write_text(
            f"HostKey {self.folder}/host_key\nAuthorizedKeysFile {self.folder}/key.pub\n"
            "StrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\n"
            "PasswordAuthentication no\nMaxStartups 100\n"
        )
        # sshd's own empty folder, which its start script makes elsewhere.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)

    @staticmethod
    def name(host: int) -> str:
        """What ssh calls a host; no resolver knows it."""
        return f"hora-node{host}"

    def start_sshd(self, host: int, hide: bool = False) -> None:
        """Start a host's sshd; `hide`: the folder `hidden` is empty there."""
        config = str(self.folder / "sshd_config")
        command = [str(SSHD), "-D", "-e", "-f", config, "-o", f"ListenAddress={self.address(host)}"]
        if hide:
            mount = f'mount -t tmpfs none "{self.hidden}" && exec "$@"'
            command = ["sh", "-c", mount, "sh", *command]
        log = (self.folder / f"sshd{host}.log").open("ab")
        with log:
            self.sshds[host] = subprocess.Popen(
                self.hosts.inside(host, command), stdin=subprocess.DEVNULL, stderr=log, stdout=log
            )
        self._wait_for_sshd(host)

    def _wait_for_sshd(self, host: int) -> None:
        probe = f"import socket; socket.create_connection(('{self.address(host)}', 22), 5)"
        deadline = time.monotonic() + LIMIT_S
        while True:
            command = self.hosts.inside(host, ["python3", "-c", probe])
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return
            if time.monotonic() > deadline:
                raise OSError((self.folder / f"sshd{host}.log").read_text())

    def address(self, host: int) -> str:
        return self.hosts.address(host)

    def processes(self, host: int) -> set[int]:
        """Pids of what runs on a host, its sshd left out."""
        pids = {int(pid) for pid in run("ip", "netns", "pids", self.hosts.name(host)).split()}
        sshd = self.sshds.get(host)
        return pids - ({sshd.pid} if sshd else set())

    def wait_until_empty(self, host: int) -> None:
        """Wait until nothing but its sshd runs on a host."""
        deadline = time.monotonic() + LIMIT_S
        while left := self.processes(host):
            if time.monotonic() > deadline:
                names = [command_line(pid) for pid in left]
                raise AssertionError(f"left on host {host}: {names}")
            time.sleep(0.01)

    def cut(self, host: int) -> None:
        """Cut a host's cable: nothing is told to anybody."""
        run("ip", "-n", self.hosts.switch, "link", "set", f"p{host}", "nomaster")

    def mend(self, host: int) -> None:
        run("ip", "-n", self.hosts.switch, "link", "set", f"p{host}", "master", "bridge")

    def stop(self) -> None:
        for sshd in self.sshds.values():
            sshd.kill()
            sshd.wait()


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return f"{pid} (gone)"


@contextlib.contextmanager
def ssh_hosts(folder: Path, count: int = 3) -> Iterator[SshHosts]:
    """Make hosts; host 1 and beyond get an sshd."""
    with Hosts(count) as hosts:
        made = SshHosts(hosts, folder)
        try:
            for host in range(1, count):
                made.start_sshd(host)
            yield made
        finally:
            made.stop()
