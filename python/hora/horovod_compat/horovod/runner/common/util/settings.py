"""What is known of a job before it starts, where Horovod keeps it."""

from __future__ import annotations

from typing import Any

__all__ = ["BaseSettings", "Settings"]


class BaseSettings:
    """Attributes with the names of Horovod's; what is not given is None, False or 0."""

    def __init__(
        self,
        num_proc: int | None = None,
        verbose: int = 0,
        ssh_port: int | None = None,
        ssh_identity_file: str | None = None,
        **others: Any,
    ) -> None:
        self.num_proc = num_proc
        self.verbose = verbose
        self.ssh_port = ssh_port
        self.ssh_identity_file = ssh_identity_file
        self.extra_mpi_args = self.tcp_flag = self.binding_args = self.key = None
        self.start_timeout = self.output_filename = self.nics = self.executable = None
        self.run_func_mode = self.elastic = self.prefix_output_with_timestamp = False
        for name, value in others.items():
            setattr(self, name, value)


class Settings(BaseSettings):
    """The settings of a job on named hosts, such as ``a:2,b:2``."""

    def __init__(self, hosts: str | None = None, **others: Any) -> None:
        super().__init__(**others)
        self.hosts = hosts
