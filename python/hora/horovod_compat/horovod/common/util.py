"""Small helpers, where Horovod keeps them."""

from __future__ import annotations

import contextlib
import functools
import os
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Callable, TypeVar

import hora
from hora._features import check_extension

__all__ = [
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]

Item = TypeVar("Item")


def get_ext_suffix() -> str:
    """Return how the names of extension modules end."""
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def _cache(function: Callable[..., Item]) -> Callable[..., Item]:
    """Remember what a function returns for each of its arguments."""
    return functools.lru_cache(maxsize=None)(function)


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether a framework can be used: ``torch`` is the one that can."""
    return ext_base_name == "torch"


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether the framework sees a GPU."""
    if ext_base_name != "torch":
        return False
    import torch

    return torch.cuda.is_available()


def mpi_built(verbose: bool = False) -> bool:
    """Return False: MPI is not part of Hora."""
    return hora.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """Return True: Hora stands in Gloo's place."""
    return hora.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    """Return NCCL's version code, 0 without NCCL."""
    return hora.nccl_built()


def ddl_built(verbose: bool = False) -> bool:
    """Return False."""
    return hora.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """Return False."""
    return hora.ccl_built()


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Set variables of the environment for a while; None removes one."""
    before = {name: os.environ.get(name) for name in kwargs}
    _assign(kwargs)
    try:
        yield
    finally:
        _assign(before)


def _assign(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def get_average_backwards_compatibility_fun(
    reduce_ops: Any,
) -> Callable[[int | None, bool | None], int]:
    """Return the function that turns `op` and the older `average` into a reduction."""

    def choose(op: int | None, average: bool | None) -> int:
        if op is not None:
            if average is not None:
                raise ValueError(
                    "The op parameter supersedes average. Please provide only one of them."
                )
            return op
        if average is not None:
            warnings.warn(
                "Parameter `average` has been replaced with `op`.", DeprecationWarning, stacklevel=3
            )
            op = reduce_ops.Average if average else reduce_ops.Sum
        return int(reduce_ops.Average if op is None else op)

    return choose


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether a number is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items: Sequence[Item], n: int) -> list[Sequence[Item]]:
    """Return `n` parts of nearly equal length, the longer ones first."""
    short, longer = divmod(len(items), n)
    cuts = [i * short + min(i, longer) for i in range(n + 1)]
    return [items[start:end] for start, end in zip(cuts, cuts[1:])]


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Do nothing: Hora is built for no version of a framework."""


def is_iterable(x: Any) -> bool:
    """Return whether one can iterate over `x`."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Return whether version `ver` is `target` or later; both are like 2.1 or 2.1.3."""
    return _numbers(ver) >= _numbers(target)


def _numbers(version: str) -> list[int]:
    numbers = [int(part) for part in version.split("+")[0].split(".") if part.isdigit()]
    return numbers + [0] * (3 - len(numbers))
