"""What this build can do, in Horovod's words. All of these may be called before `init`.

Hora's own transports stand where Horovod has Gloo, so scripts that ask for Gloo find what they
need.
"""

from __future__ import annotations


def mpi_threads_supported() -> bool:
    """Raise ValueError: MPI is not part of Hora."""
    raise ValueError("Hora does not use MPI; mpi_threads_supported() has no meaning here.")


def mpi_enabled() -> bool:
    """Return False: MPI is not part of Hora."""
    return False


def mpi_built() -> bool:
    """Return False: MPI is not part of Hora."""
    return False


def gloo_enabled() -> bool:
    """Return True: jobs run without MPI."""
    return True


def gloo_built() -> bool:
    """Return True: jobs run without MPI."""
    return True


def nccl_built() -> int:
    """Return NCCL's version code, 0 without NCCL."""
    return 0


def ddl_built() -> bool:
    """Return False."""
    return False


def ccl_built() -> bool:
    """Return False."""
    return False


def cuda_built() -> bool:
    """Return whether CUDA tensors are supported."""
    return False


def rocm_built() -> bool:
    """Return whether ROCm tensors are supported."""
    return False


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raise ImportError unless the framework's part of Hora is there: PyTorch's always is.

    Parameters
    ----------
    ext_name
        For example ``horovod.torch`` or ``hora.torch``.
    ext_env_var, pkg_path, *args
        Where Horovod looks for the extension that it has built; not needed.
    """
    if ext_name.rpartition(".")[2] != "torch":
        raise ImportError(f"Extension {ext_name} has not been built: Hora has none for it.")
