"""horarun over real ssh: three hosts with addresses, cables and sshds of their own.

The hosts are network namespaces (tests/support/ssh_hosts.py), which takes root and openssh-server;
without them the tests are skipped with the reason. What ends badly here must end with a message
that names the host and the reason, and leave no process on any host.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.launching import (
    LIMIT_S,
    Launcher,
    launching,
    python,
    read_lines,
    send,
    wait_for_line,
    wait_until_gone,
)
from support.ssh_hosts import SshHosts, ssh_hosts, why_no_ssh_hosts


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    reason = why_no_ssh_hosts()
    if reason:
        pytest.skip(reason)
    with ssh_hosts(tmp_path_factory.mktemp("ssh")) as made:
        yield made


class InHost0(Launcher):
    """A launcher whose horarun runs on host 0."""

    def __init__(self, launcher: Launcher, hosts: SshHosts) -> None:
        self.__dict__.update(launcher.__dict__)
        self.hosts = hosts
        self.environment["HORA_SSH"] = f"ssh -F {hosts.config}"

    def command(self, *words: str) -> list[str]:
        return self.hosts.hosts.inside(0, [self.binary, *words])


@pytest.fixture
def launcher(hosts: SshHosts) -> Iterator[InHost0]:
    for made in launching():
        yield InHost0(made, hosts)
        for host in (1, 2):
            hosts.wait_until_empty(host)


ALLREDUCE = """
import numpy as np
import hora.numpy as hvd
hvd.init()
total = hvd.allreduce(np.arange(200_000, dtype=np.float32) + hvd.rank(), name='a', op=hvd.Sum)
assert (total == 4 * np.arange(200_000) + 6).all()
print('sum', float(total[1]), hvd.rank(), hvd.local_rank(), hvd.local_size(), hvd.cross_size())
"""


def test_an_allreduce_over_four_ranks_on_two_hosts(launcher: InHost0) -> None:
    pytest.importorskip("hora.numpy")
    done = launcher.run("-H", "hora-node1:2,hora-node2:2", *python(ALLREDUCE))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        b"[%d]<stdout>:sum 10.0 %d %d 2 2" % (rank, rank, rank % 2) for rank in range(4)
    ]


def test_horaruns_own_host_takes_part(launcher: InHost0) -> None:
    pytest.importorskip("hora.numpy")
    words = ["-H", "hora-node1:2,localhost:2", "--network-interfaces", "eth0", *python(ALLREDUCE)]
    done = launcher.run(*words)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4


def test_workers_learn_the_addresses_that_ssh_proved(launcher: InHost0) -> None:
    script = "echo $HORA_RANK $HORA_HOST_ADDRESS ${HORA_RENDEZVOUS%:*} ${SSH_AUTH_SOCK:-none}"
    launcher.environment["SSH_AUTH_SOCK"] = "/of/host/0"
    done = launcher.run("-H", "hora-node1:1,localhost:1,hora-node2:1", "sh", "-c", script)
    assert sorted(done.stdout.splitlines()) == [
        b"[0]<stdout>:0 10.9.0.2 10.9.0.1 none",
        b"[1]<stdout>:1 10.9.0.1 127.0.0.1 /of/host/0",
        b"[2]<stdout>:2 10.9.0.3 10.9.0.1 none",
    ]


def test_a_host_that_refuses_ssh(launcher: InHost0) -> None:
    done = launcher.run("-H", "hora-node1:1,hora-node2:1", "-p", "2222", "echo", "never")
    errors = done.stderr.decode()
    assert (done.returncode, done.stdout) == (1, b"")
    for node in ("1", "2"):
        assert f"host 'hora-node{node}' cannot be used: ssh exited with status 255" in errors
        assert f"connect to host 10.9.0.{int(node) + 1} port 2222: Connection refused" in errors
    assert "its command was: ssh -F " in errors
    assert "-p 2222" in errors


def test_an_unknown_host(launcher: InHost0) -> None:
    done = launcher.run("-H", "no-such-host.invalid:1", "true")
    assert done.returncode == 1
    assert b"host 'no-such-host.invalid' cannot be used: ssh exited with status 255" in done.stderr
    assert b"Could not resolve hostname no-such-host.invalid" in done.stderr


def test_a_key_that_the_host_does_not_take(launcher: InHost0, tmp_path: Path) -> None:
    key = tmp_path / "other_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    config = tmp_path / "config"
    config.write_text(re.sub(r"IdentityFile \S+", "", launcher.hosts.config.read_text()))
    launcher.environment["HORA_SSH"] = f"ssh -F {config}"
    done = launcher.run("-H", "hora-node1:1", "-i", str(key), "true")
    assert done.returncode == 1
    assert b"Permission denied" in done.stderr
    good = launcher.run("-H", "hora-node1:1", "-i", str(launcher.hosts.key), "echo", "in")
    assert (good.returncode, good.stdout) == (0, b"[0]<stdout>:in\n"), good.stderr


LOOP = """
import os, numpy as np
import hora.numpy as hvd
hvd.init()
print('ready', os.getpid())
while True:
    hvd.allreduce(np.ones(1000, np.float32), name='a')
"""


def test_a_host_that_dies_in_the_middle(launcher: InHost0) -> None:
    """Its processes end all at once, ssh's own included, as when a machine is switched off."""
    pytest.importorskip("hora.numpy")
    job = launcher.start("-H", "localhost:1,hora-node1:2", *python(LOOP))
    read_lines(job, 3)
    send(list(launcher.hosts.processes(1)), signal.SIGKILL)
    _, errors = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 255
    assert b"host 'hora-node1' is lost: ssh " in errors
    assert re.search(rb"rank [12] \(pid \d+ on hora-node1\) was lost with its host", errors)
    wait_until_gone(launcher.mark)


def test_a_cable_that_is_cut(launcher: InHost0) -> None:
    """No connection ends; both sides notice that nothing comes any more."""
    pytest.importorskip("hora.numpy")
    launcher.environment["HORA_HOST_TIMEOUT_MS"] = "2000"
    job = launcher.start("-H", "localhost:1,hora-node1:2", *python(LOOP))
    read_lines(job, 3)
    launcher.hosts.cut(1)
    try:
        wait_for_line(job, rb"host 'hora-node1' has been silent for 2 s")
        _, errors = job.communicate(timeout=LIMIT_S)
        # The host ends its ranks by itself: nobody can tell it to.
        wait_until_gone(launcher.mark)
    finally:
        launcher.hosts.mend(1)
    assert job.returncode == 255
    assert b"was lost with its host" in errors


def test_interfaces_that_do_not_lead_there(launcher: InHost0) -> None:
    done = launcher.run("-H", "hora-node1:1", "--network-interfaces", "eth7", "true")
    assert done.returncode == 2
    assert b"none of eth7 has an address" in done.stderr
    assert b"it has lo, eth0" in done.stderr
    done = launcher.run("-H", "hora-node1:1", "--network-interfaces", "lo", "true")
    assert done.returncode == 1
    assert b"host 'hora-node1' cannot reach horarun from there (127.0.0.1:" in done.stderr
    assert b"--network-interfaces" in done.stderr


def test_a_program_or_a_horarun_that_is_missing_there(launcher: InHost0, hosts: SshHosts) -> None:
    sshd = hosts.sshds.pop(2)
    sshd.kill()
    sshd.wait()
    hosts.start_sshd(2, hide=True)
    program = hosts.hidden / "mypython"
    program.symlink_to(shutil.which("true") or "/bin/true")
    done = launcher.run("-H", "hora-node1:1,hora-node2:1", str(program))
    assert (done.returncode, done.stdout) == (127, b"")
    assert f"host 'hora-node2' '{program}': No such file" in done.stderr.decode()
    wrapper = hosts.hidden / "horarun"
    wrapper.write_text(f'#!/bin/sh\nexec "{launcher.binary}" "$@"\n')
    wrapper.chmod(0o755)
    told = ["--remote-horarun", str(wrapper), "echo", "here"]
    done = launcher.run("-H", "hora-node1:1", *told)
    assert (done.returncode, done.stdout) == (0, b"[0]<stdout>:here\n"), done.stderr
    done = launcher.run("-H", "hora-node2:1", *told)
    assert done.returncode == 1
    assert b"status 127; is Hora installed there? --remote-horarun" in done.stderr


def test_killing_horarun_leaves_no_process_on_any_host(launcher: InHost0) -> None:
    job = launcher.start(
        "-H", "hora-node1:2,hora-node2:1", *python("import time; print('up'); time.sleep(1000)")
    )
    read_lines(job, 3)
    job.kill()
    job.communicate(timeout=LIMIT_S)
    wait_until_gone(launcher.mark)
