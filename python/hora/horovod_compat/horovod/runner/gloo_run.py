"""Starting a command on all ranks of a job, where Horovod keeps it. Hora stands in Gloo's place."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from horovod.runner.launch import HORARUN, failure

__all__ = ["gloo_run"]


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
