"""The options of horovodrun, one row each, and what is made of them.

    command line --parse--> arguments (a namespace) --words_of--> command line of horarun
    config file  --fill---> the same                --environment-> variables of the workers

horarun understands Horovod's options itself; the detour is for programs that use the functions of
`horovod.runner.launch` and `config_parser`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable

MEGABYTE = 1024 * 1024


@dataclass(frozen=True)
class Row:
    """An option.

    `kind` is int, float, str, or bool for a switch; a switch may have a second flag that turns it
    off. `key` is its place in a config file. `scale` turns its value into that of `variable`.
    """

    dest: str
    kind: type
    flags: tuple[str, ...]
    off: tuple[str, ...] = ()
    key: str = ""
    variable: str = ""
    scale: Callable[[Any], Any] = lambda value: value
    needs: str = ""  # Another option without which this one is not handed to the workers.
    values: int = 1
    inverted: bool = False  # In a config file the switch says the opposite.


def _switch(dest: str, name: str, key: str = "", variable: str = "", needs: str = "") -> Row:
    return Row(dest, bool, (f"--{name}",), (f"--no-{name}",), key, variable, needs=needs)


ROWS = (
    Row("num_proc", int, ("--num-proc", "-np")),
    Row("check_build", bool, ("--check-build", "-cb")),
    Row("disable_cache", bool, ("--disable-cache",)),
    Row("start_timeout", int, ("--start-timeout",)),
    Row("nics", str, ("--network-interfaces", "--network-interface")),
    Row("output_filename", str, ("--output-filename",)),
    Row("verbose", bool, ("--verbose",)),
    Row("config_file", str, ("--config-file",)),
    Row("ssh_port", int, ("--ssh-port", "-p")),
    Row("ssh_identity_file", str, ("--ssh-identity-file", "-i")),
    Row(
        "fusion_threshold_mb",
        int,
        ("--fusion-threshold-mb",),
        (),
        "params.fusion_threshold_mb",
        "HOROVOD_FUSION_THRESHOLD",
        lambda value: value * MEGABYTE,
    ),
    Row(
        "cycle_time_ms",
        float,
        ("--cycle-time-ms",),
        (),
        "params.cycle_time_ms",
        "HOROVOD_CYCLE_TIME",
    ),
    Row(
        "cache_capacity",
        int,
        ("--cache-capacity",),
        (),
        "params.cache_capacity",
        "HOROVOD_CACHE_CAPACITY",
    ),
    _switch(
        "hierarchical_allreduce",
        "hierarchical-allreduce",
        "params.hierarchical_allreduce",
        "HOROVOD_HIERARCHICAL_ALLREDUCE",
    ),
    _switch(
        "hierarchical_allgather",
        "hierarchical-allgather",
        "params.hierarchical_allgather",
        "HOROVOD_HIERARCHICAL_ALLGATHER",
    ),
    _switch(
        "torus_allreduce", "torus-allreduce", "params.torus_allreduce", "HOROVOD_TORUS_ALLREDUCE"
    ),
    _switch("autotune", "autotune", "autotune.enabled", "HOROVOD_AUTOTUNE"),
    Row(
        "autotune_log_file",
        str,
        ("--autotune-log-file",),
        (),
        "autotune.log_file",
        "HOROVOD_AUTOTUNE_LOG",
        needs="autotune",
    ),
    Row(
        "autotune_warmup_samples",
        int,
        ("--autotune-warmup-samples",),
        (),
        "autotune.warmup_samples",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        needs="autotune",
    ),
    Row(
        "autotune_steps_per_sample",
        int,
        ("--autotune-steps-per-sample",),
        (),
        "autotune.steps_per_sample",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        needs="autotune",
    ),
    Row(
        "autotune_bayes_opt_max_samples",
        int,
        ("--autotune-bayes-opt-max-samples",),
        (),
        "autotune.bayes_opt_max_samples",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        needs="autotune",
    ),
    Row(
        "autotune_gaussian_process_noise",
        float,
        ("--autotune-gaussian-process-noise",),
        (),
        "autotune.gaussian_process_noise",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        needs="autotune",
    ),
    Row("min_num_proc", int, ("--min-num-proc", "--min-np")),
    Row("max_num_proc", int, ("--max-num-proc", "--max-np")),
    Row("slots", int, ("--slots-per-host", "--slots")),
    Row("elastic_timeout", int, ("--elastic-timeout",)),
    Row("reset_limit", int, ("--reset-limit",)),
    Row("cooldown_range", int, ("--blacklist-cooldown-range",), values=2),
    Row(
        "timeline_filename",
        str,
        ("--timeline-filename",),
        (),
        "timeline.filename",
        "HOROVOD_TIMELINE",
    ),
    _switch(
        "timeline_mark_cycles",
        "timeline-mark-cycles",
        "timeline.mark_cycles",
        "HOROVOD_TIMELINE_MARK_CYCLES",
        needs="timeline_filename",
    ),
    Row(
        "no_stall_check",
        bool,
        ("--no-stall-check",),
        ("--stall-check",),
        "stall_check.enabled",
        "HOROVOD_STALL_CHECK_DISABLE",
        inverted=True,
    ),
    Row(
        "stall_check_warning_time_seconds",
        int,
        ("--stall-check-warning-time-seconds",),
        (),
        "stall_check.warning_time_seconds",
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
    ),
    Row(
        "stall_check_shutdown_time_seconds",
        int,
        ("--stall-check-shutdown-time-seconds",),
        (),
        "stall_check.shutdown_time_seconds",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    ),
    _switch(
        "mpi_threads_disable",
        "mpi-threads-disable",
        "library_options.mpi_threads_disable",
        "HOROVOD_MPI_THREADS_DISABLE",
    ),
    Row("mpi_args", str, ("--mpi-args",)),
    Row("tcp_flag", bool, ("--tcp",)),
    Row("binding_args", str, ("--binding-args",)),
    Row(
        "num_nccl_streams",
        int,
        ("--num-nccl-streams",),
        (),
        "library_options.num_nccl_streams",
        "HOROVOD_NUM_NCCL_STREAMS",
    ),
    Row(
        "thread_affinity",
        int,
        ("--thread-affinity",),
        (),
        "library_options.thread_affinity",
        "HOROVOD_THREAD_AFFINITY",
    ),
    Row(
        "gloo_timeout_seconds",
        int,
        ("--gloo-timeout-seconds",),
        (),
        "library_options.gloo_timeout_seconds",
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
    ),
    Row("log_level", str, ("--log-level",), (), "logging.level", "HOROVOD_LOG_LEVEL"),
    Row(
        "log_with_timestamp",
        bool,
        ("--log-with-timestamp", "--no-log-hide-timestamp"),
        ("--log-without-timestamp", "--log-hide-timestamp"),
        "logging.with_timestamp",
        "HOROVOD_LOG_HIDE_TIME",
        lambda value: not value,
    ),
    Row(
        "prefix_output_with_timestamp",
        bool,
        ("--prefix-output-with-timestamp", "-prefix-timestamp"),
    ),
    Row("hosts", str, ("--hosts", "-H")),
    Row("hostfile", str, ("--hostfile", "-hostfile")),
    Row("host_discovery_script", str, ("--host-discovery-script",)),
    Row("use_gloo", bool, ("--gloo",)),
    Row("use_mpi", bool, ("--mpi",)),
    Row("use_jsrun", bool, ("--jsrun",)),
)


class _Note(argparse.Action):
    """Sets the value of a row, and notes that it came from the command line."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        value = self.const if self.nargs == 0 else values
        setattr(namespace, self.dest, list(value) if self.nargs == 2 else value)
        namespace.given.add(self.dest)


def make_parser() -> argparse.ArgumentParser:
    """Return a parser of horovodrun's command line."""
    parser = argparse.ArgumentParser(prog="horovodrun", description="Start a job with Hora.")
    parser.set_defaults(given=set(), run_func=None, executable=None)
    for row in ROWS:
        if row.kind is bool:
            parser.add_argument(*row.flags, dest=row.dest, action=_Note, nargs=0, const=True)
            if row.off:
                parser.add_argument(*row.off, dest=row.dest, action=_Note, nargs=0, const=False)
        else:
            nargs = None if row.values == 1 else row.values
            parser.add_argument(*row.flags, dest=row.dest, action=_Note, type=row.kind, nargs=nargs)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser


def words_of(args: Any) -> list[str]:
    """Return the options of horarun that say what the arguments say."""
    words: list[str] = []
    for row in ROWS:
        value = getattr(args, row.dest, None)
        if value is None or value == (None,) or row.dest in ("check_build", "config_file"):
            continue
        if row.kind is bool:
            words += row.flags[:1] if value else row.off[:1]
        elif row.values > 1:
            words += [row.flags[0], *map(str, value)]
        else:
            text = ",".join(value) if isinstance(value, (list, tuple, set)) else str(value)
            words += [f"{row.flags[0]}={text}"]
    return words


def environment_of(args: Any) -> Iterator[tuple[str, str]]:
    """Return the variables of the workers that say what the arguments say."""
    for row in ROWS:
        value = getattr(args, row.dest, None)
        if not row.variable or value is None or (row.needs and not getattr(args, row.needs, None)):
            continue
        value = row.scale(value)
        yield row.variable, str(int(value)) if isinstance(value, bool) else str(value)
