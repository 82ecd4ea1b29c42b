"""Starting a command on all ranks of a job, where Horovod keeps it. Hora stands in Gloo's place."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from horovod.runner.launch import HORARUN, failure

__all__ = ["gloo_run", "launch_gloo"]


def _get_min_start_hosts(settings: Any) -> int:
    """Return how many hosts a job needs to start: one is enough."""
    return 1


def gloo_run(
    settings: Any,
    nics: Sequence[str] | None,
    env: Mapping[str, str] | None,
    server_ip: str | None,
    command: str | Sequence[str],
) -> None:
    """Run a command on all ranks of a job.

    Parameters
    ----------
    settings
        Of its attributes `num_proc` and `hosts` are read.
    nics
        Network interfaces that ranks of different hosts use; None for all.
    env
        The environment of the ranks; None for this process's.
    server_ip
        Not needed: ranks find the launcher.
    command
        One text as for a shell, or words.

    Raises
    ------
    RuntimeError
        A rank has failed.
    """
    words = [str(HORARUN), "--horovod-compat"]
    for flag, value in (("-np", settings.num_proc), ("-H", settings.hosts)):
        words += [flag, str(value)] if value is not None else []
    words += ["--network-interfaces", ",".join(nics)] if nics else []
    words += shlex.split(command) if isinstance(command, str) else list(command)
    code = subprocess.run(words, env=None if env is None else dict(env), check=False).returncode
    if code != 0:
        raise failure("see the output of horarun", code)


def launch_gloo(
    command: str | Sequence[str],
    exec_command: Callable[..., Any] | None,
    settings: Any,
    nics: Sequence[str] | None,
    env: Mapping[str, str] | None,
    server_ip: str | None,
) -> None:
    """Run a command on all ranks of a job, as `gloo_run` does.

    Parameters
    ----------
    exec_command
        Must be None: horarun starts the ranks, so a way of one's own of starting them has no place.

    Raises
    ------
    NotImplementedError
        There is an `exec_command`.
    RuntimeError
        A rank has failed.
    """
    if exec_command is not None:
        raise NotImplementedError(
            "launch_gloo: exec_command must be None, for horarun starts the ranks. Where a "
            "scheduler starts them, give each HORA_RANK, HORA_SIZE and HORA_RENDEZVOUS."
        )
    gloo_run(settings, nics, env, server_ip, command)
