"""Threads for small jobs, where Horovod keeps them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

__all__ = ["execute_function_multithreaded", "in_thread", "on_event"]


def in_thread(
    target: Callable[..., Any],
    args: Any = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Start a thread that calls `target`, and return it; a silent one swallows exceptions."""
    _require_tuple(args)

    def call() -> None:
        with contextlib.suppress(Exception) if silent else contextlib.nullcontext():
            target(*args)

    thread = threading.Thread(target=call, name=name, daemon=daemon)
    thread.start()
    return thread


def _require_tuple(args: Any) -> None:
    if not isinstance(args, tuple):
        raise ValueError(
            f"args must be a tuple, not {type(args)}, for a single argument use (arg,)"
        )


def on_event(
    event: threading.Event | None,
    func: Callable[..., Any],
    args: Any = (),
    stop: threading.Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Start a thread that calls `func` once `event` is set, unless `stop` is set before."""
    if event is None:
        raise ValueError("Event must not be None")
    _require_tuple(args)
    if stop is None and not daemon:
        raise ValueError("Stop event must be given for non-daemon event thread")

    def wait() -> None:
        while stop is None or not stop.is_set():
            if event.wait(check_stop_interval_s):
                func(*args)
                return

    return in_thread(wait, daemon=daemon, silent=silent)


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Call `fn` with each of the lists of arguments, on threads; returns results by index."""
    workers = max(1, min(max_concurrent_executions, len(args_list)))
    pool = ThreadPoolExecutor(workers)
    futures = [pool.submit(fn, *arguments) for arguments in args_list]
    if not block_until_all_done:
        pool.shutdown(wait=False)
        return None
    with pool:
        return {index: future.result() for index, future in enumerate(futures)}
