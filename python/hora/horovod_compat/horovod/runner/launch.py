"""horovodrun from within a program, where Horovod keeps it.

`_run` and `_run_elastic` give the arguments to horarun. What goes wrong is a RuntimeError, as
programs that use them expect.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import hora
from horovod.common.util import gloo_built, mpi_built
from horovod.runner.common.util.config_parser import set_args_from_config, validate_config_args
from horovod.runner.options import make_parser, words_of

__all__ = [
    "HORARUN",
    "failure",
    "gloo_built",
    "mpi_built",
    "parse_args",
    "run_commandline",
    "run_controller",
]

HORARUN = Path(hora.__file__).parent / "bin" / "horarun"


def parse_args() -> Any:
    """Return the arguments of the command line in sys.argv.

    Raises
    ------
    ValueError
        A number that cannot be.
    """
    parser = make_parser()
    args = parser.parse_args()
    if args.check_build:
        sys.exit(subprocess.run([HORARUN, "--check-build"], check=False).returncode)
    if args.hosts is not None and args.hostfile is not None:
        parser.error("argument --hostfile: not allowed with argument --hosts")
    if args.use_gloo and args.use_mpi:
        parser.error("argument --mpi: not allowed with argument --gloo")
    if args.config_file:
        import yaml  # type: ignore[import-untyped,unused-ignore]

        with open(args.config_file) as file:
            set_args_from_config(args, yaml.safe_load(file) or {}, args.given)
    validate_config_args(args)
    return args


def failure(name: object, code: int) -> RuntimeError:
    """Return what is raised for a job that has failed."""
    return RuntimeError(
        "Horovod detected that one or more processes exited with non-zero status, thus causing the "
        f"job to be terminated. The first process to do so was:\nProcess name: {name}\n"
        f"Exit code: {code}\n"
    )


def _run(args: Any) -> list[Any] | None:
    """Run the command, or the function, that the arguments name."""
    if args.run_func is not None:
        from horovod.runner import run

        names = ("num_proc", "min_num_proc", "max_num_proc", "hosts", "hostfile")
        results: list[Any] = run(args.run_func, **{name: getattr(args, name) for name in names})
        return results
    command = [str(HORARUN), "--horovod-compat", *words_of(args), *args.command]
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        raise failure("see the output of horarun", code)
    return None


def _run_elastic(args: Any) -> list[Any] | None:
    """Run a job whose hosts may change: horarun decides whether it can."""
    return _run(args)


def run_controller(
    use_gloo: bool | None,
    gloo_run: Callable[[], Any],
    use_mpi: bool | None,
    mpi_run: Callable[[], Any],
    use_jsrun: bool | None,
    js_run: Callable[[], Any],
    verbosity: int | None,
) -> None:
    """Call `gloo_run`, in whose place Hora stands; ValueError if another controller is asked for.

    The three functions start a job with what they are named after.
    """
    if not use_gloo and (use_mpi or use_jsrun):
        raise ValueError(
            "MPI support has not been built: Hora has none, and needs none. Leave out --mpi and "
            "--jsrun."
        )
    gloo_run()


def run_commandline() -> None:
    """Become horarun, with the words of this command line."""
    os.execv(HORARUN, [str(HORARUN), "--horovod-compat", *sys.argv[1:]])
