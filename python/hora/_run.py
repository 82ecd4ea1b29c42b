"""``hora.run``: call a function on every rank of a job of its own, and get its results back.

The caller stays what it is, a script or a notebook; the ranks are processes that ``horarun`` starts
with :mod:`hora._run_task` as their program::

    caller ---- task (function, arguments) ----> private folder <---- read by every rank
       ^                                         result.0, result.1, ... written by each
       +------------------------------------------+

The folder belongs to this user alone (mode 0700) and is gone afterwards. Ranks on other hosts,
where it is not, exchange the same bytes over connections that prove a secret
(:mod:`hora._run_exchange`). Functions travel by cloudpickle where it is installed - then lambdas,
closures and what a notebook's cell defines work, too - and else by pickle, which wants an
importable function.

What the ranks print is passed on while they run; the lines of horarun's own are read on the way,
for they name the rank that failed first. That rank's exception is raised here, with its traceback
as cause; the others' are consequences.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Callable

from hora._run_exchange import Office

_VERDICT = re.compile(r"horarun: rank (\d+) \(pid [^)]*\) (?:was )?(.*)\.\n?")
_END_PATIENCE_S = 30

# Runs horarun so that it ends when the thread that waits for it does: the kernel tells it.
_LEASH = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 15)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


class RankTracebackError(Exception):
    """The traceback of a rank, as the cause of the exception that is raised for it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return self.text


def pickler() -> Any:
    """Return cloudpickle if it is installed, else pickle."""
    try:
        import cloudpickle  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return pickle
    return cloudpickle


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[int, int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Run ``func(*args, **kwargs)`` on `np` ranks and return what it returned on each.

    The names are those of ``horovod.run``. A rank is a process of its own; the function calls
    ``hora.init`` itself if it wants to communicate. The caller's environment is passed on and not
    changed. Ranks may outnumber cores.

    Parameters
    ----------
    func : callable
        Lambdas, closures and functions of ``__main__`` need cloudpickle.
    args, kwargs : optional
        Handed to `func` on every rank.
    np, num_proc : int, optional
        The number of ranks (two names for it); 1 if neither it nor hosts are given.
    hosts, hostfile : str, optional
        As for ``horarun``. Ranks on other hosts connect to this process, at a port of its own.
    start_timeout : float, optional
        Seconds in which all ranks must meet.
    ssh_port, ssh_identity_file, network_interfaces : optional
        As for ``horarun``.
    output_filename : str, optional
        Folder for each rank's output, too.
    verbose : optional
        Say what is started.
    executable : str, optional
        The Python of the ranks; this one by default.
    disable_cache, use_gloo, use_mpi, mpi_args : optional
        Accepted; they have no effect.
    min_np, min_num_proc : int, optional
        When ranks die the others go on, as long as so many are left; without it a death ends the
        job (docs/repair.md).
    max_np, max_num_proc : int, optional
        No job has more ranks than it starts with, so this is at least `np` and changes nothing.
    slots, reset_limit, cooldown_range, host_discovery_script : optional
        For jobs whose hosts come and go, which this version does not run: must be None.

    Returns
    -------
    list
        One value per rank, in rank order; with `min_np` those of the ranks that returned.

    Raises
    ------
    ValueError
        Arguments that contradict each other, or a function that cannot be sent.
    RuntimeError
        A rank ended without an exception of its own, or none could be started.
    Exception
        Whatever `func` raised on the rank that failed first; its cause has the rank's traceback.
    """
    if hosts is not None and hostfile is not None:
        raise ValueError("Argument hosts and hostfile only allow one provided.")
    if use_gloo and use_mpi:
        raise ValueError("Argument use_gloo and use_mpi only allow one set True.")
    if network_interface is not None:
        warnings.warn("network_interface is now network_interfaces", DeprecationWarning, 2)
    elastic = {
        "slots": slots,
        "reset_limit": reset_limit,
        "cooldown_range": cooldown_range,
        "host_discovery_script": host_discovery_script,
    }
    refused = [name for name, value in elastic.items() if value is not None]
    if refused:
        raise ValueError(
            f"{', '.join(refused)}: this version of Hora cannot let hosts or workers come; name "
            "fixed hosts with hosts or hostfile. Ranks may go: min_num_proc."
        )
    count = _one_of(np=np, num_proc=num_proc)
    if count is None and hosts is None and hostfile is None:
        count = 1
    options: dict[str, Any] = {
        "--num-proc": count,
        "--min-np": _one_of(min_np=min_np, min_num_proc=min_num_proc),
        "--max-np": _one_of(max_np=max_np, max_num_proc=max_num_proc),
        "--hosts": hosts,
        "--hostfile": hostfile,
        "--start-timeout": start_timeout,
        "--ssh-port": ssh_port,
        "--ssh-identity-file": ssh_identity_file,
        "--output-filename": output_filename,
        "--network-interfaces": network_interfaces or network_interface,
    }
    words = [
        f"{name}={value}" if value is not True else name
        for name, value in options.items()
        if value is not None
    ]
    words += ["--verbose"] if verbose else []
    with tempfile.TemporaryDirectory(prefix="hora-run-") as folder:
        task = Path(folder)
        task.joinpath("task").write_bytes(_packed(func, tuple(args), dict(kwargs or {})))
        program = [executable or sys.executable, "-m", "hora._run_task", folder]
        office = Office(task) if hosts is not None or hostfile is not None else None
        try:
            variables = office.variables if office is not None else {}
            status, failed = _run_horarun([*words, *program], variables)
        finally:
            if office is not None:
                office.close()
        return _collect(task, status, failed)


def _one_of(**names: int | None) -> int | None:
    """Return the value of an argument that has two names; ValueError if they differ."""
    given = {name: value for name, value in names.items() if value is not None}
    if len(set(given.values())) > 1:
        texts = " and ".join(f"{name}={value}" for name, value in given.items())
        raise ValueError(f"{texts} are two names of one number.")
    return next(iter(given.values()), None)


def _packed(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    module = pickler()
    try:
        call = module.dumps((func, args, kwargs))
        by_reference = module is pickle and getattr(func, "__module__", "") == "__main__"
    except Exception as error:
        hint = "" if module is not pickle else "; cloudpickle, if installed, can send more"
        raise ValueError(f"cannot send {func!r} to the ranks: {error}{hint}") from error
    if by_reference:
        raise ValueError(
            f"{func!r} is defined in __main__, which is another module on the ranks: install "
            "cloudpickle, or define it in a module of its own."
        )
    return pickle.dumps({"path": sys.path, "call": call})


def _find_horarun() -> str:
    beside = Path(__file__).resolve().parent / "bin" / "horarun"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("horarun")
    if not found:
        raise RuntimeError(f"no horarun in {beside.parent} or PATH; install hora again.")
    return found


def _is_descriptor(stream: Any, number: int) -> bool:
    """Whether a standard stream is still the process's own, and not a notebook's."""
    with contextlib.suppress(AttributeError, OSError, io.UnsupportedOperation):
        return bool(stream.fileno() == number)
    return False


def _pass_on(pipe: IO[str], stream: Any, seen: Callable[[str], None]) -> threading.Thread:
    """Copy lines from a pipe to a stream, on a thread."""

    def copy() -> None:
        for line in pipe:
            seen(line)
            with contextlib.suppress(ValueError, OSError):  # A closed stream ends no job.
                stream.write(line)
                stream.flush()

    thread = threading.Thread(target=copy, daemon=True, name="hora.run output")
    thread.start()
    return thread


def _run_horarun(words: list[str], variables: dict[str, str]) -> tuple[int, list[tuple[int, str]]]:
    """Run horarun to its end: its exit code, and the ranks that failed with their ends.

    The last of them is the one that has ended the job, if one has.
    """
    failed: list[tuple[int, str]] = []

    def look(line: str) -> None:
        match = _VERDICT.fullmatch(line)
        if match:
            failed.append((int(match[1]), match[2]))

    own_stdout = _is_descriptor(sys.stdout, 1)
    if own_stdout:
        sys.stdout.flush()
    leash = [sys.executable, "-S", "-E", "-c", _LEASH, str(os.getpid())]
    process = subprocess.Popen(
        [*leash, _find_horarun(), *words],
        stdin=subprocess.DEVNULL,
        stdout=None if own_stdout else subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, **variables},
        start_new_session=True,  # Ctrl-C comes through us alone
    )
    assert process.stderr is not None
    threads = [_pass_on(process.stderr, sys.stderr, look)]
    if process.stdout is not None:
        threads.append(_pass_on(process.stdout, sys.stdout, lambda _: None))
    try:
        process.wait()
    except BaseException:
        _end(process)
        raise
    finally:
        for thread in threads:
            thread.join(_END_PATIENCE_S)
        for pipe in (process.stderr, process.stdout):
            if pipe is not None:
                pipe.close()
    return process.returncode, failed


def _end(process: subprocess.Popen[str]) -> None:
    """Interrupt horarun, which ends its ranks; a second interrupt makes it hurry."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_END_PATIENCE_S)
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.wait(_END_PATIENCE_S)
        raise


def _collect(task: Path, status: int, failed: list[tuple[int, str]]) -> list[Any]:
    if status == 0:
        given = sorted(task.glob("result.*"), key=lambda file: int(file.suffix[1:]))
        size = _header_of(given[0])[2] if given else 1
        accounted = {int(file.suffix[1:]) for file in given} | {rank for rank, _ in failed}
        missing = [rank for rank in range(size) if rank not in accounted]
        if missing:
            raise RuntimeError(f"ranks {missing} ended in order, but without a result.")
        lost = {rank for rank, _ in failed}  # The job has gone on without them.
        return [
            _result_of(file)
            for file in given
            if int(file.suffix[1:]) not in lost or _header_of(file)[0] == "value"
        ]
    if not failed:
        raise RuntimeError(f"horarun could not run the job and ended with status {status}.")
    rank, how = failed[-1]
    file = task / f"result.{rank}"
    if file.exists():
        _result_of(file)  # raises what the rank raised
    raise RuntimeError(
        "Horovod detected that one or more processes exited with non-zero status, thus causing the "
        f"job to be terminated. The first process to do so was:\nProcess name: {rank}\n"
        f"Exit code: {status}\nRank {rank} {how}."
    )


def _header_of(file: Path) -> tuple[str, int, int, str]:
    """Kind, rank, size and traceback text of a result."""
    with file.open("rb") as stream:
        kind, rank, size, text = pickle.load(stream)
    return kind, rank, size, text


def _result_of(file: Path) -> Any:
    """Return a rank's value, or raise its exception."""
    with file.open("rb") as stream:
        kind, rank, _, text = pickle.load(stream)
        if kind == "value":
            return pickle.load(stream)
        try:
            error = pickle.load(stream)
        except Exception:
            error = RuntimeError(f"rank {rank} raised an exception that cannot be sent: {text}")
        raise error from RankTracebackError(f'\n"""\nrank {rank}:\n{text}"""')
